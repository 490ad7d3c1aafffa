"""A session that this process hosts: its lifetime, its end, and pieces of work that a program gives to its agents.

A piece of work (`WorkItem`) comes from a program, without a model in between; workflows consist of them. Each runs as a
subagent of the lead, under its rules and budgets. Its `call` identifies it: after a crash the same work finds the same
agent, which continues from its journal.
"""

from __future__ import annotations

import json
import secrets
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial

import anyio
import anyio.to_thread
import structlog

from callboard.adapters.extensions.output_styles import Voice
from callboard.adapters.processes.tool_ancestry import refuse_inside_tool
from callboard.adapters.tools.backups import FileBackups, FileRestore
from callboard.core.agent.state import AgentState
from callboard.core.decoding import read_value
from callboard.core.keys import session_key, subagent_suffix
from callboard.core.messaging.envelopes import PLAIN_PROMPT, PromptExtras
from callboard.core.team.open_work import DeniedCall, StoppedCommand
from callboard.core.tool_access import tools_for
from callboard.engine.commands import LEAD_ENDED, model_command, with_prompt
from callboard.engine.hooks.registry import HookRegistry
from callboard.engine.operations.worktree import unmerged_worktrees
from callboard.engine.recall import recall
from callboard.engine.team.renew import changes_since
from callboard.engine.team.supervisor import Team
from callboard.ports.mcp import Servers
from callboard.ports.store import Fence, Put, Store, Write
from callboard.sessions.base import OpenSession
from callboard.sessions.checkpoints import Checkpoints
from callboard.sessions.compose import model_notes
from callboard.sessions.inspect.serving import fires_again
from callboard.sessions.model_source import ModelSource
from callboard.sessions.options import CommandsAtRest, HostingOptions
from callboard.sessions.person_actions import say_as_person, write_schedule_as_person
from callboard.sessions.prepare import PreparedSession
from callboard.sessions.result import (
    DONE,
    FAILED,
    DeniedCalls,
    RunEnd,
    RunOutcome,
    advice_after,
    outcome_of,
)
from callboard.types.agent_spec import AgentSpec
from callboard.types.errors import CallboardError, Conflict, LimitReached, ToolRefused, UsageError
from callboard.types.lazy_dataclass import dataclass
from callboard.types.records import Budget, PermissionMode, Request, SessionRow
from callboard.types.schedules import Schedule
from callboard.types.settings import Settings
from callboard.types.skills import PersonCommand, Plugin

BEGINS_WITHIN = 10.0
"""Time limit, in seconds, for the lead's life to begin."""
GO_ON = "Go on where you stopped."
"""Prompt that `callboard resume` sends, on behalf of the person, to a lead whose last turn was cut short."""

log = structlog.get_logger("callboard.session")


@dataclass(frozen=True, slots=True)
class HostingFacts:
    """Facts about a session from its opening, for front ends."""

    refused: tuple[str, ...]
    """Files of agents, skills and plugins that are not used as they are, a line each."""
    agent_types: Callable[[], Mapping[str, str]]
    """Function that returns name -> description of each agent type that the session can start now."""
    reread: Callable[[], object]
    """Blocking function that reads the files of agents, skills and commands now, also those of plugins."""
    level: int
    """Sandbox level of its commands, 0 to 3."""
    cut_short: bool = False
    """True if the lead's last turn failed, reached a limit or was interrupted."""
    backups: FileBackups | None = None
    """Copies of files from before agents changed them; None: none are made."""
    plugins: tuple[Plugin, ...] = ()
    """Plugins that the session uses."""
    refused_plugins: tuple[tuple[str, str], ...] = ()
    """Path and reason of each plugin that could not be loaded."""
    voice: Voice = Voice()
    """Manner of the lead's answers."""
    checkpoints: Checkpoints | None = None
    """Checkpoints of the workspace; None: the session has no remote."""
    answerable: bool = False
    """True if a person may answer questions while this process hosts the session."""


class HostedSession(OpenSession):
    """Session that this process hosts, for front ends."""

    beside_host = False

    def __init__(
        self,
        prepared: PreparedSession,
        team: Team,
        source: ModelSource,
        options: HostingOptions,
        *,
        denied: DeniedCalls,
        facts: HostingFacts,
    ) -> None:
        runtime = team.runtime
        super().__init__(
            prepared.row,
            prepared.places,
            runtime.services.store,
            rows=runtime.rows,
            clock=runtime.clock,
            model=source.chosen.name,
            agent_types=facts.agent_types,
            level=facts.level,
        )
        self._runtime = runtime
        self._team = team
        now = runtime.clock.now()
        self._earlier = frozenset(
            r.id for r in runtime.rows.requests() if r.status != "pending" or (r.expires_at or r.created_at) < now
        )
        """Requests that were closed, or past their deadline, before this process opened the session."""
        self._source = source
        self.voice = facts.voice
        self._cut_short = facts.cut_short
        self._backups = facts.backups
        self._checkpoints = facts.checkpoints
        self._answerable = facts.answerable
        self.plugins = facts.plugins
        self.refused_plugins = facts.refused_plugins
        self._reread = facts.reread
        self._denied = denied
        configuration = (*prepared.loaded.notes, *model_notes(source.chosen))
        self._notes = (*(f"configuration: {note}" for note in configuration), *facts.refused)
        self._rules = prepared.loaded.permission_rules()
        self._with_schedules = options.with_schedules
        self._commands_at_rest: CommandsAtRest = "wait" if prepared.replay else options.commands_at_rest
        self._awaited = frozenset[str]()
        """Ids of background commands for which the session has already waited while at rest: it waits for each only
        once."""
        self._at_end = prepared.loaded.settings.background.at_end
        self._stopped: tuple[StoppedCommand, ...] = ()
        self._chosen_mode: PermissionMode | None = None
        """Permission mode that this resume sets for the lead; None: the lead keeps its own."""

    async def reread_files(self) -> None:
        """Read the files of agents, skills and commands now; otherwise they are read soon after a change."""
        await anyio.to_thread.run_sync(self._reread)

    def state(self, name: str, incarnation: int | None = None) -> AgentState | None:
        return self._team.state(name, incarnation)

    def written_rules(self) -> list[tuple[str, str, str]]:
        return self._rules

    async def say(self, text: str, to: str = "lead", extras: PromptExtras = PLAIN_PROMPT) -> None:
        try:
            await self.name_session(text)
        except CallboardError:  # the name is only for lists: the message is sent without it
            log.exception("session could not be named", session=self.id)
        nonce = self._source.nonce(secrets.token_hex(8))
        await say_as_person(self._store, self.id, text, to=to, now=self._now, nonce=nonce, hosted=True, extras=extras)

    def commands(self) -> Sequence[PersonCommand]:
        source = self._runtime.services.prompt_source
        return (*self._runtime.services.skills.commands(), *(source.prompts() if source is not None else ()))

    def awaits_trust(self, name: str) -> bool:
        return self._runtime.services.skills.awaits_trust(name)

    async def rewind_files(self, message: str, *, dry: bool = False) -> Sequence[FileRestore]:
        """Restore the files that tools have changed since a message of the lead, by its UUID.

        `dry`: only compute the changes. Raises `UsageError` for an unknown message, if no copies are made, and
        inside a tool's process.
        """
        refuse_inside_tool("Restoring files")
        lead = self.state("lead")
        if self._backups is None or lead is None or lead.identity.spec is None:
            raise UsageError("no copies of files are made: start the session with file checkpointing")
        folders = self._runtime.services.archive.folders(lead.me)
        changed = await changes_since(self._store, self.id, [row.name for row in self._rows.agents()], message)
        restores = [
            await anyio.to_thread.run_sync(partial(self._backups.restore, path, digest, folders, dry=dry))
            for path, digest in changed.items()
        ]
        return [restore for restore in restores if restore is not None]

    async def checkpoint(self) -> None:
        """Save and push the workspace and all worktrees now, for another host that is to continue the session.

        Does nothing for a session without a remote. A failure is reported as a notice. The end of the session makes a
        checkpoint by itself.
        """
        if self._checkpoints is not None:
            await self._checkpoints.save()

    async def add_schedule(self, schedule: Schedule) -> None:
        """Add a schedule to this session. Raises `Conflict` if its id exists.

        A schedule without a time of creation begins now: times before it were not missed.
        """
        if not schedule.created_at:
            schedule = schedule.model_copy(update={"created_at": self._now})
        await write_schedule_as_person(self._store, self.id, schedule, expected=0, fence=self._fence, hosted=True)

    async def go_on(self) -> None:
        """Continue a turn that failed, reached a limit or was interrupted before this process hosted the session.

        A turn that was only cut off by the end of its process continues by itself.
        """
        if self._cut_short:
            await self.say(GO_ON)

    async def work(self, task: WorkItem) -> tuple[str, str]:
        """Give a piece of work to an agent and wait for its end.

        Returns (outcome, final text). The same `call` finds the same agent. Raises `UsageError`, `LimitReached`.
        """
        if await self.wait_begun() is None:
            raise UsageError(LEAD_ENDED)
        return await work(self._team, task)

    async def commit(self, *writes: Write) -> None:
        """Write under the lease of this process. Raises the errors of `Store.commit`."""
        await self._runtime.commit(*writes)

    @property
    def store(self) -> Store:
        """Return the store of the session."""
        return self._store

    @property
    def hooks(self) -> HookRegistry:
        """Return the hooks of the session, which can be added and removed."""
        return self._runtime.services.hooks

    async def take_model(self) -> None:
        """Apply a resume option that names another model: the lead uses it from its next call on."""
        row = self._rows.agent("lead")
        chosen = self._source.chosen
        state = await recall(self._store, self.id, "lead", row[0].incarnation) if row else AgentState()
        plan = chosen.plan
        spec = state.identity.spec
        if spec is not None and (spec.model, spec.plan_model) != (chosen.name, plan):
            plan_limits = chosen.limits[plan] if plan else None
            limits = chosen.limits[chosen.name]
            command = model_command(chosen.name, limits, plan_name=plan, plan_limits=plan_limits)
            await self.command(command.action, text=command.text)

    async def take_flags(self, flags: Mapping[str, object], settings: Settings) -> None:
        """Apply the permission mode and the limits of a turn that this resume names to the lead of the session.

        The others are unchanged. `settings`: the settings in force, including the flags.
        """
        if self._rows.agent("lead") is None:
            return
        named_flags = {name for name, value in flags.items() if value is not None}
        if "permission.mode" in named_flags:
            self._chosen_mode = settings.permission.mode
            await self.command("mode", text=settings.permission.mode)
        named = [name for name in ("steps", "seconds") if f"limits.{name}" in named_flags]
        if named:
            await self.command("limits", text=json.dumps({name: flags[f"limits.{name}"] for name in named}))

    async def renew(self, *, carry: bool) -> None:
        row = self._rows.agent("lead")
        life = row[0].incarnation if row else 1
        await self.command("new", text="carry" if carry else "")
        await self._team.wait_for_begin("lead", life + 1)

    async def wait_begun(self) -> AgentSpec | None:
        """Return the lead's spec, with the permission mode that this resume names, once the lead has its first records.

        None if the lead has ended or does not begin.
        """
        row = self._rows.agent("lead")
        if row is None or row[0].life == "stopped":
            return None
        with anyio.move_on_after(BEGINS_WITHIN):
            await self._team.wait_for_begin("lead", row[0].incarnation)
        state = self.state("lead")
        if state is None or state.identity.spec is None or self._chosen_mode is None:
            return state.identity.spec if state is not None else None
        return state.identity.spec.model_copy(update={"permission_mode": self._chosen_mode})

    async def taken_up(self) -> None:
        """Wait until mail from before this process has started a turn of the lead, or starts none."""
        with anyio.move_on_after(BEGINS_WITHIN):
            await self._team.taken_up("lead")

    async def wait_finished(self) -> RunEnd:
        await self._quiet()
        return self.end(await unmerged_worktrees(self._runtime.services.worktrees, self.id))

    async def pause(self) -> None:
        """Let no agent begin another step, and return when none is in progress: another process can host the session.

        Nothing of a step is lost then. Calls that wait for subagents are continued by the next host.
        """
        await self._team.pause()

    async def wait_rested(self, at_rest: Callable[[], None]) -> RunEnd:
        """Wait until no turn is left that is to come by itself, and return the state at that moment.

        Subagents in the background, and commands that a person moved there, may go on: their ends begin other turns.
        `at_rest` is called at that moment: the next thing that one of them brings about comes after it.
        """
        await self._quiet(detached=False)
        at_rest()
        end = self.end()
        return replace(end, open=self.open_work(await unmerged_worktrees(self._runtime.services.worktrees, self.id)))

    def move_to_background(self, use_id: str = "") -> bool:
        """See `OpenSession.move_to_background`."""
        lead = self._team.agent("lead")
        if lead is None:
            return False
        calls = [item for item in lead.state.calls if not use_id or item.call.use_id == use_id]
        moved = [lead.foreground.move(item.call.id) for item in calls]
        if any(moved):
            return True
        # Two commits lie between the decision about a call and its wait: a key pressed meanwhile counts.
        begins = next((item for item in calls if item.can_move), None)
        if begins is not None:
            lead.foreground.move_soon(begins.call.id)
        return begins is not None

    def owes_turn(self) -> bool:
        """Return True if something goes on for which `wait_rested` does not wait."""
        return bool(self._team.subagents()) or self._team.commands() != self._team.commands(moved=False)

    async def _quiet(self, *, detached: bool = True) -> None:
        """Wait until no work is left.

        `detached`: with that of subagents in the background, and of commands that a person moved there.

        Unless the wait for commands has no limit, it ends `background.at_end` seconds after all other work is done, or
        after a turn that the end of a command started.

        A question of an agent is work if a person may answer it: its answer, or its deadline, begins a turn.
        """

        def also() -> bool:
            return not self._questions() and (not self._with_schedules or self._fires_no_more())

        ends = self._commands_at_rest == "end"
        while self._commands_at_rest != "wait":
            await self._team.quiet(also, commands=False, subagents=detached)
            commands = self._team.commands(moved=detached)
            ids = frozenset(command.id for command in commands)
            if ids <= self._awaited:
                if not ends:
                    return
                await self.end_commands()
                break
            self._awaited |= ids
            self._runtime.notice("lead", _waiting_words(commands, self._at_end, ends=ends))
            with anyio.move_on_after(self._at_end):
                await self._team.quiet(also, subagents=detached, moved=detached)
                break
        await self._team.quiet(also, subagents=detached, moved=detached)

    def _questions(self) -> Sequence[Request]:
        """Return the open questions of living agents that a person may answer here."""
        questions = [request for request in self.requests() if request.kind == "question"] if self._answerable else []
        lives = {(row.name, row.incarnation) for row in self._rows.agents() if row.life not in ("stopped", "crashed")}
        return [request for request in questions if (request.asked_by, request.incarnation) in lives]

    async def end_commands(self) -> None:
        """End the background commands that still run. Shielded, so that a cancelled session also ends them."""
        with anyio.CancelScope(shield=True):
            self._stopped = (*self._stopped, *await self._team.end_commands())

    def stopped_commands(self) -> Sequence[StoppedCommand]:
        return self._stopped

    def _fires_no_more(self) -> bool:
        return not any(fires_again(schedule) for schedule in self._rows.schedules())

    def end(self, worktrees: tuple[str, ...] = ()) -> RunEnd:
        """Return the current state of the session, as the end of a run. `worktrees`: those with unmerged work."""
        lead = self.state("lead")
        row = self._rows.agent("lead")
        outcome = outcome_of(row[0] if row else None, lead, self._requests_since_begin())
        code = outcome.exit_code
        reason = outcome.why
        crashed = [agent.name for agent in self._rows.agents() if agent.life == "crashed"]
        if crashed and code == DONE:
            code = FAILED
            reason = f"{', '.join(crashed)} crashed repeatedly: the session's log has the details"
        text = (lead.turn.text if lead.turn else lead.turns.last_text) if lead else ""
        advice = advice_after(self.id, lead.turns.last_reason, outcome.limit) if lead else ""
        differs = self._source.verdict()
        if differs:
            code, reason = code or FAILED, differs
        return RunEnd(code, text, reason, self.usage(), self.team(), self.open_work(worktrees), outcome.limit, advice)

    def work_outcome(self) -> RunOutcome:
        """Return the outcome of work that a program gave to the agents, whatever the lead's own turns were."""
        # The code of a workflow has handled questions of its own that nobody answered.
        requests = [r for r in self._requests_since_begin() if self._rows.agent(r.asked_by) is not None]
        outcome = outcome_of(None, AgentState(), requests)
        differs = self._source.verdict()
        return RunOutcome(outcome.exit_code or FAILED, differs) if differs else outcome

    def _requests_since_begin(self) -> Sequence[Request]:
        """Return the requests that a person could have answered since this process opened the session.

        Times do not decide, because the clock may be set back meanwhile
        (test_a_permission_that_nobody_can_give_is_exit_code_4_whatever_the_clock_says).
        """
        return [request for request in self.requests(pending_only=False) if request.id not in self._earlier]

    def denied_calls(self) -> Sequence[DeniedCall]:
        return self._denied.all()

    async def name_session(self, text: str, *, again: bool = False) -> None:
        """Write a name, or the person's first words, to the session's row, for lists.

        The first name stays, unless `again`.
        """
        row = await self._change_row(
            lambda row: with_prompt(row.model_copy(update={"prompt": ""}), text) if again else with_prompt(row, text)
        )
        if row is not None:
            self.row = self.row.model_copy(update={"prompt": row.prompt})

    async def mark_ended(self, code: int) -> None:
        """Record in the session's row how this run ended. The session can still be resumed."""
        await self._change_row(lambda row: row.model_copy(update={"ended_at": self._now, "exit_code": code}))

    async def _change_row(self, change: Callable[[SessionRow], SessionRow]) -> SessionRow | None:
        """Write the result of `change` to the session's row, and return it; None if the row does not exist."""
        while True:
            stored = await self._store.get(session_key(self.id))
            if stored is None or stored.value is None:
                return None
            row = read_value(SessionRow, stored.value, stored.key)
            changed = change(row)
            if changed == row:
                return row
            try:
                put = Put(stored.key, changed.encode(), expected=stored.revision)
                await self._store.commit(put, fence=self._fence)
            except Conflict:
                # Tasks of a program that prompt and rest at the same time change the row at the same time
                # (test_prompts_at_the_same_time_all_arrive_and_rest).
                continue
            return changed

    @property
    def servers(self) -> Servers | None:
        return self._runtime.services.servers

    @property
    def notes(self) -> tuple[str, ...]:
        return self._notes

    @property
    def _fence(self) -> Fence | None:
        return self._runtime.fence

    @property
    def _hosted_budget(self) -> Budget | None:
        return self._runtime.budget


def _waiting_words(commands: Sequence[StoppedCommand], limit: float | None, *, ends: bool) -> str:
    """Return the line about commands for which a run waits. `ends`: the run ends them after the limit."""
    names = "; ".join(
        f"{command.id} of {command.agent}: {' '.join(command.command.split())[:100]}" for command in commands
    )
    then = "then it ends them" if ends else "then they continue in the background"
    until = "until they end" if limit is None else f"for {limit:g} s at most, {then}"
    return f"waiting for background commands {until} (background.at_end): {names}"


@dataclass(frozen=True, slots=True)
class WorkItem:
    """Piece of work for an agent."""

    call: str
    """Permanent id of the work."""
    agent_type: str
    prompt: str
    role: str = ""
    """Short description, shown to the person."""
    model: str = ""
    """Model that the session knows; empty for that of its type."""
    budget: Budget = Budget()

    @property
    def agent(self) -> str:
        """Return the name of the agent that does the work."""
        return self.agent_type.replace(":", "-")[:40] + subagent_suffix(self.call)


async def work(team: Team, task: WorkItem) -> tuple[str, str]:
    """Give the work to an agent, or wait for the agent that already has it. Returns (outcome, final text).

    Raises `UsageError` for an unknown agent type or model, and `LimitReached` if no budget has room.
    """
    lead = team.agent("lead")
    if lead is None or lead.spawner is None:
        raise UsageError(LEAD_ENDED)
    try:
        spec = _spec(lead.spawner.spec_for(task.agent_type, task.agent, lead.state.me, "subagent"), task)
        granted = lead.spawner.grant(spec, task.budget)
    except ToolRefused as refused:
        raise UsageError(str(refused)) from refused
    if not isinstance(granted, AgentSpec):
        message = f"the budget of {granted.budget} has no room for another agent: {granted.kind} {granted.limit:g}"
        raise LimitReached(message, granted.kind)
    return await lead.spawner.subagent(granted, task.prompt, call=task.call)


def _spec(spec: AgentSpec, task: WorkItem) -> AgentSpec:
    if task.model and task.model not in spec.models:
        raise UsageError(f"the session knows no model {task.model!r}; it knows {', '.join(sorted(spec.models))}")
    return spec.model_copy(
        update={
            "kind": "subagent",
            "parent": "lead",
            "role": task.role,
            "tools": tools_for("subagent", spec.tools).names,
            "model": task.model or spec.model,
            "plan_required": False,
            "claims_tasks": False,
        }
    )
