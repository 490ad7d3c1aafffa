"""Compare the CPU of one step's context work at message 100 and at message 5,000: it should be equal.

The work is everything that an agent does with its context in a step: `deliver` applies each event of the step (mail,
the reply, a call from its decision to its merged result), `fit` runs the rule that asks the pipeline, and `render`
makes the pieces of the request. Nothing is sent or written. There are two kinds of session: one with a window so large
that no edit is ever due, so that the view contains all 5,000 messages; and one with the default pipeline, whose edits
are applied, with a fixed text as summary. Both lengths are measured in turn in one process. Exit with 1 if the longer
one costs more than `BOUND` times the shorter one in either kind.
"""

from __future__ import annotations

import gc
import statistics
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import child

from callboard.core.agent.apply import apply
from callboard.core.agent.rules.compaction import compact_view, room
from callboard.core.agent.state import AgentState, Facts, ToolFacts
from callboard.core.context.cache.breakpoints import marks, with_marks
from callboard.core.context.pipeline import DEFAULT_PIPELINE
from callboard.core.context.summary.request import summary_edits
from callboard.core.messaging.envelopes import envelope_block
from callboard.types import events as ev
from callboard.types.agent_spec import AgentSpec, ModelLimits, StageSpec
from callboard.types.messages import StateBlock
from callboard.types.records import Envelope, Json, ToolCall, Usage
from callboard.types.steps import EditView, SummarizeView

BOUND = 1.3
"""Greatest ratio of a step at the longer length to one at the shorter length."""
LENGTHS = (100, 5_000)
"""Numbers of messages in the view when a measurement begins."""
STEPS = 128
"""Steps of one measurement: enough for several chunks of the view, several batches of edits, and a summary."""
TURN = 20
"""Number of steps in a turn."""
REPEATS = 15
RESULT = "All work and no play makes a dull log. " * 52
"""A tool result of 2 KB."""
PARTS = ("deliver", "fit", "render", "all", "default")
MODEL = "bench"
THRESHOLDS = ("persist_large_results", "clear_old_results", "summarize_all")
SUMMARY = "- read part after part, and found nothing to do. " * 10


@dataclass(frozen=True)
class Step:
    """The events of one step, in order: up to the call, and from the reply to the merged results."""

    before: tuple[ev.Event, ...]
    after: tuple[ev.Event, ...]


def begun(*, whole: bool) -> AgentState:
    """Return an agent with a prompt and a turn. `whole`: its window never fills, and its stages have its thresholds."""
    spec = AgentSpec(
        name="lead",
        kind="lead",
        agent_type="lead",
        model=MODEL,
        tools=("read_file",),
        models={MODEL: ModelLimits(window=100_000_000)} if whole else {},
        pipeline=tuple(StageSpec(stage=name) for name in THRESHOLDS) if whole else DEFAULT_PIPELINE,
    )
    state = apply(AgentState(), ev.AgentStarted(at=0.0, spec=spec, session="bench", incarnation=1))
    state = apply(state, ev.PromptSet(at=0.0, system="s", tools="t", overhead_tokens=4_000))
    return apply(state, ev.TurnBegan(at=0.0, turn="turn", cause="env"))


def step_of(number: int) -> Step:
    """Return step `number` of a session: a note from a teammate, a reply that reads another file, and its result."""
    at, call = float(number), f"c{number}"
    note = Envelope(
        id=f"env_{number}", seq=number, sender="alice", recipient="lead", type="message", content=f"Part {number}?"
    )
    used: Json = {"type": "tool_use", "id": f"toolu_{number}", "name": "read_file", "input": {"path": f"n{number}.txt"}}
    given = ToolCall(id=call, use_id=f"toolu_{number}", name="read_file", input={"path": f"n{number}.txt"})
    ended = ev.TurnEnded(at=at, turn="t", reason="end")
    turn = () if number % TURN else (ended, ev.TurnBegan(at=at, turn=call, cause=note.id))
    return Step(
        before=(
            *turn,
            ev.EnvelopeReceived(at=at, envelope=note),
            ev.EnvelopesDelivered(at=at, ids=(note.id,), blocks=(envelope_block(note),)),
            ev.ModelCalled(at=at, ordinal=number, attempt=1, model=MODEL, max_tokens=8_000),
        ),
        after=(
            ev.ModelReplied(
                at=at,
                ordinal=number,
                model=MODEL,
                stop_reason="tool_use",
                blocks=({"type": "text", "text": "The next part."}, used),
                calls=(given,),
                usage=Usage(input_tokens=10, cache_read_input_tokens=90, output_tokens=60),
            ),
            ev.CallJudged(at=at, call=call, verdict="allow"),
            ev.ToolStarted(at=at, call=call, effect="read"),
            ev.FileSeen(at=at, path=f"n{number}.txt", digest="0" * 64),
            ev.ToolFinished(at=at, call=call, content=({"type": "text", "text": RESULT},)),
            ev.ToolSettled(at=at, call=call),
            ev.ResultsMerged(at=at),
        ),
    )


def whole_view(state: AgentState, steps: Sequence[Step]) -> dict[str, float]:
    """Return the CPU microseconds of each part of a step, as a mean over these steps from this state."""
    asked: list[AgentState] = []

    def deliver() -> None:
        now = state
        for step in steps:
            now = applied(now, step.before[:-1])
            asked.append(now)
            now = applied(now, (step.before[-1], *step.after))

    spent = {"deliver": timed(deliver)}
    wanted: list[object] = []
    spent["fit"] = timed(lambda: wanted.extend(compact_view(one, facts(one)) for one in asked))
    assert not any(wanted), "the view must stay whole"
    spent["render"] = timed(lambda: [sent_messages(one) for one in asked])
    return {part: seconds / len(steps) * 1e6 for part, seconds in spent.items()}


def sent_messages(state: AgentState) -> list[bytes]:
    """Return the messages of the next request, in pieces."""
    conversation = state.context.conversation
    return with_marks(conversation, marks(conversation, state.costs.cycle))


def compacted(state: AgentState, steps: Sequence[Step]) -> AgentState:
    """Return the state after these steps under its pipeline; the pieces of each request are made and discarded."""
    for step in steps:
        state = applied(state, step.before[:-1])
        while wanted := compact_view(state, facts(state)):
            state = applied(state, edit(state, wanted))
        sent_messages(state)
        state = applied(state, (step.before[-1], *step.after))
    return state


def facts(state: AgentState) -> Facts:
    """Return the facts for the rule: the newest record is one second old."""
    tools = {"read_file": ToolFacts("read")}
    return Facts(now=state.costs.cache.used_at + 1, tools=tools, folder="/out", transcripts="/t", known=StateBlock())


def edit(state: AgentState, wanted: object) -> Sequence[ev.Event]:
    """Return the records of an edit that a stage requested."""
    conv, at = state.context.conversation, state.costs.cache.used_at + 1
    if isinstance(wanted, EditView):
        made = ev.ContextEdited(at=at, stage=wanted.stage, revision=conv.revision, edits=wanted.edits)
        return (made,)
    assert isinstance(wanted, SummarizeView), wanted
    began = ev.SummaryBegan(at=at, wanted=wanted.wanted, revision=conv.revision, transcript="/t/1.jsonl")
    edits = summary_edits(conv, wanted.wanted, SUMMARY, state=StateBlock(), transcript="/t/1.jsonl", budget=room(state))
    assert edits, "the summary must be short enough"
    done = ev.ContextEdited(at=at, stage=wanted.wanted.stage, revision=conv.revision, edits=tuple(edits))
    return began, done


def timed(work: Callable[[], object]) -> float:
    began = time.process_time()
    work()
    return time.process_time() - began


def applied(state: AgentState, events: Sequence[ev.Event]) -> AgentState:
    for event in events:
        state = apply(state, event)
    return state


def grown(steps: Sequence[Step]) -> AgentState:
    state = begun(whole=True)
    for step in steps:
        state = applied(state, (*step.before, *step.after))
    return state


def measured(steps: Sequence[Step]) -> dict[int, dict[str, float]]:
    """Return the microseconds of a step by length and part, as medians of alternating repeats.

    `all` is the sum for the whole view, `default` the same work under the default pipeline.
    """
    starts = {count: grown(steps[: count // 2]) for count in LENGTHS}
    for count, state in starts.items():
        assert len(state.context.conversation.messages) == count + 1, "the view must be whole and open at its end"
    shortened = {count: compacted(begun(whole=False), steps[: count // 2]) for count in LENGTHS}
    runs: dict[int, list[dict[str, float]]] = {count: [] for count in LENGTHS}
    gc.collect()
    gc.disable()
    for _ in range(REPEATS):
        for count in LENGTHS:
            coming = steps[count // 2 : count // 2 + STEPS]
            run = whole_view(starts[count], coming)
            under = timed(lambda state=shortened[count], steps=coming: compacted(state, steps))
            runs[count].append({**run, "all": sum(run.values()), "default": under / STEPS * 1e6})
    return {count: {part: statistics.median(run[part] for run in runs[count]) for part in PARTS} for count in LENGTHS}


def main() -> int:
    costs = measured([step_of(number) for number in range(1, max(LENGTHS) // 2 + STEPS + 1)])
    head = ["context work of a step, us", *PARTS[:-1], "default pipeline"]
    print(child.table(head, [[f"message {n:,}", *(f"{costs[n][part]:.1f}" for part in PARTS)] for n in LENGTHS]))
    short, long = (costs[count] for count in LENGTHS)
    ratios = {"a whole view": long["all"] / short["all"], "the default pipeline": long["default"] / short["default"]}
    for what, ratio in ratios.items():
        words = f"{what}, message {LENGTHS[1]:,} over {LENGTHS[0]:,}"
        print(f"{words}: {ratio:.2f} (bound {BOUND}): {'ok' if ratio <= BOUND else 'OVER'}")
    return 0 if max(ratios.values()) <= BOUND else 1


if __name__ == "__main__":
    sys.exit(main())
