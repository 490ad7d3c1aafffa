"""What the agents of a chaos say: a lead that makes a team, and then all of them whatever comes to their minds.

A reply follows from the seed, the agent and the number of its call alone, so that it is the same whoever asks again.
"""

from __future__ import annotations

import random
import re
from collections.abc import Callable, Sequence
from dataclasses import replace

from tests.engine.team.team_world import spawn

from callboard.ports.model import ModelRequest, Reply
from callboard.testing import say, use
from callboard.types.records import Json

CALLS = 16
"""After so many replies an agent says no more, so that every run ends."""
OVERFLOW = "model_context_window_exceeded"
NAMES = ("alice", "bob", "carol")
Draw = random.Random
Call = tuple[str, Json]


def reply_of(seed: int, request: ModelRequest, overflowed: bool = False) -> Reply:
    """The reply to a call of a turn. `overflowed`: this call filled the window before."""
    draw = Draw(f"{seed}/{request.agent}/{request.ordinal}")
    said = b"\n".join(request.messages).decode()
    who = "lead" if request.agent == "lead" else "mate" if request.agent in NAMES else "sub"
    if request.ordinal > CALLS:
        return say("enough")
    if who == "lead" and request.ordinal == 1:
        return _beginning(draw)
    if _repeats(seed, request):
        return use("read_file", {"path": "the same"})
    if who == "mate" and b"You are asked to stop" in request.messages[-1] and draw.random() < 0.5:
        return use("refuse_shutdown", {"reason": "half done"})
    reply = draw.choice(_SAYS[who])(draw, said, request.agent)
    if overflowed and reply.stop_reason == OVERFLOW:
        return say("that fits")
    return _thought(reply, draw) if draw.random() < 0.2 else reply


def _repeats(seed: int, request: ModelRequest) -> bool:
    """Some agents do the same thing again and again for a while."""
    return Draw(f"{seed}/{request.agent}/repeats").random() < 0.15 and 5 <= request.ordinal <= 12


def _thought(reply: Reply, draw: Draw) -> Reply:
    """The reply with a thought before it."""
    if reply.stop_reason in ("max_tokens", "pause_turn"):
        return reply
    return replace(reply, blocks=({"type": "thinking", "thinking": f"hm {draw.random()}"}, *reply.blocks))


def _beginning(draw: Draw) -> Reply:
    """A team, two tasks, and often a schedule."""
    mates = [spawn("alice", plan_required=True), spawn("bob"), *([spawn("carol")] if draw.random() < 0.5 else [])]
    board = [("create_task", {"subject": f"task {number}"}) for number in range(2)]
    minutes = draw.choice((7, 30))
    cron = {"cron": f"*/{minutes} * * * *", "prompt": "look round", "recurring": draw.random() < 0.5}
    calls: list[Call] = [*mates, *board, *([("schedule_cron", cron)] if draw.random() < 0.4 else [])]
    return use(*calls[0], *calls[1:])


def _call(tool: str, /, **given: object) -> Call:
    return tool, dict(given)


def found_id(prefix: str, said: str, place: int = -1) -> str:
    """The newest id of that kind which the agent has heard of, or the one at that place."""
    found = re.findall(rf"{prefix}_[a-z2-7]{{12}}", said)
    return found[place] if -len(found) <= place < len(found) else f"{prefix}_none"


Make = Callable[[Draw, str, str], Call]
_CALLS: tuple[Make, ...] = (
    lambda draw, said, me: _call("read_file", path=f"{me}-{draw.choice('ab')}"),
    lambda draw, said, me: _call("read_file", path="long.txt"),
    lambda draw, said, me: _call("write_file", path=f"{me}-{draw.choice('ab')}", text=str(draw.random())),
    lambda draw, said, me: _call("bash", command=str(draw.random())),
    lambda draw, said, me: _call("bash", command="refuse"),
    lambda draw, said, me: _call("bash", command=str(draw.random()), run_in_background=True),
    lambda draw, said, me: _call("task_stop", id=found_id("bg", said)),
    lambda draw, said, me: _call("glob", pattern="raises"),
    lambda draw, said, me: _call("grep", pattern="hangs") if draw.random() < 0.3 else _call("list_tasks"),
    lambda draw, said, me: _call("bahs", command="no such tool"),
    lambda draw, said, me: _call("read_file", file="no such field"),
    lambda draw, said, me: _call("load_skill", name=draw.choice(("one", "two"))),
    lambda draw, said, me: _call(
        "todo_write", todos=[{"content": "x", "status": draw.choice(("pending", "completed"))}]
    ),
    lambda draw, said, me: _call("task", description="d", prompt="p", agent_type="explore"),
    lambda draw, said, me: _call("create_task", subject=f"do {draw.random()}"),
    lambda draw, said, me: _call("claim_task", task_id=found_id("task", said)),
    lambda draw, said, me: _call("complete_task", task_id=found_id("task", said), result="r"),
    lambda draw, said, me: _call("fail_task", task_id=found_id("task", said), why="no way"),
    lambda draw, said, me: _call("release_task", task_id=found_id("task", said)),
    lambda draw, said, me: _call("send_message", to=draw.choice((*NAMES, "lead")), content="hello"),
    lambda draw, said, me: _call("ask_person", question="which?"),
)


def some_calls(draw: Draw, said: str, me: str, makes: Sequence[Make] = _CALLS) -> Reply:
    """One to five of the calls that may be made."""
    calls = [draw.choice(makes)(draw, said, me) for _ in range(draw.randint(1, 5))]
    return use(*calls[0], *calls[1:], text=draw.choice(("", "Let me see.")))


Says = Callable[[Draw, str, str], Reply]
_ANYONE: tuple[Says, ...] = (
    some_calls,
    some_calls,
    some_calls,
    some_calls,
    lambda draw, said, me: say("that is all"),
    lambda draw, said, me: say("cut", "max_tokens") if draw.random() < 0.5 else say("stop", "stop_sequence"),
    lambda draw, said, me: replace(some_calls(draw, said, me), stop_reason="max_tokens"),
    lambda draw, said, me: say("paused", "pause_turn"),
    lambda draw, said, me: say("no", "refusal") if draw.random() < 0.3 else say(""),
    lambda draw, said, me: say("full", OVERFLOW) if draw.random() < 0.3 else say("well"),
    lambda draw, said, me: use("compact", {}, _call("bash", command="after the barrier")),
)
_LEAD: tuple[Says, ...] = (
    lambda draw, said, me: use(*spawn(draw.choice(NAMES), plan_required=draw.random() < 0.4), spawn("carol")),
    lambda draw, said, me: use("request_plan", {"teammate": draw.choice(NAMES), "task": "the roof"}),
    lambda draw, said, me: use("request_shutdown", {"teammate": draw.choice(NAMES)}),
    lambda draw, said, me: use("broadcast", {"content": "news"}),
    lambda draw, said, me: use("review_plan", {"request_id": found_id("req", said), "approve": draw.random() < 0.5}),
    lambda draw, said, me: use("cancel_cron", {"job_id": found_id("cron", said)}),
)
_MATE: tuple[Says, ...] = (
    lambda draw, said, me: use(
        "report", {"status": draw.choice(("done", "done", "failed", "blocked")), "result": "so it is"}
    ),
    lambda draw, said, me: use(
        "submit_plan", {"plan": f"plan {draw.random()}"}, _call("bash", command="in the same reply")
    ),
)
_SAYS: dict[str, tuple[Says, ...]] = {
    "lead": (*_ANYONE, *_LEAD),
    "mate": (*_ANYONE, *_MATE, *_MATE),
    "sub": _ANYONE,
}
