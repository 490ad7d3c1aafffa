"""A context for tools that reach outside the store: real folders and the real launcher, but no other agents."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, cast

from callboard.adapters.processes.launcher import ShellLauncher
from callboard.ports.tool import BackgroundTask, CallContext, Folders, Tool, ToolOutcome
from callboard.types.agent_spec import AgentSpec
from callboard.types.errors import ToolRefused
from callboard.types.events import FileSeen

ENVIRONMENT = {"PATH": "/usr/local/bin:/usr/bin:/bin", "HOME": "/root", "LANG": "C.UTF-8"}


@dataclass
class OutsideWorld:
    """One agent's folders. `run` acts like the engine: it prepares and runs the call, and applies the events."""

    base: Path
    environment: Mapping[str, str] = field(default_factory=lambda: dict(ENVIRONMENT))
    files: dict[str, str] = field(default_factory=dict[str, str])
    background: dict[str, BackgroundTask] = field(default_factory=dict[str, BackgroundTask])
    calls: int = 0

    def __post_init__(self) -> None:
        self.base = self.base.resolve()
        for name in ("work", "results", "transcripts", "state"):
            (self.base / name).mkdir(exist_ok=True)

    @property
    def root(self) -> Path:
        return self.base / "work"

    @property
    def results(self) -> Path:
        return self.base / "results"

    @property
    def launcher(self) -> ShellLauncher:
        return ShellLauncher(self.root, self.environment)

    def write(self, name: str, content: str | bytes) -> Path:
        """Write a file of the workspace, as another writer than the agent."""
        path = self.root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content.encode() if isinstance(content, str) else content)
        return path

    def context(self, call: str = "") -> CallContext:
        if not call:
            self.calls += 1
            call = f"call_{self.calls}"
        missing = cast("Any", None)
        return CallContext(
            session="s1",
            spec=AgentSpec(name="lead", kind="lead", agent_type="lead", model="m"),
            incarnation=1,
            call=call,
            depth=0,
            now=1000.0,
            folders=Folders(self.root, self.results, self.base / "transcripts", (self.base / "state",)),
            files=self.files,
            board=missing,
            launcher=self.launcher,
            spawner=missing,
            skills=missing,
            background=self.background,
            progress=lambda text: None,
        )

    async def run(self, tool: Tool, call: str = "", **tool_input: Any) -> ToolOutcome:
        """Prepare and run a call, and apply its events; a refusal becomes an error outcome, as in the engine."""
        context = self.context(call)
        try:
            await tool.prepare(tool_input, context)
            outcome = await tool.run(tool_input, context)
        except ToolRefused as refusal:
            return ToolOutcome(str(refusal), is_error=True, data={"refused": True})
        for event in outcome.events:
            if isinstance(event, FileSeen):
                self.files[event.path] = event.digest
        return outcome


def text_of(outcome: ToolOutcome) -> str:
    """Return the text of an outcome that contains nothing but text."""
    assert isinstance(outcome.content, str)
    return outcome.content
