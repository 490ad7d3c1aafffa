"""Permission check of proposed calls, from the schema to the question.

The order is: schema, PreToolUse hooks, schema again, plan gate, rules and mode, hooks in the user's place, question.

A hook that allows has the effect of an allow rule: it overrides no deny rule, no ask rule, and no hard rule. This
module runs nothing itself: `tool_call.py` runs the allowed calls. Each decision is an event.

If a call needs an approval, hooks may answer in the user's place. Otherwise the call becomes one durable request with
all the information.

The check command of a task is decided before `complete_task` runs it, as a shell command of that agent; so is the test
command of `merge_worktree`. So an agent cannot run a command as a check that it may not run as a command. The command
is fixed in the call's input at the decision, the question shows it, and only that command runs
(`callboard.adapters.tools.board`).

The agent that made a request also receives its answer here, like that of a plan. It first checks whether the situation
of the plan or the call has changed; rules (`core.approvals.plans`) decide whether an approval is still valid. The event
has all the values that were used.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import replace
from functools import partial
from typing import NamedTuple

from anyio.lowlevel import checkpoint

from callboard.core.agent.authority import authority_of
from callboard.core.agent.open_calls import CallState
from callboard.core.agent.state import AgentState
from callboard.core.approvals.plan_gate import PlanGate, gate_refusal
from callboard.core.approvals.plans import AuthorSituation, answer_record
from callboard.core.approvals.requests import AnswerRefusal, open_request, with_refusal
from callboard.core.call_order import READS_AT_ONCE
from callboard.core.json_schema import TOO_DEEP, check_input, too_deep
from callboard.core.keys import request_key, short_id
from callboard.core.messaging.authority import person_only_reason
from callboard.core.permissions.claude_updates import suggestions_of
from callboard.core.permissions.network import describe
from callboard.core.team.worktrees import branch_of, loss_words
from callboard.engine.agent_runtime import AgentRuntime
from callboard.engine.hooks.caller import caller, find_call, left_stage, notice
from callboard.engine.operations.mcp_tools import has_tool, tool_names
from callboard.engine.operations.permission_query import in_this_turn, permission_query
from callboard.engine.operations.tool_context import ImmediateRun, commit_in, tool_context
from callboard.engine.toolbox import near
from callboard.ports.environment import PermissionDecision
from callboard.ports.store import Put, Write
from callboard.ports.tool import Previews, Tool
from callboard.types import events as ev
from callboard.types import hook_answers as hk
from callboard.types import steps as st
from callboard.types.errors import Conflict, ToolRefused
from callboard.types.events import AnswerTaken
from callboard.types.lazy_dataclass import dataclass
from callboard.types.operations import Operation
from callboard.types.records import Grant, HostGrant, Json, Request, ToolCall


class CallRunner(NamedTuple):
    """Functions that run allowed calls."""

    run: Callable[[AgentRuntime, str], Awaitable[None]]
    immediate_runner: Callable[[AgentRuntime, Tool], ImmediateRun | None]
    """Function that returns the `ImmediateRun` of a tool; None if it has none."""


async def check_permissions(agent: AgentRuntime, step: st.CheckPermissions, runner: CallRunner) -> None:
    """Decide on calls.

    Calls with hooks or shell commands may take long, so each has its own operation. A call that only reads and needs no
    hook runs in the same operation, because each further decision of the loop costs as much as the read. If it needs no
    wait either, it needs no operation. Other calls are decided at once.
    """
    hooks = agent.runtime.services.hooks
    has_hooks = hooks.has("PreToolUse") or hooks.has("PermissionRequest")
    running = len(agent.operations)
    for call_id in step.calls:
        proposed = find_call(agent.state, call_id)
        tool = agent.runtime.services.tools.get(proposed.call.name) if proposed else None
        if has_hooks or (tool is not None and tool.spec.effect != "read" and tool.spec.concurrency != "shared"):
            agent.start(Operation("judge", call_id), partial(_check_call, agent, call_id))
        elif tool is not None and (run_at_once := runner.immediate_runner(agent, tool)) is not None:
            await _check_call(agent, call_id, run_at_once)
            if call_id != step.calls[-1]:
                await checkpoint()  # a reply may have hundreds of reads, and other agents go on between them
        elif tool is not None and tool.spec.effect == "read" and _has_room(agent):
            agent.start(Operation("tool", call_id), partial(_check_and_run, agent, call_id, runner.run))
        else:
            await _check_call(agent, call_id)
    if len(agent.operations) > running:
        await checkpoint()  # immediate work is done before the loop continues


def _has_room(agent: AgentRuntime) -> bool:
    """Return True if one more call may run now."""
    return sum(operation.kind == "tool" for operation in agent.operations) < READS_AT_ONCE


async def _check_and_run(
    agent: AgentRuntime, call_id: str, run: Callable[[AgentRuntime, str], Awaitable[None]]
) -> None:
    """Decide on a call that nothing holds back, and run it if it is allowed (`core.call_order`)."""
    await _check_call(agent, call_id)
    await run(agent, call_id)


async def _check_call(agent: AgentRuntime, call_id: str, run_at_once: ImmediateRun | None = None) -> None:
    """Take a call through the schema, the hooks, the rules and the mode, and record the decision or the question."""
    proposed = find_call(agent.state, call_id)
    if proposed is None:
        return
    call = with_check(agent, proposed.call)
    context = ()
    hook_verdict = None
    fault = call_fault(agent, call)
    if fault is None and agent.runtime.services.hooks.has("PreToolUse"):
        verdict = await agent.runtime.services.hooks.pre_tool_use(
            hk.PreToolUse(call, caller(agent.runtime, agent.state))
        )
        context = verdict.context
        hook_verdict = verdict
        notice(agent.runtime, agent.name, verdict.notices)
        if verdict.decision == "deny" or verdict.halt:
            await _refuse(agent, call_id, by=verdict.by, reason=verdict.why or verdict.halt, context=verdict.context)
            await _halt(agent, verdict.halt)
            return
        if verdict.input is not None:
            call = with_check(agent, call.model_copy(update={"input": verdict.input}))
            fault = call_fault(agent, call)
    if fault is not None:
        await _deny(agent, call_id, reason=fault, by="schema", context=context)
        return
    check = await _apply_rules(agent, proposed, call, context=context, hook_verdict=hook_verdict)
    if check is not None:
        await _act_on_decision(agent, check, run_at_once)


async def _apply_rules(
    agent: AgentRuntime,
    proposed: CallState,
    call: ToolCall,
    *,
    context: tuple[str, ...],
    hook_verdict: hk.PreVerdict | None,
) -> PermissionCheck | None:
    """Apply the gate, the rules and the mode. Return None if the gate has stopped the call.

    An allow of a hook has the effect of an allow rule; its ask always asks.
    """
    gate = agent.state.work.gate
    decision = await rule_decision(agent, call, hook_verdict)
    refusal = refused_by_gate(agent, call, decision, gate)
    if refusal is not None:
        await _deny(agent, call.id, reason=refusal, by="plan gate", context=context)
        return None
    decision = await judge_with_check(agent, call, decision)
    hook_asks = hook_verdict is not None and hook_verdict.decision == "ask"
    if hook_verdict is not None and hook_asks and decision.decision == "allow":
        decision = replace(decision, decision="ask", rule=hook_verdict.by, why=hook_verdict.why)
    changed = call.input if call.input is not proposed.call.input else None
    return PermissionCheck(call, changed, decision, gate, context, by_hook=hook_asks)


async def _act_on_decision(agent: AgentRuntime, check: PermissionCheck, run_at_once: ImmediateRun | None) -> None:
    """Deny, allow or ask, by the decision or by the answer of hooks in the user's place."""
    always: tuple[str, ...] = ()
    if check.decision.decision == "ask":
        always = await always_rules(agent, check)
        check = await with_hook_answer(agent, check, always)
    call = check.call
    decision = check.decision
    match decision.decision:
        case "ask":
            preview = await with_preview(agent, check)
            if isinstance(preview, str):
                await _deny(agent, call.id, reason=preview, by="tool", context=check.context)
            else:
                await ask_person(agent, preview, always)
        case "deny":
            await _refuse(
                agent, call.id, by=decision.rule, reason=decision.why, context=check.context, mode=decision.mode
            )
            await _halt(agent, check.halt)
        case "allow":
            judged = ev.CallJudged(
                at=agent.runtime.clock.now(),
                call=call.id,
                verdict="allow",
                by=decision.rule,
                input=check.input,
                context=check.context,
                mode=decision.mode or agent.state.me.permission_mode,
                level=decision.level,
                grants=decision.grants,
            )
            run_events = () if run_at_once is None else await run_at_once(agent, call, decision.grants)
            # The hooks may have taken long: void if the plan gate has changed meanwhile.
            await agent.note(judged, *run_events, unless=decision_is_void(call.id, check.gate))


async def _refuse(
    agent: AgentRuntime, call_id: str, *, by: str, reason: str, context: tuple[str, ...], mode: str = ""
) -> None:
    await _deny(agent, call_id, reason=f"Permission denied: {reason} ({by})", by=by, context=context, mode=mode)


async def _deny(
    agent: AgentRuntime, call_id: str, *, reason: str, by: str, context: tuple[str, ...] = (), mode: str = ""
) -> None:
    now = agent.runtime.clock.now()
    mode = mode or agent.state.me.permission_mode
    denied = ev.CallJudged(at=now, call=call_id, verdict="deny", by=by, why=reason, context=context, mode=mode)
    await agent.note(denied, unless=left_stage(call_id, "proposed"))


async def _halt(agent: AgentRuntime, reason: str) -> None:
    if reason:
        await agent.record(ev.Interrupted(at=agent.runtime.clock.now(), by=reason))


@dataclass(frozen=True, slots=True)
class PermissionCheck:
    """Call on its way through hooks and rules."""

    call: ToolCall
    """The call as it would run."""
    input: Json | None
    """Input as rewritten by hooks; None: as the model wrote it."""
    decision: PermissionDecision
    gate: PlanGate
    """Plan gate at the time of the decision."""
    context: tuple[str, ...] = ()
    """Texts of hooks, for the model."""
    by_hook: bool = False
    """True if a hook requires the question, which only the user can then answer."""
    halt: str = ""
    """Reason why a hook stops the agent; empty if none does."""
    diff: str = ""
    """Changes that the call would make, line by line; empty if the tool does not state them."""


def call_fault(agent: AgentRuntime, call: ToolCall) -> str | None:
    """Return the reason why the call is impossible: an unknown tool, or an invalid input; None if it is possible."""
    runtime = agent.runtime
    me = agent.state.me
    tools = runtime.services.tools
    if not has_tool(runtime, me, call.name):
        return f"There is no tool `{call.name}` for you.{near(call.name, tool_names(runtime, me))}"
    if call.bad_input is not None:
        return f"The input of {call.name} cannot be used: {call.bad_input}. Send the call again."
    if too_deep(call.input):  # a hook or a user may have given it
        return f"The input of {call.name} cannot be used: {TOO_DEEP}. Send the call again."
    spec = tools[call.name].spec
    wrong = check_input(spec.input_schema, spec.named_as_shown(call.input))
    return f"The input of {call.name} does not fit: {wrong}. Send the call again." if wrong else None


async def rule_decision(
    agent: AgentRuntime, call: ToolCall, *hook_verdicts: hk.PreVerdict | None
) -> PermissionDecision:
    """Decide on a call by the rules, the mode, the session rules, and the hooks that allow it."""
    return await agent.runtime.services.judge.judge(permission_query(agent.runtime, agent.state, call, *hook_verdicts))


def refused_by_gate(agent: AgentRuntime, call: ToolCall, decision: PermissionDecision, gate: PlanGate) -> str | None:
    """Return the reason why a closed gate stops the call; None if the gate lets it pass.

    The gate also lets a call pass that no plan can ever allow.
    """
    reads = agent.runtime.services.tools[call.name].spec.effect == "read" or decision.reads_only
    denied_by = decision.rule if decision.decision == "deny" else ""
    return gate_refusal(gate, call.name, reads_only=reads, denied_by=denied_by)


def decision_is_void(call_id: str, gate: PlanGate) -> Callable[[AgentState], bool]:
    """Return a condition that is true once the decision is void: the call is gone, or the gate has changed."""
    gone = left_stage(call_id, "proposed")
    return lambda state: gone(state) or state.work.gate != gate


async def always_rules(agent: AgentRuntime, check: PermissionCheck) -> tuple[str, ...]:
    """Return the rules that "always" would create; none if no rule can remove the question."""
    decision = check.decision
    if decision.person_only or check.by_hook or decision.rule.startswith("check, "):
        return ()
    return await agent.runtime.services.judge.always(permission_query(agent.runtime, agent.state, check.call))


async def with_hook_answer(agent: AgentRuntime, check: PermissionCheck, always: tuple[str, ...]) -> PermissionCheck:
    """Apply the answer of hooks in the user's place, or return the call unchanged if they leave the answer to the user.

    A denial counts. An approval has the effect of an allow rule for the input that the hooks saw.
    """
    hooks = agent.runtime.services.hooks
    decision = check.decision
    if decision.person_only or not hooks.has("PermissionRequest"):
        return check
    event = hk.PermissionRequest(
        check.call, decision.rule, decision.why, suggestions_of(always), caller(agent.runtime, agent.state)
    )
    verdict = await hooks.permission_request(event)
    notice(agent.runtime, agent.name, verdict.notices)
    if verdict.decision == "deny" or verdict.halt:
        denial = replace(decision, decision="deny", rule=verdict.by, why=verdict.why or verdict.halt)
        return replace(check, decision=denial, context=(*check.context, *verdict.context), halt=verdict.halt)
    if verdict.decision != "allow" or check.by_hook:
        return check
    call = check.call
    if verdict.input is not None:
        call = with_check(agent, call.model_copy(update={"input": verdict.input}))
    if (wrong := call_fault(agent, call)) is not None:
        notice(agent.runtime, agent.name, (f"{verdict.by}: {wrong}",))
        return check
    hooked_call = call.model_copy(update={"id": f"{call.id}.hooked"})  # a recording keeps both decisions
    by_hooks = await judge_with_check(agent, hooked_call, await rule_decision(agent, hooked_call, verdict))
    if by_hooks.decision != "allow" or refused_by_gate(agent, call, by_hooks, check.gate) is not None:
        return check
    changed = call.input if verdict.input is not None else check.input
    return replace(check, call=call, input=changed, decision=by_hooks, context=(*check.context, *verdict.context))


@dataclass(frozen=True, slots=True)
class EditedInput:
    """Input of a call as changed by the user. `fault`: the reason why the call still may not run."""

    input: Json
    fault: str = ""
    grants: tuple[Grant, ...] = ()


async def edited_by_person(agent: AgentRuntime, call: ToolCall, tool_input: Json) -> EditedInput:
    """Decide on the input with which the user replaced a call's own.

    It is void if it does not match the schema, or a rule or the mode denies it. The user's answer settles any question.
    """
    call = with_check(agent, call.model_copy(update={"input": tool_input, "id": f"{call.id}.edited"}))
    if (wrong := call_fault(agent, call)) is not None:
        return EditedInput(call.input, wrong)
    decision = await judge_with_check(agent, call, await rule_decision(agent, call))
    if decision.decision == "deny":
        return EditedInput(call.input, f"{decision.why} ({decision.rule})")
    return EditedInput(call.input, grants=decision.grants)


async def with_preview(agent: AgentRuntime, check: PermissionCheck) -> PermissionCheck | str:
    """Return the call with a preview of its change for the question, or the reason why it would be refused anyway."""
    tool = agent.runtime.services.tools[check.call.name]
    if not isinstance(tool, Previews):
        return check
    try:
        context = replace(tool_context(agent, check.call.id), grants=check.decision.grants)
        diff = await tool.preview(check.call.input, context)
    except ToolRefused as refused:
        return str(refused)
    return replace(check, diff=diff)


async def ask_person(agent: AgentRuntime, check: PermissionCheck, always: tuple[str, ...]) -> None:
    """Create one durable request. If no one can answer, its deadline is now and the answer is a denial."""
    state = agent.state
    now = agent.runtime.clock.now()
    call = check.call
    decision = check.decision
    deadline = state.me.ask_deadline
    reason = decision.why + await losses_text(agent, call)
    if reach := describe([grant.host for grant in decision.grants if isinstance(grant, HostGrant)]):
        reason = f"{reason}. {reach}"
    payload: Json = {
        "tool": call.name,
        "input": call.input,
        "rule": decision.rule,
        "why": reason,
        "call_id": call.id,
        "folder": str(agent.runtime.services.archive.folders(state.me).root),
        "agent_type": state.me.agent_type,
        "mode": state.me.permission_mode,
        "always": list(always),
        **({"diff": check.diff} if check.diff else {}),
    }
    request = open_request(
        Request(
            id=_new_id(agent, call.id),
            kind="permission",
            asked_by=agent.name,
            incarnation=state.identity.incarnation,
            may_answer=("person",) if decision.person_only else ("person", "policy"),
            subject=f"{agent.name} wants to run {call.name}: {reason.partition(chr(10))[0]}",
            payload=payload,
            escalation="refuse" if decision.person_only else "policy",
            created_at=now,
            expires_at=None if deadline is None else now + deadline,
            cause=authority_of(state),
            person_only=decision.person_only,
        )
    )
    needed = ev.ApprovalNeeded(
        at=now,
        call=call.id,
        request_id=request.id,
        rule=decision.rule,
        why=reason,
        input=check.input,
        expires_at=request.expires_at,
        context=check.context,
        digest=request.digest,
        mode=decision.mode or state.me.permission_mode,
        level=decision.level,
        grants=decision.grants,
    )
    put = Put(request_key(agent.runtime.session, request.id), request.encode(), expected=0)
    await agent.record(needed, writes=[put], unless=decision_is_void(call.id, check.gate))


def _new_id(agent: AgentRuntime, call: str) -> str:
    """Return a new request id.

    An answer is valid once, so a call that is asked about again after a change of the gate needs another id.
    """
    number = 0
    request_id = short_id("req", call)
    while agent.runtime.rows.request(request_id) is not None:
        number += 1
        request_id = short_id("req", call, number)
    return request_id


async def take_answer(agent: AgentRuntime, step: st.TakeAnswer) -> None:
    """Record an answer: at once, or in an operation if the repository must be examined first."""
    request = step.request
    assert request.status != "pending", "only an answered request is taken"
    if request.kind == "plan" and request.status == "approved" and request.payload.get("base"):
        agent.start(Operation("answer", request.id), partial(_take_approval, agent, request))
    elif request.kind == "permission" and request.status == "approved" and request.input is not None:
        agent.start(Operation("answer", request.id), partial(_take_edited_call, agent, request, request.input))
    else:
        await _record_answer(
            agent, request, answer_record(request, _author_situation(agent, digest=_digest(agent.state, request.id)))
        )


def _digest(state: AgentState, request_id: str) -> str:
    open_call = _call_of(state, request_id)
    return open_call.digest if open_call else ""


def _call_of(state: AgentState, request_id: str) -> CallState | None:
    """Return the call that the request is about."""
    if request_id not in state.calls.requests:
        return None
    return next(call for call in state.calls if call.request_id == request_id)


async def _record_answer(
    agent: AgentRuntime, request: Request, event: AnswerTaken, unless: Callable[[AgentState], bool] | None = None
) -> None:
    """Record the answer.

    If the approval is void, the request's history says so. After a lost race `decide` asks again.
    """
    row = agent.runtime.rows.request(request.id)
    writes = list[Write]()
    if event.void and row is not None:
        changed = with_refusal(row[0], "runtime", AnswerRefusal("void", event.void), event.at)
        if changed is not None:
            writes.append(Put(request_key(agent.runtime.session, request.id), changed.encode(), expected=row[1]))
    try:
        await agent.record(event, writes=writes, unless=unless)
    except Conflict as lost:
        await agent.runtime.refresh(lost.what)


async def _take_approval(agent: AgentRuntime, request: Request) -> None:
    commit = await commit_in(agent, request.id)
    await _record_answer(
        agent, request, answer_record(request, _author_situation(agent, commit)), partial(_is_plan_settled, request.id)
    )


async def _take_edited_call(agent: AgentRuntime, request: Request, tool_input: Json) -> None:
    """Check the input with which the user allowed a call against the schema and the rules, then record the answer."""
    event = answer_record(request, _author_situation(agent, digest=_digest(agent.state, request.id)))
    open_call = _call_of(agent.state, request.id)
    if open_call is not None and not event.void:
        edited = await edited_by_person(agent, open_call.call, tool_input)
        if edited.fault:
            event = event.model_copy(update={"void": f"the input was changed, and {edited.fault}"})
        else:
            event = event.model_copy(update={"input": edited.input, "grants": edited.grants})
    await _record_answer(agent, request, event, None if open_call is None else left_stage(open_call.call.id, "asking"))


def _is_plan_settled(request_id: str, state: AgentState) -> bool:
    return (state.work.gate.gate, state.work.gate.request_id) != ("pending", request_id)


def _author_situation(agent: AgentRuntime, commit: str = "", digest: str = "") -> AuthorSituation:
    state = agent.state
    voids_moved = state.me.plan_moved_base == "void"
    folder = str(agent.runtime.services.archive.folders(state.me).root)
    return AuthorSituation(agent.runtime.clock.now(), tuple(state.work.tasks), commit, voids_moved, folder, digest)


_COMPLETE = "complete_task"
_MERGE = "merge_worktree"
_ORDER = ("allow", "ask", "deny")


def with_check(agent: AgentRuntime, call: ToolCall) -> ToolCall:
    """Return the call with the command of its check in its input, whatever the model or a hook wrote there.

    Other calls are unchanged.
    """
    if call.name != _COMPLETE or call.bad_input is not None:
        return call
    row = agent.runtime.rows.task(str(call.input.get("task_id", "")))
    tool_input = {name: value for name, value in call.input.items() if name != "check"}
    if row is not None and row[0].check:
        tool_input["check"] = row[0].check
    return call if tool_input == call.input else call.model_copy(update={"input": tool_input})


async def judge_with_check(agent: AgentRuntime, call: ToolCall, decision: PermissionDecision) -> PermissionDecision:
    """Decide on the call together with the command of its check.

    Return the stricter of `decision` and the decision on a call of `bash` with that command, or `decision` if the call
    has no check.
    """
    field = {_COMPLETE: "check", _MERGE: "test_command"}.get(call.name, "")
    command = str(call.input.get(field, ""))
    if not command.strip():
        return decision
    verdict = await _judge_check_command(agent, call, command)
    if _ORDER.index(verdict.decision) <= _ORDER.index(decision.decision):
        return replace(decision, grants=(*decision.grants, *verdict.grants))
    person_only = decision.person_only or verdict.person_only
    reason = f"its check `{command}`: {verdict.why}"
    return replace(verdict, rule=f"check, {verdict.rule}", why=reason, reads_only=False, person_only=person_only)


async def losses_text(agent: AgentRuntime, call: ToolCall) -> str:
    """Return all work that would be lost with a worktree now, for the question whether to discard it.

    Only this work may be lost: work that is added later is kept. Empty for any other call.
    """
    keeper = agent.runtime.services.worktrees
    name = str(call.input.get("name", ""))
    if keeper is None or not person_only_reason(call.name, call.input):
        return ""
    try:
        return loss_words((await keeper.losses(name)).lines(), branch_of(name))
    except ToolRefused as refusal:
        return f": {refusal}"


async def _judge_check_command(agent: AgentRuntime, call: ToolCall, command: str) -> PermissionDecision:
    services = agent.runtime.services
    if "bash" not in services.tools or "bash" not in in_this_turn(agent.runtime, agent.state).tools:
        return PermissionDecision("deny", "tools", "it is a command, and you have no bash: release the task")
    shell = ToolCall(id=f"{call.id}.check", use_id=call.use_id, name="bash", input={"command": command})
    hook_verdict = None
    if services.hooks.has("PreToolUse"):
        hook_verdict = await services.hooks.pre_tool_use(hk.PreToolUse(shell, caller(agent.runtime, agent.state)))
        notice(agent.runtime, agent.name, hook_verdict.notices)
        if hook_verdict.decision == "deny" or hook_verdict.halt:
            return PermissionDecision("deny", hook_verdict.by, hook_verdict.why or hook_verdict.halt)
        if hook_verdict.input is not None:
            return PermissionDecision("deny", hook_verdict.by, "a hook would run another command")
    query = permission_query(agent.runtime, agent.state, shell, hook_verdict)
    if call.name == _MERGE and services.worktrees is not None:  # it runs in the worktree, not in the session's folder
        worktree = services.worktrees.path(str(call.input.get("name", "")))
        query = replace(query, folders=replace(query.folders, root=worktree))
    decision = await services.judge.judge(query)
    if hook_verdict is not None and hook_verdict.decision == "ask" and decision.decision == "allow":
        return replace(decision, decision="ask", rule=hook_verdict.by, why=hook_verdict.why)
    return decision
