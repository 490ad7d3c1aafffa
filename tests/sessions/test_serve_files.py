"""A `callboard serve` whose schedule files cannot be kept goes on, and tries again."""

from __future__ import annotations

import time
from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path

import anyio
import pytest
from tests.sessions.serving_here import LIMIT, SCENARIO
from tests.simulation.serving import one_shot

from callboard.adapters.storage.sqlite import open_store
from callboard.core.keys import schedule_key
from callboard.ports.notifier import Notifier
from callboard.ports.store import Put
from callboard.sessions import serve
from callboard.sessions.detached import start_detached
from callboard.sessions.options import IdentityOptions, ModelOptions, SessionOptions, WorkspaceOptions
from callboard.sessions.places import find_places
from callboard.sessions.serve_options import LogLine, Serving

pytestmark = pytest.mark.anyio
REMOTE = "CALLBOARD_WORKSPACE_REMOTE"


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


@dataclass
class Files:
    """A workspace that is no checkout, a person's folder, and what a `callboard serve` of it has said."""

    folder: Path
    lines: list[LogLine] = field(default_factory=list[LogLine])
    said: Notifier = field(default_factory=Notifier)

    @property
    def model(self) -> str:
        return f"rehearsal:{self.folder / 'scenario.yaml'}"

    def write(self) -> None:
        """Write a schedule file of the person."""
        schedules = self.folder / "config" / "callboard" / "schedules"
        schedules.mkdir(parents=True)
        (schedules / "roof.md").write_text("---\ncron: '@daily'\n---\nLook at the roof.\n")

    def serving(self) -> Serving:
        return Serving(self.folder / "workspace", model=self.model)

    def tell(self, line: LogLine) -> None:
        self.lines.append(line)
        self.said.notify()

    def has(self, kind: str, text: str) -> bool:
        return any(line.kind == kind and text in line.text for line in self.lines)

    async def until(self, holds: Callable[[], bool]) -> None:
        with anyio.fail_after(LIMIT):
            await self.said.until(holds)

    @asynccontextmanager
    async def served(self) -> AsyncGenerator[None]:
        """Serve during the block."""
        async with anyio.create_task_group() as group:
            group.start_soon(serve.serve, self.serving(), self.tell)
            yield
            group.cancel_scope.cancel()


@pytest.fixture
def files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Files:
    monkeypatch.setenv("HOME", str(tmp_path))
    for kind in ("STATE", "DATA", "CONFIG"):
        monkeypatch.setenv(f"XDG_{kind}_HOME", str(tmp_path / kind.lower()))
    (tmp_path / "workspace").mkdir()
    (tmp_path / "scenario.yaml").write_text(SCENARIO.format(latency=0))
    return Files(tmp_path)


async def test_files_whose_session_cannot_be_created_do_not_end_it(
    files: Files, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(serve, "RETRY", 0.1)
    with monkeypatch.context() as wrong:
        wrong.setenv(REMOTE, str(files.folder / "remote.git"))
        async with files.served():
            await files.until(lambda: files.has("serving", "workspace"))
            files.write()
            await files.until(lambda: files.has("trouble", "remote.git"))
            wrong.delenv(REMOTE)  # the person corrects it
            await files.until(lambda: files.has("files", "its schedule is added"))
            await files.until(lambda: files.has("hosting", "1 schedule"))
    (first, *_) = [line.text for line in files.lines if line.kind == "trouble"]
    assert first.startswith("the schedule files cannot be kept: ")
    assert first.endswith("; tried again in 0.1 s, or at SIGHUP")


async def test_with_once_other_sessions_run_although_the_files_fail(files: Files) -> None:
    workspace = files.folder / "workspace"
    options = SessionOptions(
        WorkspaceOptions(workspace), model=ModelOptions(files.model), identity=IdentityOptions(prompt="Work.")
    )
    session = (await start_detached(options)).session
    due = time.time() - 90
    store = await open_store(find_places(workspace).state)
    shot = one_shot(1, due).model_copy(update={"created_at": due - 60})
    await store.commit(Put(schedule_key(session, shot.id), shot.encode()))
    await store.aclose()
    files.write()
    serving = replace(files.serving(), once=True, model="rehearsal:gone.yaml")
    assert await serve.serve(serving, files.tell) == 3
    assert files.has("trouble", "the schedule files cannot be kept: gone.yaml")
    assert files.has("end", "done after")
    assert files.has("left", "its work is done, exit code 0")
