"""What tools, commands and answers gave a run: kept while it is recorded, given back in a replay without doing it.

A replay starts no process and changes no file of the workspace. Two kinds of tools run in it all the same: those whose
effect is a write to the session's own store, which is thrown away (`complete_task` among them, whose check ends as it
did), and `task`, whose subagent is replayed. What the
cassette does not hold is an error result that says so.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Literal, cast

import anyio

from callboard.adapters.cassette import Tape
from callboard.adapters.course import Course
from callboard.core.asking.plans import Word
from callboard.core.context.reminders import Around
from callboard.core.permission.lifts import Lift
from callboard.ports.store import Write
from callboard.ports.tool import SKILL_OUTPUT, Finished, Folders, Launcher, Tool, ToolContext, ToolOutcome, ToolSpec
from callboard.ports.world import Answer, Archive, Dice, Judge, Ruling, Surroundings
from callboard.words.errors import ToolRefused
from callboard.words.events import Event, decode_event
from callboard.words.specs import AgentSpec
from callboard.words.values import Cause, Json, Request, ToolCall

NOT_HELD = "The cassette holds no result of this call, and a replay runs no tools (--live-tools does)."


@dataclass(frozen=True)
class RecordedTool:
    """A tool that runs, and what it changed of its agent is kept. Its result is an event, kept by the course."""

    tool: Tool
    tape: Tape

    @property
    def spec(self) -> ToolSpec:
        return self.tool.spec

    def key(self, given: Json) -> str:
        return self.tool.key(given)

    async def prepare(self, given: Json, context: ToolContext) -> Json:
        return await self.tool.prepare(given, context)

    async def run(self, given: Json, context: ToolContext) -> ToolOutcome:
        return self._kept(await self.tool.run(given, context), context.call)

    async def repair(self, given: Json, marks: Json, context: ToolContext) -> ToolOutcome | None:
        outcome = await self.tool.repair(given, marks, context)
        return None if outcome is None else self._kept(outcome, context.call)

    def _kept(self, outcome: ToolOutcome, call: str) -> ToolOutcome:
        if outcome.events:
            changes = [json.loads(event.encode()) for event in outcome.events]
            self.tape.keep("changes", call, {"events": changes})
        return outcome


@dataclass(frozen=True)
class ReplayedTool:
    """A tool that does not run: its recorded outcome is returned."""

    tool: Tool
    tape: Tape

    @property
    def spec(self) -> ToolSpec:
        return self.tool.spec

    def key(self, given: Json) -> str:
        return self.tool.key(given)

    async def prepare(self, given: Json, context: ToolContext) -> Json:
        """Nothing is looked at."""
        return {}

    async def run(self, given: Json, context: ToolContext) -> ToolOutcome:
        """What was recorded, or an error result that says that nothing was."""
        kept = self.tape.found("tool", context.call)
        if kept is None:
            return ToolOutcome(NOT_HELD, is_error=True)
        changes = self.tape.found("changes", context.call) or {"events": []}
        events = tuple(decode_event(json.dumps(event).encode()) for event in changes["events"])
        return _outcome(kept, events=events)

    async def repair(self, given: Json, marks: Json, context: ToolContext) -> ToolOutcome | None:
        """Nothing was begun."""
        return None


@dataclass(frozen=True)
class ReplayedStoreTool:
    """A tool that changes the session's rows: it does so in its recorded turn, and says what it said then."""

    tool: Tool
    tape: Tape
    course: Course

    @property
    def spec(self) -> ToolSpec:
        return self.tool.spec

    def key(self, given: Json) -> str:
        return self.tool.key(given)

    async def prepare(self, given: Json, context: ToolContext) -> Json:
        return await self.tool.prepare(given, context)

    async def run(self, given: Json, context: ToolContext) -> ToolOutcome:
        """Its effect, with the recorded text: that may speak of what others were just doing."""
        await self.course.turn_of(context.call)
        kept = self.tape.found("tool", context.call)
        try:
            outcome = await self.tool.run(given, context)
        except ToolRefused:
            if kept is None or not kept["is_error"]:
                raise
            return _outcome(kept)
        if kept is None or kept["is_error"] != outcome.is_error:
            return outcome
        return replace(outcome, content=_outcome(kept).content)

    async def repair(self, given: Json, marks: Json, context: ToolContext) -> ToolOutcome | None:
        return await self.tool.repair(given, marks, context)


def _outcome(kept: Json, *, events: tuple[Event, ...] = (), writes: tuple[Write, ...] = ()) -> ToolOutcome:
    content = cast("Sequence[Json]", kept["content"])
    return ToolOutcome(content, kept["is_error"], writes, events, kept["data"], kept["ends_turn"])


@dataclass(frozen=True)
class RecordedLauncher:
    """A `Launcher` that keeps what commands in the texts of skills printed: no tool call does."""

    real: Launcher
    tape: Tape

    @property
    def boot(self) -> str:
        return self.real.boot

    async def run(self, command: str, folder: Path, timeout: float, keep: Path) -> Finished:
        finished = await self.real.run(command, folder, timeout, keep)
        if keep.name.endswith(SKILL_OUTPUT):
            self.tape.keep("command", keep.stem, asdict(finished))
        return finished

    async def start(self, command: str, folder: Path, output: Path) -> tuple[int, float]:
        return await self.real.start(command, folder, output)

    async def wait(self, pid: int, started: float, output: Path) -> int | None:
        return await self.real.wait(pid, started, output)

    async def end(self, pid: int, started: float) -> bool:
        return await self.real.end(pid, started)


@dataclass(frozen=True)
class ReplayedLauncher:
    """The `Launcher` of a replay: no process is started or ended, background commands end as they did."""

    tape: Tape
    course: Course

    @property
    def boot(self) -> str:
        """Empty: pids of another time mean nothing here."""
        return ""

    async def run(self, command: str, folder: Path, timeout: float, keep: Path) -> Finished:
        """How the check of a task ended then, or a command in a skill's text: both are kept by the name of its output.
        Raises `ToolRefused`."""
        printed = self.tape.found("command", keep.stem)
        if printed is not None:
            return Finished(**printed)
        kept = self.tape.found("tool", keep.stem) or {"data": {}}
        check = kept["data"].get("check")
        if check is None:
            raise ToolRefused(NOT_HELD)
        output = str(check["output"])
        return Finished(check["exit_code"], output, False, len(output))

    async def start(self, command: str, folder: Path, output: Path) -> tuple[int, float]:
        """Raises `ToolRefused`."""
        raise ToolRefused(NOT_HELD)

    async def wait(self, pid: int, started: float, output: Path) -> int | None:
        """The recorded exit code, at once; for one that the agent stopped or that ran out of time, when that is so."""
        kept = self.tape.found("background", str(output)) or {}
        if kept.get("status") == "timed_out":
            await anyio.sleep_forever()  # until its deadline, which has passed since
        if kept.get("status") == "stopped":
            await self.course.stopped(output)
        return kept.get("exit_code")

    async def end(self, pid: int, started: float) -> bool:
        """There is nothing to end: the pid is one of another time."""
        return False


@dataclass(frozen=True)
class TapedArchive:
    """An `Archive` whose tails of background commands' output are kept, and given back in a replay."""

    archive: Archive
    tape: Tape

    def folders(self, spec: AgentSpec) -> Folders:
        return self.archive.folders(spec)

    async def keep(self, path: str, text: str) -> None:
        await self.archive.keep(path, text)

    async def ends_of(self, path: str) -> str:
        kept = self.tape.found("ends", path)
        if kept is not None:
            return str(kept["text"])
        text = await self.archive.ends_of(path)
        self.tape.keep("ends", path, {"text": text})
        return text


@dataclass(frozen=True)
class TapedSurroundings:
    """`Surroundings` whose commits are kept: a replay finds the one that was checked out then."""

    world: Surroundings
    tape: Tape

    async def look(self, spec: AgentSpec, now: float) -> Around:
        """As it is: what is told of it is the script's."""
        return await self.world.look(spec, now)

    async def commit(self, folder: str, why: str) -> str:
        kept = self.tape.found("commit", why)
        if kept is not None:
            return str(kept["commit"])
        commit = await self.world.commit(folder, why)
        self.tape.keep("commit", why, {"commit": commit})
        return commit


@dataclass(frozen=True)
class TapedJudge:
    """A `Judge` whose rulings are kept. In a replay nothing runs, so they hold whatever the rules of this place say."""

    rules: Judge
    tape: Tape

    async def judge(
        self,
        call: ToolCall,
        tool: ToolSpec,
        spec: AgentSpec,
        folders: Folders,
        authority: Cause,
        lifts: Sequence[Lift] = (),
    ) -> Ruling:
        kept = self.tape.found("ruling", call.id)
        if kept is not None:
            theirs, mode, level = bool(kept.get("person_only")), str(kept.get("mode", "")), int(kept.get("level", 0))
            return Ruling(kept["decision"], kept["rule"], kept["why"], kept["reads_only"], theirs, mode, level)
        ruling = await self.rules.judge(call, tool, spec, folders, authority, lifts)
        self.tape.keep("ruling", call.id, asdict(ruling))
        return ruling

    async def always(
        self,
        call: ToolCall,
        tool: ToolSpec,
        spec: AgentSpec,
        folders: Folders,
        authority: Cause,
        lifts: Sequence[Lift] = (),
    ) -> tuple[str, ...]:
        kept = self.tape.found("ruling", f"{call.id}.always")
        if kept is not None:
            return tuple(str(rule) for rule in kept["rules"])
        found = await self.rules.always(call, tool, spec, folders, authority, lifts)
        self.tape.keep("ruling", f"{call.id}.always", {"rules": list(found)})
        return found


def taped_facts(tape: Tape, agent: str, real: tuple[str, ...]) -> tuple[str, ...]:
    """What an agent's prompt says of the machine: kept, and said again in a replay on another one."""
    kept = tape.found("facts", agent)
    if kept is not None:
        return tuple(str(line) for line in kept["lines"])
    tape.keep("facts", agent, {"lines": list(real)})
    return real


@dataclass(frozen=True)
class TapedDice:
    """`Dice` whose draws are kept, and drawn again in a replay."""

    dice: Dice
    tape: Tape

    def draw(self) -> float:
        return self.tape.draw("session", self.dice.draw())


@dataclass(frozen=True)
class ReplayedApprover:
    """Answers as people and policies did. What nobody answered then is refused when nothing else goes on."""

    tape: Tape
    course: Course
    permissions: bool = True
    """False where tools run: a cassette gives nobody a right."""

    async def answer(self, request: Request) -> Answer | None:
        """None for what an agent of the session answers, and for permissions that are not the cassette's to give."""
        if request.kind == "permission" and not self.permissions:
            return None
        kept = self.tape.found("answer", request.id)
        if kept is None:
            await self.course.stuck()
            status: Literal["answered", "rejected"] = "answered" if request.kind == "question" else "rejected"
            return Answer(status, "person", "the cassette holds no answer to this request")
        if kept["by"] not in ("person", "policy"):
            return None
        word = Word(int(kept.get("option") or 0), str(kept.get("plan") or ""))
        return Answer(kept["status"], kept["by"], kept["reason"], word, input=kept.get("input"))
