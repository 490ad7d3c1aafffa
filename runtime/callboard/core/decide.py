"""What an agent does next: `decide(state, facts) -> Step`, an ordered list of rules; the first that fits wins.

A rule is a plain function of the state and the facts that returns a step or None. The order is the policy:

    ended -> stop and interrupt -> tasks taken away -> answers to requests -> work without an owner -> edits to take
    back -> failure of a model call -> its folder -> calls of the reply (barrier, permission, run, settle, merge) ->
    hooks of its beginning -> end asked for -> plan pending -> count -> compaction -> injections -> mail ->
    repetition -> ask the model (limits first) -> Stop hooks -> end of turn -> board -> idle

A step that starts an operation is never asked for twice: the operation is in `facts.running`, or its beginning is in
the journal. So every call of `decide` brings the agent on, or waits.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

from callboard.core.asking.gate import NOT_RUN
from callboard.core.budget.limits import Call, next_call, time_is_up
from callboard.core.budget.tree import NOTHING, deadline
from callboard.core.bus.delivery import await_recorded, deliverable
from callboard.core.context.compacting import compaction
from callboard.core.context.counting import COUNT, count
from callboard.core.context.undoing import undoing
from callboard.core.context.view.conversation import size
from callboard.core.hooks.moments import BATCH_HOOKS, HOOKS, SKILLS, starting
from callboard.core.recovery import turns as rec
from callboard.core.recovery.fallback import Demand
from callboard.core.state import AgentState, CallState, Facts
from callboard.core.stuck import noticed
from callboard.core.team.moving import moving
from callboard.core.team.standing import final_words
from callboard.words import steps as st
from callboard.words.values import Request

Rule = Callable[[AgentState, Facts], st.Step | None]

READS_AT_ONCE = 10
"""Shared calls of one reply that run together."""
MAX_DEPTH = 6
"""Hops between agents without a person, a schedule, or a change to a task or file."""
MODEL, SUMMARY, REMINDERS = "model", "summary", "reminders"
WAITED_FOR = HOOKS | {REMINDERS, COUNT, SKILLS}
"""Operations that the model is not asked beside."""


def decide(state: AgentState, facts: Facts) -> st.Step:
    """The next step. Total: some rule always fits, at last `idle`."""
    step, rules = None, iter(RULES)
    while step is None:
        step = next(rules)(state, facts)
    return step


def ended(state: AgentState, facts: Facts) -> st.Step | None:
    if state.ended is None:
        return None
    return st.Done(state.ended.outcome, state.ended.result)


def stopping(state: AgentState, facts: Facts) -> st.Step | None:
    """Stop, shutdown or interrupt: cancel what runs, settle what is open, end the turn, and the life if asked."""
    turn = state.turn
    why = _why_halt(state, facts)
    if not why:
        return None
    kept = ("end:",) if state.stop else ("end:", "bg:")
    running = tuple(sorted(op for op in facts.running if not op.startswith(kept)))
    if running:
        return st.Cancel(running)
    if state.call is not None or any(one.stage != "settled" for one in state.calls) or state.summary:
        return st.Interrupt("stopped" if state.stop else why)
    if state.calls:
        return st.Merge()
    if turn is not None:
        if state.stop or why != "limit":
            return st.EndTurn("stopped" if state.stop else "interrupted")
        return time_is_up(state, facts)
    if not state.stop:
        return None
    return commands_left(state, facts) or st.Stop("stopped", state.reported or state.last_text)


def commands_left(state: AgentState, facts: Facts) -> st.Step | None:
    """Background commands end with the life that started them: nobody else would hear of them. The next life of a name
    that is renewed takes them over."""
    left = [one for one, bg in state.background.items() if bg.status == "running"] if not state.renew else []
    mine = tuple(one for one in left if f"end:{one}" not in facts.running)
    if mine:
        return st.EndCommands(mine)
    return st.Wait(None, "background commands end") if left else None


def _why_halt(state: AgentState, facts: Facts) -> str:
    if state.stop:
        return "stopped"
    if state.turn is None:
        return "interrupted" if state.summary_halted and state.summary else ""
    if state.turn.interrupted:
        return "interrupted"
    return "limit" if time_is_up(state, facts) else ""


def answers(state: AgentState, facts: Facts) -> st.Step | None:
    """Requests of this agent that are no longer pending, or past their deadline."""
    for request in _open_requests(state, facts):
        if request.status != "pending" and f"answer:{request.id}" not in facts.running:
            return st.TakeAnswer(request)
        if request.status == "pending" and request.expires_at is not None and facts.now >= request.expires_at:
            return st.Expire(request)
    return None


def _open_requests(state: AgentState, facts: Facts) -> Iterator[Request]:
    ids = [one.request_id for one in state.calls if one.stage == "asking"]
    if state.gate.gate == "pending":
        ids.append(state.gate.request_id)
    for request_id in ids:
        if request_id and request_id in facts.requests:
            yield facts.requests[request_id]


def taken(state: AgentState, facts: Facts) -> st.Step | None:
    """The lead or a person took a task from it: it knows so before its next step."""
    return st.LetGo(facts.taken) if facts.taken else None


def orphans(state: AgentState, facts: Facts) -> st.Step | None:
    """Work that the journal says is under way and that nobody here owns: its process died."""
    if state.call is not None and state.call.purpose == "turn" and MODEL not in facts.running:
        return st.LoseCall()
    if state.summary is not None and SUMMARY not in facts.running:
        return st.Summarise(state.summary, begun=True)
    lost = tuple(c.call.id for c in state.calls if c.stage == "started" and f"tool:{c.call.id}" not in facts.running)
    if lost:
        return st.Repair(lost)
    unwatched = tuple(
        one for one, bg in state.background.items() if bg.status == "running" and f"bg:{one}" not in facts.running
    )
    return st.Watch(unwatched) if unwatched else None


def failure(state: AgentState, facts: Facts) -> st.Step | None:
    """A failed model call: what recovery says."""
    recovery, spec = state.recovery, state.me
    if recovery.failure is None or state.turn is None:
        return None
    demand = Demand(size(state.conversation), recovery.output_limit or spec.output_tokens, recovery.escalated)
    return rec.recover(recovery.failure, recovery, spec, facts.now, demand)


def calls(state: AgentState, facts: Facts) -> st.Step | None:
    """The tool calls of the reply, each as far as it can go while its siblings wait."""
    if not state.calls:
        return None
    if state.turn is not None and state.turn.winding_down:
        proposed = tuple(one.call.id for one in state.calls if one.stage == "proposed")
        if proposed:
            return st.Skip(proposed, f"Not run: {state.turn.winding_down}.", "budget")
    stages = {one.stage for one in state.calls}
    step = _proposed(state, facts) if "proposed" in stages else None
    if step is not None:
        return step
    run = runnable(state.calls, facts) if "allowed" in stages else ()
    if run:
        return st.Run(run)
    finished = (c.call.id for c in state.calls if c.stage == "finished") if "finished" in stages else ()
    settle = tuple(call for call in finished if f"settle:{call}" not in facts.running)
    if settle:
        return st.Settle(settle)
    if stages == {"settled"} and BATCH_HOOKS not in facts.running:
        return st.Merge(_only_watches(state, facts), facts.batch)
    return st.Wait(_next_time(state, facts), _waiting_for(state))


def _proposed(state: AgentState, facts: Facts) -> st.Step | None:
    """Calls that nobody has judged yet; those behind a barrier are not run."""
    barrier = _barrier(state, facts)
    after = [] if barrier is None else [c for c in state.calls[barrier + 1 :] if c.stage == "proposed"]
    if after:
        return st.Skip(tuple(c.call.id for c in after), f"{NOT_RUN}." if _submits(state, barrier) else "Not run.")
    before_done = barrier is None or all(c.stage == "settled" for c in state.calls[:barrier])
    judge = tuple(
        c.call.id
        for place, c in enumerate(state.calls)
        if c.stage == "proposed" and f"judge:{c.call.id}" not in facts.running and (place != barrier or before_done)
    )
    return st.Judge(judge) if judge else None


def _only_watches(state: AgentState, facts: Facts) -> bool:
    """The calls look at what others do, and something of that is under way."""
    tools = [facts.tools.get(one.call.name) for one in state.calls]
    if not all(tool is not None and tool.watches for tool in tools):
        return False
    return facts.others_at_work or any(one.status == "running" for one in state.background.values())


def _submits(state: AgentState, barrier: int | None) -> bool:
    return barrier is not None and state.calls[barrier].call.name == "submit_plan"


def _barrier(state: AgentState, facts: Facts) -> int | None:
    """The place of the first call that lets nothing after it run."""
    for place, one in enumerate(state.calls):
        tool = facts.tools.get(one.call.name)
        if tool is not None and tool.barrier and not one.denied:
            return place
    return None


def runnable(calls: tuple[CallState, ...], facts: Facts) -> tuple[str, ...]:
    """The allowed calls that may start now: shared ones together, keyed ones one by one for each key, exclusive ones
    alone. An exclusive call waits for all earlier ones that may still run, and later ones wait for it."""
    if not any(c.stage == "allowed" and f"tool:{c.call.id}" not in facts.running for c in calls):
        return ()
    run: list[str] = []
    kinds = [_concurrency(c, facts) for c in calls]
    begun = [c.stage == "started" or (c.stage == "allowed" and f"tool:{c.call.id}" in facts.running) for c in calls]
    if any(runs and kind == "exclusive" for runs, kind in zip(begun, kinds, strict=True)):
        return ()
    reads = sum(1 for c, runs in zip(calls, begun, strict=True) if runs and c.call.name != "task")
    busy = {facts.keys.get(c.call.id, "") for c, runs in zip(calls, begun, strict=True) if runs}
    for one, kind, runs in zip(calls, kinds, begun, strict=True):
        waits = one.stage == "allowed" and not runs
        if kind == "exclusive" and waits:
            return tuple(run) if run or any(begun) else (one.call.id,)
        key = facts.keys.get(one.call.id, "") if kind == "keyed" else ""
        room = reads < READS_AT_ONCE or one.call.name == "task"
        if waits and room and not (key and key in busy):
            run.append(one.call.id)
            reads += one.call.name != "task"
        if key and one.open:
            busy.add(key)
    return tuple(run)


def _concurrency(one: CallState, facts: Facts) -> str:
    """A tool that is not known any more runs alone."""
    tool = facts.tools.get(one.call.name)
    return tool.concurrency if tool else "exclusive"


def model_under_way(state: AgentState, facts: Facts) -> st.Step | None:
    busy = state.call is not None or state.summary is not None or facts.running & WAITED_FOR
    return st.Wait(_next_time(state, facts), "model") if busy else None


def ending(state: AgentState, facts: Facts) -> st.Step | None:
    """A tool asked for the end of the turn, and its result is merged."""
    if state.turn is None or not state.turn.ending:
        return None
    return st.EndTurn("end")


def cut_reply(state: AgentState, facts: Facts) -> st.Step | None:
    """The newest reply was cut at the highest output limit, or paused once too often."""
    if state.turn is None or state.turn.winding_down:
        return None
    return rec.after_cut(state.recovery) if state.recovery.cut else rec.after_pause(state.recovery)


def plan_pending(state: AgentState, facts: Facts) -> st.Step | None:
    """A plan waits: no model call until the answer; mail stays in the mailbox."""
    if state.gate.gate != "pending":
        return None
    return st.Wait(_next_time(state, facts), f"plan {state.gate.request_id}")


def injections(state: AgentState, facts: Facts) -> st.Step | None:
    """Waiting injections go into the user message that is about to be sent; alone they wake nobody."""
    if state.turn is None or not state.injections:
        return None
    return st.Inject() if state.wants_reply or deliverable(state, facts) else None


def mail(state: AgentState, facts: Facts) -> st.Step | None:
    """All mail that may enter goes into one user message; mail that wakes begins a turn."""
    if state.turn is not None and (state.recovery.waiting_until > facts.now or state.turn.winding_down):
        return None
    ready = deliverable(state, facts)
    too_deep = tuple(e.id for e in ready if e.depth > MAX_DEPTH)
    if too_deep:
        return st.Drop(too_deep, f"more than {MAX_DEPTH} hops between agents with no task or file changed")
    if state.turn is None and state.wants_reply and state.injections:
        return st.BeginTurn(state.injections[0].key or state.injections[0].kind)
    if not ready:
        return await_recorded(state, facts)
    if state.turn is None:
        waking = next((e for e in ready if e.mode == "wake"), None)
        return st.BeginTurn(waking.id) if waking else None
    return st.Deliver(tuple(e.id for e in ready))


def stuck(state: AgentState, facts: Facts) -> st.Step | None:
    """It repeats itself: it is told the first time in a turn, and stopped the next time. A turn that winds down has its
    last call in any case."""
    turn = state.turn
    if turn is None or not state.wants_reply or turn.winding_down:
        return None
    found = noticed(turn.stuck, state.me.stuck_after)
    if found is None:
        return None
    return st.NoticeStuck(found.pattern, found.count, found.what, "stop" if turn.stuck.nudged else "nudge")


def ask(state: AgentState, facts: Facts) -> st.Step | None:
    """The model's turn to speak: unless a limit is reached, or it must wait."""
    if state.turn is None or not state.wants_reply:
        return None
    call = next_call(state, facts)
    if not isinstance(call, Call):
        return call
    wait = max(state.recovery.waiting_until, facts.parked_until)
    if wait > facts.now:
        return st.Wait(min(wait, _next_time(state, facts) or wait), "rate")
    spec = state.me
    model, worst = rec.model_in_use(state.recovery, spec), call.worst or NOTHING
    asked = state.ordinal + 1, state.recovery.attempts + 1, model, call.max_tokens
    return st.AskModel(*asked, worst.tokens, worst.cost_usd, call.last)


def end_of_turn(state: AgentState, facts: Facts) -> st.Step | None:
    """The model has said all it wants: Stop hooks, then the end."""
    turn = state.turn
    if turn is None or (turn.wakes == () and turn.steps == 0):
        blocked = turn is not None and turn.refused
        return st.EndTurn("blocked" if blocked else "end", blocked or "") if turn is not None else None
    if turn.winding_down:
        return st.EndTurn("limit", turn.winding_down)
    if state.stop_reason == "refusal":
        return st.EndTurn("refused", rec.REFUSED)
    if facts.hooks and not turn.stop_asked and turn.stop_blocks < state.me.stop_hook_cap:
        return st.AskStopHooks()
    return st.EndTurn("end")


def rest(state: AgentState, facts: Facts) -> st.Step | None:
    """Between turns: a subagent is done, a teammate looks at the board, everyone else is idle."""
    if state.me.kind == "subagent" and state.turns > 0 and not state.mail:
        return commands_left(state, facts) or st.Stop(_outcome(state), final_words(state))
    if facts.claimable and not state.tasks and state.gate.gate != "pending":
        return st.Claim(facts.claimable)
    return st.Wait(None, "idle")


def _outcome(state: AgentState) -> st.Outcome:
    """How a life of one turn ended."""
    match state.last_reason:
        case "end":
            return "done"
        case "limit":
            return "limit"
        case "stopped" | "interrupted":
            return "stopped"
        case _:
            return "failed"


def _next_time(state: AgentState, facts: Facts) -> float | None:
    """The next moment at which time alone changes the decision."""
    times = [r.expires_at for r in _open_requests(state, facts) if r.expires_at is not None]
    if state.turn is not None and state.me.limits.seconds is not None:
        times.append(state.turn.began_at + state.me.limits.seconds)
    end = deadline(facts.budgets) if state.turn is not None else None
    if end is not None:
        times.append(end)
    # What is past is decided on already: to wait for it would be to ask again at once, for ever.
    return min((time for time in times if time > facts.now), default=None)


def _waiting_for(state: AgentState) -> str:
    asking = [one.request_id for one in state.calls if one.stage == "asking"]
    return f"permission {asking[0]}" if asking else "tools"


RULES: tuple[Rule, ...] = (
    ended,
    stopping,
    taken,
    answers,
    orphans,
    undoing,
    failure,
    moving,
    calls,
    starting,
    model_under_way,
    ending,
    cut_reply,
    plan_pending,
    count,
    compaction,
    injections,
    mail,
    stuck,
    ask,
    end_of_turn,
    rest,
)
