"""File tools, searches, and commands can use exactly the outside paths that a rule or a person allowed."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from tests.adapters.processes.cage import Cage, create_folders, require_level
from tests.adapters.shell.outside_world import OutsideWorld, text_of
from tests.adapters.shell.test_path_races import swap_names

from callboard.adapters.shell.policy_judge import PolicyJudge, parse_rules
from callboard.adapters.tools.files import file_tools
from callboard.adapters.tools.roots import RootCache
from callboard.adapters.tools.search import search_tools
from callboard.adapters.tools.shell import shell_tools
from callboard.ports.environment import PermissionDecision, PermissionQuery
from callboard.ports.tool import Folders, Tool
from callboard.types.agent_spec import AgentSpec
from callboard.types.errors import ToolRefused
from callboard.types.records import Json, PathGrant, ToolCall

pytestmark = pytest.mark.anyio

SPEC = AgentSpec(name="lead", kind="lead", agent_type="lead", model="m", permission_mode="default")
INPUTS: dict[str, Json] = {
    "read_file": {"path": "{out}/a.txt"},
    "grep": {"pattern": "stands", "path": "{out}"},
    "glob": {"pattern": "*.txt", "path": "{out}"},
    "write_file": {"path": "{out}/deep/new.txt", "content": "made"},
    "bash": {"command": "cat {out}/a.txt"},
}


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


class GrantWorld(OutsideWorld):
    """A workspace with a link that leads out, an outside folder, and tools that run as decided."""

    def lay_out(self, *allow: str) -> None:
        self.outside = self.base / "outside"
        self.outside.mkdir(exist_ok=True)
        (self.outside / "a.txt").write_text("it stands outside\n")
        (self.outside / "b.txt").write_text("nobody asked for this\n")
        for link, name in (("way", "a.txt"), ("other", "b.txt")):
            (self.root / link).unlink(missing_ok=True)
            (self.root / link).symlink_to(self.outside / name)
        root_cache = RootCache(self.root)
        tools = (*file_tools(root_cache), *search_tools(self.root, {}, (), root_cache), *shell_tools())
        self.tools: dict[str, Tool] = {tool.spec.name: tool for tool in tools}
        self.judge = PolicyJudge(parse_rules(allow, "test"), (), ())

    async def decision(self, name: str, given: Json, mode: str = "default") -> PermissionDecision:
        call = ToolCall(id="c", use_id="c", name=name, input=given)
        spec = SPEC.model_copy(update={"permission_mode": mode})
        folders = self.context().folders
        tool = self.tools[name].spec
        return await self.judge.judge(
            PermissionQuery(call=call, tool=tool, spec=spec, folders=folders, authority="person")
        )

    async def granted(self, name: str, given: Json, grants: tuple[PathGrant, ...]) -> str:
        """Run a call with these grants, and return the text that the agent reads."""
        context = replace(self.context(), grants=grants)
        try:
            await self.tools[name].prepare(given, context)
            return text_of(await self.tools[name].run(given, context))
        except ToolRefused as refusal:
            return f"refused: {refusal}"

    async def approved(self, name: str, given: Json) -> str:
        """Run a call that asks, and that a person approved."""
        decision = await self.decision(name, given)
        assert decision.decision == "ask", decision
        return await self.granted(name, given, decision.grants)


@pytest.fixture
def world(tmp_path: Path) -> GrantWorld:
    world = GrantWorld(tmp_path)
    world.lay_out()
    return world


def fill_in(given: Json, out: Path) -> Json:
    return {name: value.replace("{out}", str(out)) for name, value in given.items()}


@pytest.mark.parametrize("name", INPUTS)
async def test_what_a_person_approved_outside_the_workspace_is_done(world: GrantWorld, name: str) -> None:
    text = await world.approved(name, fill_in(INPUTS[name], world.outside))
    assert "refused" not in text
    if name == "write_file":
        assert (world.outside / "deep" / "new.txt").read_text() == "made"
    else:
        assert ("a.txt" if name == "glob" else "stands outside") in text


@pytest.mark.parametrize("name", INPUTS)
async def test_what_a_rule_allows_outside_the_workspace_is_done(world: GrantWorld, name: str) -> None:
    world.lay_out(f"Read(/{world.outside})", f"Read(/{world.outside}/**)", f"Edit(/{world.outside}/**)", "Bash(cat:*)")
    given = fill_in(INPUTS[name], world.outside)
    decision = await world.decision(name, given)
    assert decision.decision == "allow", decision
    assert "refused" not in await world.granted(name, given, decision.grants)


async def test_bypass_permissions_reaches_files_outside_as_it_says(world: GrantWorld) -> None:
    given: Json = {"path": f"{world.outside}/new.txt", "content": "made"}
    decision = await world.decision("write_file", given, "bypassPermissions")
    assert decision.decision == "allow"
    assert "refused" not in await world.granted("write_file", given, decision.grants)


async def test_a_file_outside_is_edited_once_it_was_read(world: GrantWorld) -> None:
    path = f"{world.outside}/a.txt"
    edit: Json = {"path": path, "old_text": "stands", "new_text": "stood"}
    decision = await world.decision("read_file", {"path": path})
    context = replace(world.context(), grants=decision.grants)
    outcome = await world.tools["read_file"].run({"path": path}, context)
    assert [getattr(event, "path", "") for event in outcome.events] == [path]
    assert "Edited" in await world.approved("edit_file", edit)
    assert (world.outside / "a.txt").read_text() == "it stood outside\n"


async def test_a_grant_covers_its_own_path_and_nothing_beside_it(world: GrantWorld) -> None:
    decision = await world.decision("read_file", {"path": f"{world.outside}/a.txt"})
    for name, given in (
        ("read_file", {"path": f"{world.outside}/b.txt"}),
        ("read_file", {"path": "other"}),
        ("write_file", {"path": f"{world.outside}/a.txt", "content": "x"}),
        ("grep", {"pattern": "asked", "path": str(world.outside)}),
    ):
        assert "was not approved" in await world.granted(name, given, decision.grants), name


async def test_the_runtimes_own_files_stay_closed_whatever_was_approved(world: GrantWorld) -> None:
    (world.base / "state" / "db").write_text("stands in the store")
    assert (await world.decision("read_file", {"path": f"{world.base}/state/db"})).decision == "deny"
    everything = (PathGrant(path=str(world.base), access="delete", understood=True),)
    assert "belongs to the runtime" in await world.granted("read_file", {"path": f"{world.base}/state/db"}, everything)
    for name, given in (("grep", {"pattern": "stands"}), ("glob", {"pattern": "**"})):
        text = await world.granted(name, {**given, "path": str(world.base)}, everything)
        assert "outside/a.txt" in text
        assert "state" not in text, name


async def test_a_link_that_moves_after_the_approval_shows_nothing_else(world: GrantWorld) -> None:
    decision = await world.decision("read_file", {"path": "way"})
    assert "stands outside" in await world.granted("read_file", {"path": "way"}, decision.grants)
    (world.root / "way").unlink()
    (world.root / "way").symlink_to(world.outside / "b.txt")
    assert "was not approved" in await world.granted("read_file", {"path": "way"}, decision.grants)


async def test_what_is_swapped_beneath_an_approved_path_is_never_followed(world: GrantWorld) -> None:
    """The approved file is swapped with a link to another file, and its folder with a link to another folder."""
    secret = world.outside / "secret"
    secret.mkdir()
    (secret / "f.txt").write_text("SECRET\n")
    for name, swapped, bait in (("one", "one/f.txt", "one/bait"), ("two", "two", "trap")):
        folder = world.outside / name
        folder.mkdir()
        (folder / "f.txt").write_text("granted\n")
        (world.outside / bait).symlink_to(secret / ("f.txt" if bait == "one/bait" else ""))
        read: Json = {"path": f"{folder}/f.txt"}
        edit: Json = {**read, "old_text": "SECRET", "new_text": "changed"}
        reads = (await world.decision("read_file", read)).grants
        edits = (await world.decision("edit_file", edit)).grants
        met = set[bool]()
        with swap_names(world.outside / swapped, world.outside / bait):
            for _ in range(150):
                text = await world.granted("read_file", read, reads)
                assert "SECRET" not in text
                met.add("granted" in text)
                assert "Edited" not in await world.granted("edit_file", edit, edits)
        assert True in met
    assert (secret / "f.txt").read_text() == "SECRET\n"


COMMANDS = {
    "cat {out}/kept": "kept",
    "echo x > {out}/made && cat {out}/made": "x",
    "sed -i s/kept/gone/ {out}/kept && cat {out}/kept": "gone",
    "rm {out}/kept && ls {out}": "",
    "mkdir -p {out}/a/b && ls {out}/a": "b",
    "cat {home}/.ssh/id_ed25519": "SECRET of ssh",
    "echo x > {home}/made && cat {home}/made": "x",
    "mkdir {home}/new && rmdir {home}/new && echo done": "done",
    "echo x > .mcp.json && cat .mcp.json": "x",
}


@pytest.mark.slow(keep=9)
@pytest.mark.parametrize("level", [0, 1, 2])
@pytest.mark.parametrize("text", COMMANDS)
async def test_an_approved_command_gets_through_the_sandbox(tmp_path: Path, text: str, level: int) -> None:
    require_level(level)
    create_folders(tmp_path)
    cage = Cage(tmp_path, level)
    command = text.format(out=cage.outside, home=cage.home)
    folders = Folders(cage.workspace, tmp_path / "results", tmp_path / "transcripts", (cage.state,))
    call = ToolCall(id="c", use_id="c", name="bash", input={"command": command})
    query = PermissionQuery(call=call, tool=shell_tools()[0].spec, spec=SPEC, folders=folders, authority="person")
    decision = await PolicyJudge((), (), ()).judge(query)
    assert decision.decision == "ask", decision
    keep = tmp_path / "data" / "session" / "call.out"
    ran = await cage.launcher.run(command, cage.workspace, timeout=20, keep=keep, grants=decision.grants)
    assert (ran.exit_code, ran.output.strip()) == (0, COMMANDS[text])


@pytest.mark.parametrize("level", [1, 2])
async def test_a_command_that_does_more_than_named_paths_gets_no_folder_of_a_home(tmp_path: Path, level: int) -> None:
    require_level(level)
    create_folders(tmp_path)
    cage = Cage(tmp_path, level)
    grants = (PathGrant(path=f"{cage.home}/log", access="write"),)
    keep = tmp_path / "data" / "session" / "call.out"
    command = f"echo x > {cage.home}/log; echo x > {cage.home}/.bashrc"
    await cage.launcher.run(command, cage.workspace, timeout=20, keep=keep, grants=grants)
    assert (cage.home / "log").read_text() == "x\n"
    assert not (cage.home / ".bashrc").exists()
    await cage.launcher.run(
        "true", cage.workspace, timeout=20, keep=keep, grants=(PathGrant(path=f"{cage.home}/unused", access="write"),)
    )
    assert not (cage.home / "unused").exists()


@pytest.mark.parametrize("level", [1, 2])
async def test_a_folder_that_is_opened_shows_nothing_of_the_runtime(tmp_path: Path, level: int) -> None:
    require_level(level)
    create_folders(tmp_path)
    cage = Cage(tmp_path, level)
    (cage.state / "db").write_text("store")
    keep = tmp_path / "data" / "session" / "call.out"
    for access in ("read", "write", "delete"):
        grant = PathGrant.model_validate({"path": str(tmp_path), "access": access, "understood": True})
        command = f"cat {cage.state}/db; echo x > {cage.state}/db"
        ran = await cage.launcher.run(command, cage.workspace, timeout=20, keep=keep, grants=(grant,))
        assert "store" not in ran.output
        assert (cage.state / "db").read_text() == "store"


@pytest.mark.parametrize("level", [1, 2])
async def test_a_folder_that_contains_the_workspace_is_read_and_the_workspace_stays_writable(
    tmp_path: Path, level: int
) -> None:
    require_level(level)
    create_folders(tmp_path)
    cage = Cage(tmp_path, level)
    keep = tmp_path / "data" / "session" / "call.out"
    for folder in (tmp_path, cage.workspace.parent):
        grant = PathGrant(path=str(folder), access="read")
        command = "cat ../outside/kept; echo x > made; echo y > ../outside/kept; cat made; rm made"
        ran = await cage.launcher.run(command, cage.workspace, timeout=20, keep=keep, grants=(grant,))
        assert "kept\n" in ran.output
        assert "x\n" in ran.output
        assert (cage.outside / "kept").read_text() == "kept\n"


@pytest.mark.slow(keep=3)
@pytest.mark.parametrize("level", [1, 2])
@pytest.mark.parametrize("folder", ["/tmp", "/", "/dev", "/proc"])
async def test_temporary_files_and_devices_work_while_a_command_reads_a_folder_of_the_machine(
    tmp_path: Path, level: int, folder: str
) -> None:
    require_level(level)
    create_folders(tmp_path)
    cage = Cage(tmp_path, level)
    keep = tmp_path / "data" / "session" / "call.out"
    command = (
        'echo x > "$(mktemp)" && echo y > "$TMPDIR/a" && cat "$TMPDIR/a" > /dev/null && echo z > made && rm made && '
        f"echo done; ls {folder} > listed; cat ../state/callboard.db ../home/.netrc; echo w > ../outside/kept"
    )
    ran = await cage.launcher.run(
        command, cage.workspace, timeout=20, keep=keep, grants=(PathGrant(path=folder, access="read"),)
    )
    assert "done\n" in ran.output
    assert "SECRET" not in ran.output
    assert (cage.outside / "kept").read_text() == "kept\n"
