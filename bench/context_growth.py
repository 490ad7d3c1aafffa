"""CPU of one step's context work at 100 and at 5,000 messages: it should be the same.

The work is what an agent does with its context in a step: `deliver` (each event of the step is applied: mail, the
reply, a call from judged to merged), `fit` (the rule that asks the pipeline) and `render` (the pieces of the request).
Nothing is sent or written; the view is never shortened, since the window is large. Both lengths are measured in turn in
one process, from the same kind of history. Exits 1 when the longer costs more than `BOUND` times the shorter.
"""

from __future__ import annotations

import gc
import statistics
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import child

from callboard.core.apply import apply
from callboard.core.context.anchors import anchored
from callboard.core.context.presets import DEFAULT_PIPELINE
from callboard.core.decide import compaction
from callboard.core.mail import placed
from callboard.core.state import AgentState, Facts, ToolFacts
from callboard.words import events as ev
from callboard.words.specs import AgentSpec, ModelLimits
from callboard.words.values import Envelope, Json, ToolCall, Usage

BOUND = 1.3
"""A step at the longer over a step at the shorter length."""
LENGTHS = (100, 5_000)
"""Messages in the view when measuring begins."""
STEPS = 32
"""Steps of one measurement: as many as it takes to fill two chunks of the view."""
REPEATS = 41
RESULT = "All work and no play makes a dull log. " * 52
"""A tool result of 2 KB."""
PARTS = ("deliver", "fit", "render")
MODEL = "bench"


@dataclass(frozen=True)
class Step:
    """The events of one step, in order: up to the call, and from the reply to the merged results."""

    before: tuple[ev.Event, ...]
    after: tuple[ev.Event, ...]


def begun() -> AgentState:
    """An agent with a prompt, a window that is never full, and a person's request."""
    spec = AgentSpec(
        name="lead",
        kind="lead",
        agent_type="lead",
        model=MODEL,
        tools=("read_file",),
        models={MODEL: ModelLimits(window=100_000_000)},
        pipeline=DEFAULT_PIPELINE,
    )
    state = apply(AgentState(), ev.AgentStarted(at=0.0, spec=spec, session="bench", incarnation=1))
    state = apply(state, ev.PromptSet(at=0.0, system="s", tools="t", overhead_tokens=4_000))
    return apply(state, ev.TurnBegan(at=0.0, turn="turn", cause="env"))


def step_of(number: int) -> Step:
    """Step `number` of a session: a note from a mate, a reply that reads another file, and what came of it."""
    at, call = float(number), f"c{number}"
    note = Envelope(
        id=f"env_{number}", seq=number, sender="alice", recipient="lead", type="message", content=f"Part {number}?"
    )
    used: Json = {"type": "tool_use", "id": f"toolu_{number}", "name": "read_file", "input": {"path": f"n{number}.txt"}}
    given = ToolCall(id=call, use_id=f"toolu_{number}", name="read_file", input={"path": f"n{number}.txt"})
    return Step(
        before=(
            ev.EnvelopeReceived(at=at, envelope=note),
            ev.EnvelopesDelivered(at=at, ids=(note.id,), blocks=(placed(note),)),
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
                usage=Usage(input_tokens=10, cache_read_input_tokens=500 * number, output_tokens=60),
            ),
            ev.CallJudged(at=at, call=call, verdict="allow"),
            ev.ToolStarted(at=at, call=call, effect="read"),
            ev.FileSeen(at=at, path=f"n{number}.txt", digest="0" * 64),
            ev.ToolFinished(at=at, call=call, content=({"type": "text", "text": RESULT},)),
            ev.ToolSettled(at=at, call=call),
            ev.ResultsMerged(at=at),
        ),
    )


def live(state: AgentState, steps: Sequence[Step]) -> dict[str, float]:
    """CPU microseconds of each part of a step, as a mean over these steps from this state on."""
    asked: list[AgentState] = []

    def deliver() -> None:
        now = state
        for step in steps:
            now = applied(now, step.before[:-1])
            asked.append(now)
            now = applied(now, (step.before[-1], *step.after))

    spent = {"deliver": timed(deliver)}
    facts = Facts(now=1.0, tools={"read_file": ToolFacts("shared")}, folder="/out", transcripts="/t")
    wanted: list[object] = []
    spent["fit"] = timed(lambda: wanted.extend(compaction(one, facts) for one in asked))
    assert not any(wanted), f"the view is to stay whole, not {wanted}"
    spent["render"] = timed(lambda: [anchored(one.conversation) for one in asked])
    return {part: seconds / len(steps) * 1e6 for part, seconds in spent.items()}


def timed(work: Callable[[], object]) -> float:
    began = time.process_time()
    work()
    return time.process_time() - began


def applied(state: AgentState, events: Sequence[ev.Event]) -> AgentState:
    for event in events:
        state = apply(state, event)
    return state


def measured() -> dict[int, dict[str, float]]:
    """Microseconds of a step by length and part, medians of repeats that take turns."""
    steps = [step_of(number) for number in range(1, max(LENGTHS) // 2 + STEPS + 1)]
    starts = {count: grown(steps[: count // 2]) for count in LENGTHS}
    for count, state in starts.items():
        assert len(state.conversation.messages) == count + 1, "the history is whole, and its newest message open"
    runs: dict[int, list[dict[str, float]]] = {count: [] for count in LENGTHS}
    gc.collect()
    gc.disable()
    for _ in range(REPEATS):
        for count, state in starts.items():
            runs[count].append(live(state, steps[count // 2 : count // 2 + STEPS]))
    return {count: {part: statistics.median(run[part] for run in runs[count]) for part in PARTS} for count in LENGTHS}


def grown(steps: Sequence[Step]) -> AgentState:
    state = begun()
    for step in steps:
        state = applied(state, (*step.before, *step.after))
    return state


def main() -> int:
    costs = measured()
    rows = [
        [f"{count:,} messages", *(f"{costs[count][part]:.1f}" for part in PARTS), f"{sum(costs[count].values()):.1f}"]
        for count in LENGTHS
    ]
    print(child.table(["context work of a step, us", *PARTS, "all"], rows))
    short, long = (sum(costs[count].values()) for count in LENGTHS)
    ratio = long / short
    words = f"{LENGTHS[1]:,} messages over {LENGTHS[0]:,}"
    print(f"{words}: {ratio:.2f} (bound {BOUND}): {'ok' if ratio <= BOUND else 'OVER'}")
    return 0 if ratio <= BOUND else 1


if __name__ == "__main__":
    sys.exit(main())
