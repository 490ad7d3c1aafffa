"""A skill's text as an agent reads it: arguments and variables in their places, then the output of its commands.

A command passes the same hooks, rules and sandbox as a call of the shell, and nobody is asked: whatever is not allowed
ends the skill with a reason. What its `allowed-tools` grant counts for its own commands, so do its `disallowed-tools`.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from callboard.core.asking.gate import gate_refuses
from callboard.core.bus.authority import authority_of
from callboard.core.bus.mail import defused
from callboard.core.skills.commands import LONGEST, InText, commands_in, exit_counts, with_outputs
from callboard.core.skills.substitution import filled, with_arguments
from callboard.engine.asking.lifting import in_this_turn, lifts_of, skill_lifts, without
from callboard.engine.loop import Agent
from callboard.engine.tools.calls import caller, notice
from callboard.ports.tool import SKILL_OUTPUT, Finished
from callboard.words import hooks as hk
from callboard.words.errors import ToolRefused
from callboard.words.skills import SkillText
from callboard.words.values import ToolCall

Begin = Callable[[Sequence[str]], Awaitable[None]]
"""Told of the commands before the first of them runs, where not all of them only read."""
_MOST_SHOWN = 2_000
"""Characters of a failed command's output in the reason."""


@dataclass(frozen=True, slots=True)
class Started:
    """A skill that is being started."""

    skill: SkillText
    arguments: str
    key: str
    """Ids of its commands begin so: stable over a crash."""
    appends: bool = True
    """Arguments that no place takes stand at its end."""


async def text_of(agent: Agent, started: Started, begin: Begin | None = None) -> str:
    """The text. Raises `ToolRefused` with the skill's name and why it cannot be had."""
    skill = started.skill
    variables = {**_variables(agent, skill), **skill.variables}
    text, taken = filled(skill.body or "", started.arguments, skill.arguments, variables)
    commands = commands_in(text)
    if skill.no_commands:
        text = with_outputs(text, commands, [f"[not run: {skill.no_commands}]" for _ in commands])
    elif commands:
        text = with_outputs(text, commands, await _outputs(agent, started, commands, begin))
    text = defused(text.strip())
    return text if taken or not started.appends else with_arguments(text, defused(started.arguments))


def _variables(agent: Agent, skill: SkillText) -> dict[str, str]:
    state, host = agent.state, agent.host
    turn = state.turn
    return {
        "CLAUDE_SESSION_ID": host.session,
        "CLAUDE_EFFORT": skill.effort or (turn.effort if turn else "") or state.me.effort,
        "CLAUDE_PROJECT_DIR": str(host.ports.archive.folders(state.me).root),
    }


async def _outputs(agent: Agent, started: Started, commands: Sequence[InText], begin: Begin | None) -> list[str]:
    """Judge all, then run them one by one."""
    calls: list[ToolCall] = []
    reads = True
    for number, one in enumerate(commands):
        key = f"{started.key}.{number}"
        call = ToolCall(id=key, use_id=key, name="bash", input={"command": one.command})
        call, only_reads = await _judged(agent, started.skill, call)
        reads = reads and only_reads
        calls.append(call)
    if begin is not None and not reads:
        await begin([str(call.input["command"]) for call in calls])
    return [await _run(agent, started.skill, call) for call in calls]


async def _judged(agent: Agent, skill: SkillText, call: ToolCall) -> tuple[ToolCall, bool]:
    """The call as it may run, and whether it only reads. Raises `ToolRefused`."""
    host, state = agent.host, agent.state
    tool = host.ports.tools.get(call.name)
    if tool is None:
        raise _refusal(skill, call, "there is no shell in this session")
    if host.ports.hooks.has("PreToolUse"):
        call = await _hooked(agent, skill, call)
    spec = without(in_this_turn(agent), skill.disallowed) if skill.disallowed else in_this_turn(agent)
    lifts = (*lifts_of(agent, call.name), *skill_lifts(agent, skill.allowed))
    folders = host.ports.archive.folders(state.me)
    ruling = await host.ports.judge.judge(call, tool.spec, spec, folders, authority_of(state), lifts)
    if ruling.decision != "allow":
        raise _refusal(skill, call, f"{ruling.why} ({ruling.rule}). Allow it by a rule, or in its allowed-tools")
    if (closed := gate_refuses(state.gate, call.name, reads_only=ruling.reads_only)) is not None:
        raise _refusal(skill, call, closed)
    return call, ruling.reads_only


async def _hooked(agent: Agent, skill: SkillText, call: ToolCall) -> ToolCall:
    said = await agent.host.ports.hooks.pre_tool_use(hk.PreToolUse(call, caller(agent)))
    notice(agent, said.notices)
    if said.decision in ("deny", "ask") or said.halt:
        raise _refusal(skill, call, f"{said.why or said.halt or 'a hook asks'} ({said.by or 'a hook'})")
    return call if said.input is None else call.model_copy(update={"input": said.input})


async def _run(agent: Agent, skill: SkillText, call: ToolCall) -> str:
    ports = agent.host.ports
    folders = ports.archive.folders(agent.state.me)
    keep = Path(folders.tool_results) / f"{call.id}{SKILL_OUTPUT}"
    command = str(call.input["command"])
    finished = await ports.launcher.run(command, folders.root, LONGEST, keep)
    if finished.timed_out or exit_counts(command, finished.exit_code):
        raise _refusal(skill, call, _ended(finished))
    return finished.output


def _ended(finished: Finished) -> str:
    how = f"it took longer than {LONGEST:.0f} s" if finished.timed_out else f"it ended with {finished.exit_code}"
    output = finished.output.strip()
    return f"{how}{':' if output else ''}\n{output[-_MOST_SHOWN:]}".strip()


def _refusal(skill: SkillText, call: ToolCall, why: str) -> ToolRefused:
    return ToolRefused(f"/{skill.name}: its command `{call.input.get('command')}` did not run to its end: {why}")
