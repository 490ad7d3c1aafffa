"""Commands, permissions and answers: recorded in a run, and returned in a replay without running anything.

`tool_results` has the results of tools.

The offers of MCP servers are recorded, and a replay contacts no server. Their newest state applies to the whole replay.
If servers changed while the session's agents began, the replay's prompts differ, and the replay reports that.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any, Literal, TypeVar, cast

import anyio
from pydantic import TypeAdapter

from callboard.adapters.models.cassette.mail_order import DeliveryOrder
from callboard.adapters.models.cassette.recorder import Tape
from callboard.adapters.models.cassette.tool_results import NOT_HELD
from callboard.core.approvals.plans import AnswerDetails
from callboard.core.context.reminders import ReminderFacts
from callboard.core.team.worktrees import Worktree
from callboard.ports.environment import (
    Answer,
    Archive,
    Dice,
    PermissionDecision,
    PermissionPolicy,
    PermissionQuery,
    Surroundings,
)
from callboard.ports.mcp import Servers
from callboard.ports.tool import (
    SKILL_OUTPUT,
    CallContext,
    Finished,
    Folders,
    Launcher,
    Tool,
    ToolOutcome,
    ToolSpec,
)
from callboard.ports.worktrees import Check, Losses, MergeEnd, Removed, WorktreeActor, WorktreeFacts, WorktreeKeeper
from callboard.types.agent_spec import AgentSpec
from callboard.types.errors import ToolRefused
from callboard.types.lazy_dataclass import dataclass
from callboard.types.mcp import McpPrompt, McpResource, ServerEntry, ServerStatus
from callboard.types.records import Grant, Json, Request

T = TypeVar("T")

_GRANT = TypeAdapter[Grant](Grant)
_LOSSES = TypeAdapter(Losses)


@dataclass(frozen=True)
class RecordedLauncher:
    """A `Launcher` that records the output of commands in the texts of skills, which no tool call records."""

    real: Launcher
    tape: Tape

    @property
    def boot(self) -> str:
        return self.real.boot

    async def run(
        self, command: str, folder: Path, *, timeout: float, keep: Path, grants: Sequence[Grant] = ()
    ) -> Finished:
        finished = await self.real.run(command, folder, timeout=timeout, keep=keep, grants=grants)
        if keep.name.endswith(SKILL_OUTPUT):
            self.tape.keep("command", keep.stem, asdict(finished))
        return finished

    async def attend(
        self,
        command: str,
        folder: Path,
        *,
        timeout: float,
        keep: Path,
        grants: Sequence[Grant] = (),
        moved: anyio.Event,
    ) -> Finished | tuple[int, float]:
        return await self.real.attend(command, folder, timeout=timeout, keep=keep, grants=grants, moved=moved)

    async def start(self, command: str, folder: Path, output: Path, grants: Sequence[Grant] = ()) -> tuple[int, float]:
        return await self.real.start(command, folder, output, grants)

    async def wait(self, pid: int, started: float, output: Path) -> int | None:
        return await self.real.wait(pid, started, output)

    async def end(self, pid: int, started: float) -> bool:
        return await self.real.end(pid, started)

    def report(self, output: Path) -> str:
        return self.real.report(output)

    def allow(self, paths: Sequence[Path]) -> None:
        self.real.allow(paths)


@dataclass(frozen=True)
class ReplayedLauncher:
    """The `Launcher` of a replay: no process is started or ended; background commands end as recorded."""

    tape: Tape
    course: DeliveryOrder

    @property
    def boot(self) -> str:
        """Return the empty string: recorded pids have no meaning now."""
        return ""

    async def run(
        self, command: str, folder: Path, *, timeout: float, keep: Path, grants: Sequence[Grant] = ()
    ) -> Finished:
        """Return the recorded end of a task's check, or of a command in a skill's text.

        Both are recorded under the name of their output. Raises `ToolRefused`.
        """
        printed = self.tape.value_of("command", keep.stem)
        if printed is not None:
            return Finished(**printed)
        recorded = self.tape.value_of("tool", keep.stem) or {"data": {}}
        check = recorded["data"].get("check")
        if check is None:
            raise ToolRefused(NOT_HELD)
        output = str(check["output"])
        return Finished(check["exit_code"], output, False, len(output))

    async def attend(
        self,
        command: str,
        folder: Path,
        *,
        timeout: float,
        keep: Path,
        grants: Sequence[Grant] = (),
        moved: anyio.Event,
    ) -> Finished:
        """Raise `ToolRefused`: results of `bash` are recorded as those of the tool."""
        raise ToolRefused(NOT_HELD)

    async def start(self, command: str, folder: Path, output: Path, grants: Sequence[Grant] = ()) -> tuple[int, float]:
        """Raise `ToolRefused`."""
        raise ToolRefused(NOT_HELD)

    def report(self, output: Path) -> str:
        return ""

    def allow(self, paths: Sequence[Path]) -> None:
        return None

    async def wait(self, pid: int, started: float, output: Path) -> int | None:
        """Return the recorded exit code at once.

        For a command that the agent stopped, or that timed out, wait until that happens.
        """
        recorded = self.tape.value_of("background", str(output)) or {}
        if recorded.get("status") == "timed_out":
            await anyio.sleep_forever()  # until its deadline, which has passed by now
        if recorded.get("status") == "stopped":
            await self.course.wait_stopped(output)
        return recorded.get("exit_code")

    async def end(self, pid: int, started: float) -> bool:
        """Do nothing: the recorded pid has no meaning now."""
        return False


@dataclass(frozen=True)
class TapedArchive:
    """An `Archive` that records the last lines of background commands' output, and returns them in a replay."""

    archive: Archive
    tape: Tape

    @property
    def shares(self) -> bool:
        return self.archive.shares

    def folders(self, spec: AgentSpec) -> Folders:
        return self.archive.folders(spec)

    async def keep(self, path: str, text: str) -> None:
        await self.archive.keep(path, text)

    async def extend(self, path: str, first: int, work: Callable[[], tuple[T, Sequence[bytes]]]) -> T:
        return await self.archive.extend(path, first, work)

    async def aside(self, work: Callable[[], T]) -> T:
        return await self.archive.aside(work)

    async def ends_of(self, path: str) -> str:
        recorded = self.tape.value_of("ends", path)
        if recorded is not None:
            return str(recorded["text"])
        text = await self.archive.ends_of(path)
        self.tape.keep("ends", path, {"text": text})
        return text


@dataclass(frozen=True)
class TapedSurroundings:
    """`Surroundings` whose commits are recorded: a replay gets the commit that was checked out at the recording."""

    world: Surroundings
    tape: Tape

    async def look(self, spec: AgentSpec, now: float) -> ReminderFacts:
        """Return the current surroundings. The script decides which reminders the agent gets."""
        return await self.world.look(spec, now)

    async def commit(self, folder: str, source_id: str) -> str:
        recorded = self.tape.value_of("commit", source_id)
        if recorded is not None:
            return str(recorded["commit"])
        commit = await self.world.commit(folder, source_id)
        self.tape.keep("commit", source_id, {"commit": commit})
        return commit


@dataclass(frozen=True)
class TapedWorktrees:
    """A `WorktreeKeeper` that records what is in worktrees: a replay, which has no folders, tells the same of them."""

    keeper: WorktreeKeeper
    tape: Tape

    async def losses(self, name: str) -> Losses:
        recorded = self.tape.value_of("losses", name)
        if recorded is not None:
            return _LOSSES.validate_python(recorded)
        losses = await self.keeper.losses(name)
        self.tape.keep("losses", name, asdict(losses))
        return losses

    def path(self, name: str) -> Path:
        return self.keeper.path(name)

    async def worktrees(self) -> Sequence[Worktree]:
        return await self.keeper.worktrees()

    async def name_for(self, requested: str, call: str) -> str:
        return await self.keeper.name_for(requested, call)

    async def create(self, name: str, author: WorktreeActor, base: str = "") -> Worktree:
        return await self.keeper.create(name, author, base)

    async def open(self, name: str) -> tuple[Path, str]:
        return await self.keeper.open(name)

    async def keep(self, name: str, author: WorktreeActor) -> Worktree:
        return await self.keeper.keep(name, author)

    async def remove(self, name: str, author: WorktreeActor, agreed: Sequence[str] | None = None) -> Removed:
        return await self.keeper.remove(name, author, agreed)

    async def merge(self, name: str, author: WorktreeActor, check: Check | None = None) -> MergeEnd:
        return await self.keeper.merge(name, author, check)

    async def outcome(self, call: str) -> str:
        return await self.keeper.outcome(call)

    async def recover(self) -> Sequence[str]:
        return await self.keeper.recover()

    async def facts(self) -> Sequence[WorktreeFacts]:
        return await self.keeper.facts()


@dataclass(frozen=True)
class TapedJudge:
    """`PermissionPolicy` whose decisions are recorded.

    In a replay nothing runs, so the recorded decisions hold whatever the local rules are.
    """

    rules: PermissionPolicy
    tape: Tape

    async def judge(self, query: PermissionQuery) -> PermissionDecision:
        recorded = self.tape.value_of("ruling", query.call.id)
        if recorded is not None:
            person_only = bool(recorded.get("person_only"))
            mode = str(recorded.get("mode", ""))
            level = int(recorded.get("level", 0))
            grants = tuple(_GRANT.validate_python(grant) for grant in recorded.get("grants", ()))
            return PermissionDecision(
                recorded["decision"],
                recorded["rule"],
                recorded["why"],
                recorded["reads_only"],
                person_only,
                mode,
                level,
                grants,
            )
        decision = await self.rules.judge(query)
        grants = [grant.model_dump() for grant in decision.grants]
        self.tape.keep("ruling", query.call.id, asdict(decision) | {"grants": grants})
        return decision

    async def always(self, query: PermissionQuery) -> tuple[str, ...]:
        recorded = self.tape.value_of("ruling", f"{query.call.id}.always")
        if recorded is not None:
            return tuple(str(rule) for rule in recorded["rules"])
        always = await self.rules.always(query)
        self.tape.keep("ruling", f"{query.call.id}.always", {"rules": list(always)})
        return always


def taped_facts(tape: Tape, agent: str, real: tuple[str, ...]) -> tuple[str, ...]:
    """Return the facts about the machine in an agent's prompt.

    Record the facts; in a replay, also on another machine, repeat the recorded ones.
    """
    recorded = tape.value_of("facts", agent)
    if recorded is not None:
        return tuple(str(line) for line in recorded["lines"])
    tape.keep("facts", agent, {"lines": list(real)})
    return real


@dataclass(frozen=True)
class TapedDice:
    """`Dice` whose draws are recorded and repeated in a replay."""

    dice: Dice
    tape: Tape

    def draw(self) -> float:
        return self.tape.draw("session", self.dice.draw())


@dataclass(frozen=True)
class ReplayedApprover:
    """Approver that repeats the answers of users and policies.

    A request without a recorded answer is refused when no more events come.
    """

    tape: Tape
    course: DeliveryOrder
    permissions: bool = True
    """False if tools run: a cassette grants no permissions."""

    async def answer(self, request: Request) -> Answer | None:
        """Return the recorded answer.

        None for requests that an agent of the session answers, and for permissions that a cassette cannot grant.
        """
        if request.kind == "permission" and not self.permissions:
            return None
        recorded = self.tape.value_of("answer", request.id)
        if recorded is None:
            await self.course.stuck()
            status: Literal["answered", "rejected"] = "answered" if request.kind == "question" else "rejected"
            return Answer(status, "person", "the cassette holds no answer to this request")
        if recorded["by"] not in ("person", "policy"):
            return None
        word = AnswerDetails(
            int(recorded.get("option") or 0), str(recorded.get("plan") or ""), mode=str(recorded.get("mode") or "")
        )
        return Answer(recorded["status"], recorded["by"], recorded["reason"], word, input=recorded.get("input"))


_KEY = "all"
_REPLAYED = "a replay reaches no MCP server"


@dataclass(frozen=True)
class AbsentServerTool:
    """Tool of an absent server. Its results are on the tape."""

    spec: ToolSpec

    def key(self, tool_input: Json, folders: Folders) -> str:
        return ""

    async def prepare(self, tool_input: Json, context: CallContext) -> Json:
        return {}

    async def run(self, tool_input: Json, context: CallContext) -> ToolOutcome:
        raise ToolRefused(_REPLAYED)

    async def repair(self, tool_input: Json, marks: Json, context: CallContext) -> ToolOutcome | None:
        raise ToolRefused(_REPLAYED)


class RecordedServers:
    """Servers of a session that is being recorded.

    Implements the port `Servers`, and records its state at each change.
    """

    def __init__(self, servers: Servers, tape: Tape) -> None:
        self._servers = servers
        self._tape = tape
        self._kept = -1

    @property
    def revision(self) -> int:
        return self._servers.revision

    def now(self) -> Sequence[ServerStatus]:
        return self._servers.now()

    def tools(self) -> Mapping[str, Tool]:
        tools = self._servers.tools()
        if self._kept != self._servers.revision:
            self._kept = self._servers.revision
            specs = [asdict(tool.spec) for tool in tools.values()]
            self._tape.keep("servers", _KEY, {"now": [asdict(server) for server in self.now()], "tools": specs})
        return tools

    async def changed(self, since: int) -> int:
        return await self._servers.changed(since)

    async def ready(self) -> None:
        await self._servers.ready()

    async def connect(self, name: str) -> ServerStatus:
        return await self._servers.connect(name)

    async def switch_off(self, name: str) -> ServerStatus:
        return await self._servers.switch_off(name)

    async def add(self, entry: ServerEntry) -> None:
        await self._servers.add(entry)

    async def remove(self, name: str) -> None:
        await self._servers.remove(name)

    async def call(self, name: str, tool_input: Json) -> Sequence[Json]:
        return await self._servers.call(name, tool_input)

    async def prompt(self, server: str, name: str, arguments: Mapping[str, str]) -> Sequence[Json]:
        return await self._servers.prompt(server, name, arguments)

    async def read(self, server: str, uri: str) -> Sequence[Json]:
        return await self._servers.read(server, uri)


class ReplayedServers:
    """Servers of a replay. Implements the port `Servers`."""

    revision = 1

    def __init__(self, recorded: Json) -> None:
        self._now = [_now(server) for server in cast("Sequence[dict[str, Any]]", recorded["now"])]
        specs = [ToolSpec(**spec) for spec in cast("Sequence[dict[str, Any]]", recorded["tools"])]
        self._tools: Mapping[str, Tool] = {spec.name: AbsentServerTool(spec) for spec in specs}

    def now(self) -> Sequence[ServerStatus]:
        return self._now

    def tools(self) -> Mapping[str, Tool]:
        return self._tools

    async def changed(self, since: int) -> int:
        if since == self.revision:
            await anyio.sleep_forever()
        return self.revision

    async def ready(self) -> None:
        """Do nothing: the servers are in their recorded state."""

    async def connect(self, name: str) -> ServerStatus:
        raise ToolRefused(_REPLAYED)

    async def switch_off(self, name: str) -> ServerStatus:
        raise ToolRefused(_REPLAYED)

    async def add(self, entry: ServerEntry) -> None:
        """Do nothing: no server is contacted."""

    async def remove(self, name: str) -> None:
        """Do nothing: no server is contacted."""

    async def call(self, name: str, tool_input: Json) -> Sequence[Json]:
        raise ToolRefused(_REPLAYED)

    async def prompt(self, server: str, name: str, arguments: Mapping[str, str]) -> Sequence[Json]:
        raise ToolRefused(_REPLAYED)

    async def read(self, server: str, uri: str) -> Sequence[Json]:
        raise ToolRefused(_REPLAYED)


def replayed_servers(tape: Tape) -> ReplayedServers | None:
    """Return the servers of the recorded session; None if it had none."""
    recorded = tape.value_of("servers", _KEY)
    return None if recorded is None else ReplayedServers(recorded)


def _now(recorded: dict[str, Any]) -> ServerStatus:
    prompts = tuple(
        McpPrompt(
            prompt["server"],
            prompt["name"],
            prompt["description"],
            tuple((n, d, bool(r)) for n, d, r in prompt["arguments"]),
        )
        for prompt in recorded["prompts"]
    )
    resources = tuple(McpResource(**resource) for resource in recorded["resources"])
    plain: dict[str, Any] = {**recorded, "tools": tuple(str(name) for name in recorded["tools"])}
    return replace(ServerStatus(**plain), prompts=prompts, resources=resources)
