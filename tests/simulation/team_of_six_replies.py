"""What a team of six says: a lead and five mates, two of whom need their plans approved.

They work more to the point than a chaos does: plans are handed in, and again when they were rejected; tasks that were
claimed are finished, messages that are to be passed on are passed on. A reply follows from the seed, the agent, the
number of its call and what it was told, so that it is the same whoever asks again.
"""

from __future__ import annotations

import random
import re
from collections.abc import Callable

from tests.engine.team.team_world import spawn
from tests.simulation.chaos_replies import found_id, some_calls

from callboard.ports.model import ModelRequest, Reply
from callboard.testing import say, use
from callboard.types.records import Json

MATES = ("amy", "ben", "cat", "dan", "eve")
PLANNERS = frozenset({"amy", "ben"})
"""They start behind a closed gate."""
CALLS = {"lead": 9, "sub": 2}
MATE_CALLS = 5
"""After so many replies an agent says no more, so that every run ends."""
TREES = ("oak", "elm")
"""Names of worktrees."""
HOPS = 9
"""A message that is passed on goes so far, if nobody stops it."""
Draw = random.Random
Call = tuple[str, Json]
Make = Callable[[Draw, str, str], Call]


def six_say(seed: int, request: ModelRequest, overflowed: bool) -> Reply:
    """The reply to a call of a turn."""
    draw = Draw(f"{seed}/six/{request.agent}/{request.ordinal}")
    who = request.agent if request.agent == "lead" or request.agent in MATES else "sub"
    said = b"\n".join(request.messages).decode()
    if request.ordinal > CALLS.get(who, MATE_CALLS):
        return say("that is all")
    if who == "lead":
        return _lead(draw, said, request.ordinal)
    if who == "sub":
        return some_calls(draw, said, request.agent, _WORK) if draw.random() < 0.4 else say("found it")
    return _mate(draw, said, request.messages[-1].decode(), request)


def _lead(draw: Draw, said: str, ordinal: int) -> Reply:
    if ordinal == 1:
        mates = [spawn(name, plan_required=name in PLANNERS) for name in MATES[:-1]]
        mates.append(spawn(MATES[-1], **({"worktree": TREES[0]} if draw.random() < 0.4 else {})))
        return use(*mates[0], *mates[1:], *(_task(draw) for _ in range(3)))
    if ordinal == 2:
        waits = [_task(draw, blocked_by=[found_id("task", said, place)]) for place in (0, 1)]
        more = [("broadcast", {"content": "all are here"}), _passed_on(draw, HOPS, "lead")]
        if draw.random() < 0.6:
            more.append(_call("create_worktree", name=draw.choice(TREES), task_id=found_id("task", said, 2)))
        return use(*waits[0], *waits[1:], *more, *([_cron(draw)] if draw.random() < 0.15 else []))
    if draw.random() < 0.25:
        return say("so far so good")
    return some_calls(draw, said, "lead", (*_WORK, *_LEADING, *_LEADING, *_WRITING))


def _mate(draw: Draw, said: str, newest: str, request: ModelRequest) -> Reply:
    asked = re.search(r"a plan must be approved first|REJECTED|rejected|before it does|for a plan", newest)
    first = request.ordinal <= 2 and request.agent in PLANNERS
    passed = re.search(r"pass this on (\d+)", newest)
    mine = re.findall(r"You claimed (task_[a-z2-7]{12})", said)
    chance = draw.random()
    if "You are asked to stop" in newest and chance < 0.5:
        return use("refuse_shutdown", {"reason": "half done"})
    if (asked or first) and chance < 0.8:
        return use("submit_plan", {"plan": f"plan {request.ordinal} of {request.agent}: {draw.random()}"})
    if passed and chance < 0.9 and int(passed[1]):
        return use(*_passed_on(draw, int(passed[1]) - 1, request.agent))
    if mine and chance < 0.5:
        return use(*_worked(draw, mine[-1]))
    if chance < 0.7:
        return some_calls(draw, said, request.agent, (*_WORK, *_WRITING))
    if chance < 0.9:
        return use("report", {"status": draw.choice(("done", "done", "failed", "blocked")), "result": "so it is"})
    return say("that is it")


def _worked(draw: Draw, task: str) -> Call:
    """The end of the work on a task: mostly a good one."""
    name, field = draw.choice((*3 * (("complete_task", "result"),), ("fail_task", "reason"), ("release_task", "note")))
    return name, {"task_id": task, field: "so it went"}


def _passed_on(draw: Draw, left: int, me: str) -> Call:
    to = draw.choice([name for name in (*MATES, "lead") if name != me])
    return "send_message", {"to": to, "content": f"pass this on {left}"}


def _task(draw: Draw, **more: object) -> Call:
    return "create_task", {"subject": f"do {draw.random()}", **more}


def _taken(draw: Draw, said: str, me: str) -> Call:
    """A task given to somebody else, whoever works on it."""
    owner = draw.choice((*MATES, "nobody"))
    return "update_task", {"task_id": found_id("task", said, draw.choice((-1, -2, -3, 0))), "owner": owner}


def _tree(draw: Draw, said: str) -> str:
    """A worktree that it has heard of, if there is one."""
    return draw.choice(re.findall(rf"worktree ({'|'.join(TREES)})", said) or TREES)


def _merged(draw: Draw, said: str, me: str) -> Call:
    return "merge_worktree", {"name": _tree(draw, said)}


def _cron(draw: Draw) -> Call:
    return "schedule_cron", {"cron": "*/30 * * * *", "prompt": "look round", "recurring": draw.random() < 0.3}


def _likely(draw: Draw) -> bool:
    return draw.random() < 0.4


def _call(tool: str, /, **given: object) -> Call:
    return tool, dict(given)


_WORK: tuple[Make, ...] = (
    lambda draw, said, me: _call("read_file", path=f"{me}-{draw.choice('ab')}"),
    lambda draw, said, me: _call("write_file", path=f"{me}-{draw.choice('ab')}", text=str(draw.random())),
    lambda draw, said, me: _call("bash", command=str(draw.random())),
    lambda draw, said, me: _call("bash", command=str(draw.random()), run_in_background=True),
    lambda draw, said, me: _call("task_stop", id=found_id("bg", said)),
    lambda draw, said, me: _call("grep", pattern="it clings") if me in MATES else _call("list_tasks"),
    lambda draw, said, me: _call("grep", pattern="again") if me in MATES else _call("list_tasks"),
)
_WRITING: tuple[Make, ...] = (
    lambda draw, said, me: _call("send_message", to=draw.choice((*MATES, "lead")), content=f"hello {draw.random()}"),
    lambda draw, said, me: _call("broadcast", content=f"news {draw.random()}"),
    lambda draw, said, me: _passed_on(draw, HOPS, me),
    lambda draw, said, me: _call(
        "task", description="d", prompt="p", agent_type="explore", run_in_background=draw.random() < 0.5
    ),
    lambda draw, said, me: _call("claim_task", task_id=found_id("task", said)),
    lambda draw, said, me: _call("list_tasks"),
    lambda draw, said, me: _call("ask_person", question="which?"),
)
_LEADING: tuple[Make, ...] = (
    lambda draw, said, me: _call("request_plan", teammate=draw.choice(MATES), task="the roof"),
    lambda draw, said, me: _call("request_shutdown", teammate=draw.choice(MATES)),
    lambda draw, said, me: _call("request_shutdown", teammate=draw.choice(MATES)),
    lambda draw, said, me: _call(
        "review_plan", request_id=found_id("req", said), approve=_likely(draw), feedback="more"
    ),
    lambda draw, said, me: spawn(draw.choice(MATES), plan_required=draw.random() < 0.4),
    _taken,
    _taken,
    lambda draw, said, me: _call("create_worktree", name=draw.choice(TREES), task_id=found_id("task", said)),
    _merged,
    _merged,
    _merged,
    lambda draw, said, me: _call("remove_worktree", name=_tree(draw, said), discard_changes=draw.random() < 0.5),
    lambda draw, said, me: _task(draw),
)
