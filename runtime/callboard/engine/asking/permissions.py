"""A call that asks: hooks may answer in the person's place, else it becomes one durable request that says all of it.

Refuses nothing by rules of its own: what allows and denies is told by `judging.py`, from what stands here.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

from callboard.core.asking.gate import gate_refuses
from callboard.core.asking.requests import asked
from callboard.core.bus.authority import authority_of
from callboard.core.names import request_key, short_id
from callboard.core.permission.updates import suggestions_of
from callboard.core.schema import check_input
from callboard.core.state import AgentState, Gate
from callboard.engine.asking.lifting import in_this_turn, lifts_of
from callboard.engine.loop import Agent
from callboard.engine.tasks.checking import about_losses, judge_check, with_check
from callboard.engine.toolbox import near
from callboard.engine.tools.calls import caller, gone_from, notice
from callboard.engine.tools.context import tool_context
from callboard.engine.tools.servers import has_tool, tool_names
from callboard.ports.store import Put
from callboard.ports.tool import Previews
from callboard.ports.world import Ruling
from callboard.words import events as ev
from callboard.words import hooks as hk
from callboard.words.errors import ToolRefused
from callboard.words.values import Json, Request, ToolCall


@dataclass(frozen=True, slots=True)
class Proposed:
    """A call on its way through hooks and rules."""

    call: ToolCall
    """As it would run."""
    input: Json | None
    """What hooks made of its input; None: as the model wrote it."""
    ruling: Ruling
    gate: Gate
    """As it stood when the call was judged."""
    context: tuple[str, ...] = ()
    """Texts of hooks, for the model."""
    by_hook: bool = False
    """A hook asks too: nothing but the person's word lifts that."""
    halt: str = ""
    """Why a hook stops the agent."""
    diff: str = ""
    """What it would change, line by line; empty where the tool does not tell."""


def unfit(agent: Agent, call: ToolCall) -> str | None:
    """Why this call cannot be made as it stands: unknown, or its input does not fit."""
    host, me = agent.host, agent.state.me
    tools = host.ports.tools
    if not has_tool(host, me, call.name):
        return f"There is no tool `{call.name}` for you.{near(call.name, tool_names(host, me))}"
    if call.bad_input is not None:
        return f"The input of {call.name} cannot be used: {call.bad_input}. Send the call again."
    wrong = check_input(tools[call.name].spec.input_schema, call.input)
    return f"The input of {call.name} does not fit: {wrong}. Send the call again." if wrong else None


async def ruling_of(agent: Agent, call: ToolCall, *hooked: hk.PreVerdict | None) -> Ruling:
    """What rules and mode say of a call, heeding session rules and the hooks that allow it."""
    ports, state = agent.host.ports, agent.state
    tool, folders = ports.tools[call.name].spec, ports.archive.folders(state.me)
    lifts = lifts_of(agent, call.name, *hooked)
    return await ports.judge.judge(call, tool, in_this_turn(agent), folders, authority_of(state), lifts)


def refused_by_gate(agent: Agent, call: ToolCall, ruling: Ruling, gate: Gate) -> str | None:
    """Why a closed gate stops the call; None when it lets it pass."""
    reads = agent.host.ports.tools[call.name].spec.effect == "read" or ruling.reads_only
    return gate_refuses(gate, call.name, reads_only=reads)


def void(call_id: str, gate: Gate) -> Callable[[AgentState], bool]:
    """True when the verdict no longer holds: the call is gone, or the gate has moved since it was judged."""
    gone = gone_from(call_id, "proposed")
    return lambda state: gone(state) or state.gate != gate


async def always_of(agent: Agent, about: Proposed) -> tuple[str, ...]:
    """The rules that "always" would make; none where no rule lifts the question."""
    ruling = about.ruling
    if ruling.person_only or about.by_hook or ruling.rule.startswith("check, "):
        return ()
    ports, me = agent.host.ports, in_this_turn(agent)
    tool, folders = ports.tools[about.call.name].spec, ports.archive.folders(me)
    lifts = lifts_of(agent, about.call.name)
    return await ports.judge.always(about.call, tool, me, folders, authority_of(agent.state), lifts)


async def answered_by_hook(agent: Agent, about: Proposed, always: tuple[str, ...]) -> Proposed:
    """The call as hooks answer for it in the person's place; as it was where they leave it to the person.

    Their no counts. Their yes lifts what an allow rule lifts, on the input that they would have run.
    """
    hooks, ruling = agent.host.ports.hooks, about.ruling
    if ruling.person_only or not hooks.has("PermissionRequest"):
        return about
    event = hk.PermissionRequest(about.call, ruling.rule, ruling.why, suggestions_of(always), caller(agent))
    said = await hooks.permission_request(event)
    notice(agent, said.notices)
    if said.decision == "deny" or said.halt:
        no = replace(ruling, decision="deny", rule=said.by, why=said.why or said.halt)
        return replace(about, ruling=no, context=(*about.context, *said.context), halt=said.halt)
    if said.decision != "allow" or about.by_hook:
        return about
    call = about.call
    if said.input is not None:
        call = with_check(agent, call.model_copy(update={"input": said.input}))
    if (wrong := unfit(agent, call)) is not None:
        notice(agent, (f"{said.by}: {wrong}",))
        return about
    again = call.model_copy(update={"id": f"{call.id}.hooked"})  # a recording keeps both rulings
    lifted = await judge_check(agent, again, await ruling_of(agent, again, said))
    if lifted.decision != "allow" or refused_by_gate(agent, call, lifted, about.gate) is not None:
        return about
    changed = call.input if said.input is not None else about.input
    return replace(about, call=call, input=changed, ruling=lifted, context=(*about.context, *said.context))


async def edited_by_person(agent: Agent, call: ToolCall, given: Json) -> tuple[Json, str]:
    """A call's input as a person gave it instead, and why it may not run so all the same: what does not fit, and what
    a rule or the mode denies. What asks was answered by the one who gave it."""
    call = with_check(agent, call.model_copy(update={"input": given, "id": f"{call.id}.edited"}))
    if (wrong := unfit(agent, call)) is not None:
        return call.input, wrong
    ruling = await judge_check(agent, call, await ruling_of(agent, call))
    return call.input, f"{ruling.why} ({ruling.rule})" if ruling.decision == "deny" else ""


async def previewed(agent: Agent, about: Proposed) -> Proposed | str:
    """The call with what it would change, for the question; or why it would be refused anyway."""
    tool = agent.host.ports.tools[about.call.name]
    if not isinstance(tool, Previews):
        return about
    try:
        diff = await tool.preview(about.call.input, tool_context(agent, about.call.id))
    except ToolRefused as refused:
        return str(refused)
    return replace(about, diff=diff)


async def ask_person(agent: Agent, about: Proposed, always: tuple[str, ...]) -> None:
    """One durable request; where nobody can answer, the deadline is now and the answer is no."""
    state, now, call, ruling = agent.state, agent.host.clock.now(), about.call, about.ruling
    deadline, why = state.me.ask_deadline, ruling.why + await about_losses(agent, call)
    payload: Json = {
        "tool": call.name,
        "input": call.input,
        "rule": ruling.rule,
        "why": why,
        "call_id": call.id,
        "folder": str(agent.host.ports.archive.folders(state.me).root),
        "agent_type": state.me.agent_type,
        "mode": state.me.permission_mode,
        "always": list(always),
        **({"diff": about.diff} if about.diff else {}),
    }
    request = asked(
        Request(
            id=_new_id(agent, call.id),
            kind="permission",
            asked_by=agent.name,
            incarnation=state.incarnation,
            may_answer=("person",) if ruling.person_only else ("person", "policy"),
            subject=f"{agent.name} wants to run {call.name}: {why.partition(chr(10))[0]}",
            payload=payload,
            escalation="refuse" if ruling.person_only else "policy",
            created_at=now,
            expires_at=None if deadline is None else now + deadline,
            cause=authority_of(state),
            person_only=ruling.person_only,
        )
    )
    needed = ev.ApprovalNeeded(
        at=now,
        call=call.id,
        request_id=request.id,
        rule=ruling.rule,
        why=why,
        input=about.input,
        expires_at=request.expires_at,
        context=about.context,
        digest=request.digest,
        mode=ruling.mode or state.me.permission_mode,
        level=ruling.level,
    )
    put = Put(request_key(agent.host.session, request.id), request.encode(), expected=0)
    await agent.record(needed, writes=[put], unless=void(call.id, about.gate))


def _new_id(agent: Agent, call: str) -> str:
    """An answer serves once: a call that is asked for again, since the gate has moved, asks by another id."""
    number, found = 0, short_id("req", call)
    while agent.host.board.request(found) is not None:
        number += 1
        found = short_id("req", call, number)
    return found
