"""A session on two hosts that share a store and a git remote. Each host has a home, and folders of its own."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path

import anyio
import anyio.lowlevel
import pytest
from tests.adapters.git.worktree_world import new_repository, run_git

from callboard.adapters.storage.memory import MemoryStore
from callboard.adapters.system.clock import SystemClock
from callboard.core.keys import checkpoint_key, journal
from callboard.engine.rate_limits.limiter import KeyLimiters
from callboard.engine.recall import events_of
from callboard.ports.model import Delta
from callboard.ports.store import Put
from callboard.ports.store_reading import rows_of
from callboard.sessions.detached import start_detached
from callboard.sessions.hosted import HostedSession
from callboard.sessions.open import open_session
from callboard.sessions.options import (
    HostingOptions,
    IdentityOptions,
    LeadOptions,
    ModelOptions,
    SessionOptions,
    SharedResources,
    WorkspaceOptions,
)
from callboard.sessions.places import find_places
from callboard.sessions.workspaces import checkpoint_rows, place_session
from callboard.types import events as ev
from callboard.types.errors import UsageError, WorkspaceUnusable
from callboard.types.records import Envelope, SessionRow
from callboard.types.settings import Settings

pytestmark = pytest.mark.anyio
SESSION = "s1"
SCENARIO = """
agents:
  lead:
    - when: {contains: "Write (?P<name>[a-z]+)"}
      repeat: forever
      capture: {name: "Write ([a-z]+)[.]"}
      reply:
        - tool_use: {name: write_file, input: {path: "${name}.txt", content: "by ${name}"}}
        - tool_use: {name: bash, input: {command: "echo 1 > ${name}.sh.txt; ls"}}
    - {when: {contains: "Read"}, repeat: forever, reply: "I see."}
    - {reply: "Done.", repeat: forever}
"""


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


class Listener:
    """Lines for the person."""

    def __init__(self) -> None:
        self.notices: list[str] = []

    def on_event(self, agent: str, seq: int, event: ev.Event) -> None: ...
    def on_mail(self, envelope: Envelope) -> None: ...
    def on_delta(self, agent: str, delta: Delta) -> None:
        if delta.kind == "notice":
            self.notices.append(delta.text)


class Fleet:
    """Hosts, each with a home of its own, that share a store and a remote."""

    def __init__(self, base: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.base = base
        self.store = MemoryStore()
        self.listener = Listener()
        self._monkeypatch = monkeypatch
        self.remote = base / "remote.git"
        run_git(base, "init", "-q", "--bare", str(self.remote))
        (base / "scenario.yaml").write_text(SCENARIO)
        self.workspace = new_repository(base / "app")
        run_git(self.workspace, "push", "-q", str(self.remote), "HEAD:main")
        run_git(self.workspace, "remote", "add", "origin", "../remote.git")
        monkeypatch.setenv("CALLBOARD_WORKSPACE_REMOTE", str(self.remote))
        monkeypatch.setenv("CALLBOARD_SANDBOX__LEVEL", "0")

    def use_home(self, host: str) -> Path:
        home = self.base / host
        home.mkdir(exist_ok=True)
        self._monkeypatch.setenv("HOME", str(home))
        for name in ("STATE", "DATA", "CONFIG"):
            self._monkeypatch.setenv(f"XDG_{name}_HOME", str(home / name.lower()))
        return home

    @asynccontextmanager
    async def at(
        self, host: str, *, lead: LeadOptions | None = None, trust: bool = False
    ) -> AsyncGenerator[HostedSession]:
        """Host the session: a new one the first time, resumed in any other folder later."""
        elsewhere = self.use_home(host) / "elsewhere"
        elsewhere.mkdir(exist_ok=True)
        known = bool(await rows_of(self.store, f"s/{SESSION}"))
        identity = IdentityOptions(session=SESSION, resume=True) if known else IdentityOptions(name=SESSION)
        options = self.options(elsewhere if known else self.workspace, identity, lead=lead, trust=trust)
        with anyio.fail_after(60):
            async with open_session(options, observers=[self.listener]) as session:
                yield session

    def options(
        self, folder: Path, identity: IdentityOptions, *, lead: LeadOptions | None = None, trust: bool = False
    ) -> SessionOptions:
        return SessionOptions(
            WorkspaceOptions(folder, {"permission.mode": "bypassPermissions"}, trust=trust),
            identity,
            ModelOptions(f"rehearsal:{self.base / 'scenario.yaml'}"),
            hosting=HostingOptions(shared=SharedResources(self.store, KeyLimiters(SystemClock()))),
            lead=lead or LeadOptions(),
        )

    async def turn(self, session: HostedSession, text: str) -> None:
        await session.say(text)
        await session.taken_up()
        await session.wait_finished()

    async def reminders(self) -> list[str]:
        """Return what the lead was told about moves."""
        events = await events_of(self.store, journal(SESSION, "lead", 1))
        return [e.injection.text for e in events if isinstance(e, ev.InjectionQueued) and e.injection.key == "moved"]

    def branches(self) -> list[str]:
        return run_git(self.remote, "for-each-ref", "--format=%(refname:short)").split()

    def on_remote(self, tree: str = "workspace") -> list[str]:
        return run_git(self.remote, "ls-tree", "-r", "--name-only", f"callboard/{SESSION}/{tree}").split()


@pytest.fixture
def fleet(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Fleet:
    return Fleet(tmp_path.resolve(), monkeypatch)


def clone_of(session: HostedSession) -> Path:
    return session.places.workspace


@pytest.mark.slow
async def test_a_session_goes_on_in_a_clone_and_comes_back_without_touching_the_persons_folder(fleet: Fleet) -> None:
    async with fleet.at("a") as session:
        await fleet.turn(session, "Write one.")
        assert session.places.workspace == fleet.workspace
    async with fleet.at("b") as session:
        clone = clone_of(session)
        assert clone.is_relative_to(fleet.base / "b" / "data" / "callboard" / "clones")
        assert (clone / "one.txt").read_text() == "by one"
        await fleet.turn(session, "Write two.")
    assert not (fleet.workspace / "two.txt").exists()
    assert "two.txt" in fleet.on_remote()
    async with fleet.at("b") as session:
        assert clone_of(session) == clone, "its own folder is taken for what it is"
    (fleet.workspace / "a.txt").write_text("a person's")
    async with fleet.at("a") as session:
        back = clone_of(session)
        assert back.is_relative_to(fleet.base / "a" / "data")
        assert {path.name for path in back.iterdir()} >= {"one.txt", "two.txt", "two.sh.txt"}
        await fleet.turn(session, "Write three.")
    assert (fleet.workspace / "a.txt").read_text() == "a person's"
    (clone / "left.txt").write_text("left in the clone")
    async with fleet.at("b") as session:
        assert clone_of(session) == clone
        assert (clone / "three.txt").exists()
        assert not (clone / "left.txt").exists()
    rescued = run_git(clone, "for-each-ref", "--format=%(refname)", "refs/callboard/rescued").split()
    assert [run_git(clone, "show", f"{ref}:left.txt") for ref in rescued] == ["left in the clone"]
    assert await fleet.reminders() == [], "nothing was lost, and the conversation shows no path"


@pytest.mark.slow
async def test_an_agent_reads_by_name_what_the_last_host_did_not_push(fleet: Fleet) -> None:
    (fleet.workspace / "noise.log").write_text("ignored")
    async with fleet.at("a") as session:
        await fleet.turn(session, "Write one.")
        await session.checkpoint()
        fleet.remote.rename(fleet.base / "away")
        await fleet.turn(session, "Write two.")
    (fleet.base / "away").rename(fleet.remote)
    failed = [line for line in fleet.listener.notices if "was not pushed" in line]
    assert len(failed) == 1, "a failure is reported once"
    assert "workspace_remote" in failed[0]
    async with fleet.at("b") as session:
        assert not (clone_of(session) / "two.txt").exists()
        await fleet.turn(session, "Read.")
    [text] = await fleet.reminders()
    assert "- Changes after the last checkpoint, which are not here: two.sh.txt, two.txt\n" in text
    assert "- Files that git ignores, which are not here: noise.log\n" in text
    assert text.startswith("The runtime stopped on another host")


async def test_a_checkpoint_asked_for_at_any_moment_of_another_one_is_made(fleet: Fleet) -> None:
    async def checkpoint_after(steps: int, session: HostedSession) -> None:
        for _ in range(steps):
            await anyio.lowlevel.checkpoint()
        await session.checkpoint()

    async with fleet.at("a") as session:
        for steps in range(20):
            with anyio.fail_after(10):
                async with anyio.create_task_group() as group:
                    group.start_soon(session.checkpoint)
                    group.start_soon(checkpoint_after, steps, session)


@pytest.mark.slow
async def test_a_crash_between_checkpoints_is_reported_from_the_journal(fleet: Fleet) -> None:
    async with fleet.at("a") as session:
        await fleet.turn(session, "Write one.")
        await session.checkpoint()
    rows = await checkpoint_rows(fleet.store, SESSION)
    early = rows[""].model_copy(update={"at": 0.0})
    # As if the host had died before the checkpoint that has these changes.
    await fleet.store.commit(Put(checkpoint_key(SESSION), early.encode()))
    async with fleet.at("b"):
        pass
    [text] = await fleet.reminders()
    assert "- Changes after the last checkpoint, which are not here: one.txt\n" in text
    assert "they did is unknown: echo 1 > one.sh.txt; ls\n" in text


async def test_a_worktree_moves_with_its_agent(fleet: Fleet) -> None:
    async with fleet.at("a", lead=LeadOptions(worktree="parser")) as session:
        await fleet.turn(session, "Write one.")
    assert "one.txt" in fleet.on_remote("wt/parser")
    assert "one.txt" not in fleet.on_remote()
    async with fleet.at("b") as session:
        folder = session.places.worktrees / "parser"
        assert (folder / "one.txt").read_text() == "by one"
        assert run_git(folder, "symbolic-ref", "HEAD").strip() == "refs/heads/wt/parser"
        await fleet.turn(session, "Write two.")
        assert (folder / "two.txt").exists()
    assert "two.txt" in fleet.on_remote("wt/parser")
    assert (fleet.base / "a" / "data").exists()
    assert not (fleet.workspace / "two.txt").exists()


@pytest.mark.slow
async def test_a_detached_session_begins_with_the_files_of_the_one_who_started_it(fleet: Fleet) -> None:
    fleet.use_home("a")
    (fleet.workspace / "a.txt").write_text("not committed yet")
    await start_detached(fleet.options(fleet.workspace, IdentityOptions(name=SESSION, prompt="Write one.")))
    async with fleet.at("b") as session:
        await session.taken_up()
        await session.wait_finished()
        assert (clone_of(session) / "a.txt").read_text() == "not committed yet"
        assert (clone_of(session) / "one.txt").read_text() == "by one"
    assert await fleet.reminders() == []


async def test_a_branch_that_was_deleted_is_pushed_again_without_a_change(fleet: Fleet) -> None:
    branch = f"callboard/{SESSION}/workspace"
    async with fleet.at("a") as session:
        await fleet.turn(session, "Write one.")
        await session.checkpoint()
        run_git(fleet.remote, "branch", "-D", branch)
        await session.checkpoint()
        assert branch in fleet.branches()
        run_git(fleet.remote, "branch", "-D", branch)
    assert branch in fleet.branches(), "the next host finds it"
    fleet.remote.rename(fleet.base / "away")
    async with fleet.at("a"):
        pass
    assert not [line for line in fleet.listener.notices if "was not pushed" in line], "everything was pushed before"


async def test_a_session_without_a_remote_has_no_checkpoints(fleet: Fleet, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("CALLBOARD_WORKSPACE_REMOTE")
    async with fleet.at("a") as session:
        await fleet.turn(session, "Write one.")
        await session.checkpoint()
    assert await checkpoint_rows(fleet.store, SESSION) == {}
    assert fleet.branches() == ["main"]


@pytest.mark.slow
async def test_checkpoints_that_are_off_push_nothing(fleet: Fleet, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CALLBOARD_CHECKPOINT", "off")
    async with fleet.at("a") as session:
        await fleet.turn(session, "Write one.")
        await session.checkpoint()
    assert fleet.branches() == ["main"]


async def test_a_host_that_never_had_the_workspace_clones_the_base(fleet: Fleet) -> None:
    fleet.use_home("c")
    (fleet.base / "c" / "elsewhere").mkdir()
    row = SessionRow(id=SESSION, workspace="/somewhere/app", created_at=0.0)
    row = row.model_copy(update={"settings": {"workspace_remote": str(fleet.remote), "workspace_base": ""}})
    places, placed = await place_session(fleet.store, row, find_places(fleet.base / "c" / "elsewhere"), Settings())
    assert placed is not None
    assert not placed.moved
    assert (places.workspace / "a.txt").exists()
    assert run_git(places.workspace, "status", "--porcelain", "--branch").strip() == "## main"


async def test_a_session_does_not_push_an_unrelated_repository(fleet: Fleet) -> None:
    run_git(fleet.workspace, "remote", "remove", "origin")
    with pytest.raises(UsageError, match="but no remote of the repository in"):
        async with fleet.at("a"):
            pass
    assert fleet.branches() == ["main"]
    assert await rows_of(fleet.store, "s/") == []


@pytest.mark.slow
async def test_a_remote_that_is_gone_is_named_with_the_reason(fleet: Fleet) -> None:
    async with fleet.at("a") as session:
        await fleet.turn(session, "Write one.")
    fleet.remote.rename(fleet.base / "away")
    with pytest.raises(WorkspaceUnusable, match="is not on this host, and cannot be cloned"):
        async with fleet.at("b"):
            pass


async def test_no_credential_of_the_persons_git_reaches_the_store_or_a_message(
    fleet: Fleet, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CALLBOARD_WORKSPACE_REMOTE", "https://example.invalid/acme/app")
    run_git(fleet.workspace, "remote", "add", "web", "https://token:hunter2@example.invalid/acme/app.git")
    home = fleet.use_home("a")
    (home / ".gitconfig").write_text(
        '[url "https://token:hunter2@127.0.0.1:1/"]\n\tinsteadOf = https://example.invalid/\n'
    )
    async with fleet.at("a") as session:
        await fleet.turn(session, "Write one.")
    rows = await rows_of(fleet.store, "")
    assert any(b"could not be reached" in (row.value or b"") for row in rows)
    assert not [row.key for row in rows if b"hunter2" in (row.value or b"")]
    assert "hunter2" not in "\n".join(fleet.listener.notices)
    logs = [path.read_text() for path in (fleet.base / "a").rglob("*.jsonl")]
    assert logs
    assert "hunter2" not in "\n".join(logs)


@pytest.mark.slow
async def test_content_that_was_trusted_there_is_trusted_here(fleet: Fleet) -> None:
    (fleet.workspace / ".callboard").mkdir()
    settings = fleet.workspace / ".callboard" / "settings.yaml"
    settings.write_text("language: French\n")
    async with fleet.at("a", trust=True) as session:
        trusted = session.row.settings["trust"]
        await fleet.turn(session, "Write one.")
    assert trusted
    async with fleet.at("b") as session:
        assert session.row.settings["trust"] == trusted
        (session.places.workspace / ".callboard" / "settings.yaml").write_text("language: German\n")
    async with fleet.at("c") as session:
        assert session.row.settings["trust"] == "", "other content is not trusted"
