"""Limits on the messages and tasks of an agent, and on how often messages alone may wake it. Pure.

    limit on               number                                     beyond the limit
    ---------------------  -----------------------------------------  ----------------------------------------------
    messages of a sender   `BURST`, and `PER_MINUTE` more a minute    `send_message` and `broadcast` are denied; the
                                                                      denial states the time of the next message
    denied messages        `stuck_detector.MOST_UNSENT` in a turn     the agent counts as stuck: a nudge, then the
                                                                      end of its turn and `PENALTY`
    tasks of a creator     `BURST`, and `PER_MINUTE` more a minute    `create_task` is denied; the denial states the
                                                                      time of the next task
    denied tasks           `stuck_detector.MOST_UNSENT` in a turn     as for denied messages
    turns of one agent     `MOST_WAKES`, and `WAKES_PER_MINUTE` more  the messages wait until they may wake again, or
    that another wakes     a minute                                   until other mail wakes; then all are read

Other work does not raise the limits: neither other calls nor changed files justify a flood. A prompt of the user or of
a schedule resets all counts of its recipient, because no agent can cause one.

`BURST` equals the number that the stuck detector allows without other work. Ten messages and a new file in each reply
of one teammate caused 344 model calls and cost 5.16 dollars in 45 seconds: a message that wakes its recipient costs a
model call. A hundred tasks in each reply of one teammate were 2,600 tasks and 1.93 dollars in 100 seconds, and each
task begins a turn of another agent. With `WAKES_PER_MINUTE`, a team that works for hours pays for at most one such call
a minute. `PER_MINUTE` is less than the number of unread messages that a mailbox may hold, so a steady reporter is never
refused; a flood is faster.

Times are the seconds since `MailCounts.at`. `decide` uses the clock for time limits (`engine/awake_time.py`). The fold
of a journal has only wall-clock times: a clock that was set back counts as no time, and one that was set forward fills
the counts up at most once.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import field
from typing import Literal

from callboard.core.frozen import replace
from callboard.types.lazy_dataclass import dataclass
from callboard.types.records import Envelope

BURST = 100
"""Most messages of an agent at once, and most tasks that it creates at once."""
PER_MINUTE = 10.0
"""Further messages, and further tasks, allowed per minute."""
PENALTY = 60.0
"""Minutes without any message, or any new task, after a turn that ended because of too many."""
MOST_WAKES = 100
"""Most turns in a row that the messages of one agent may begin."""
WAKES_PER_MINUTE = 1.0
"""Further turns allowed per minute."""
MAIL_TOOLS = frozenset({"send_message", "broadcast"})
TASK_TOOLS = frozenset({"create_task"})
_BEGINS_ANEW = frozenset({"prompt", "scheduled"})
_OF_NO_AGENT = frozenset({"person", "runtime"})
_CLOSE = 1e-6
"""Tolerance for sums of floats, in messages and tasks."""


@dataclass(frozen=True)
class MailCounts:
    """Counts of the messages that an agent has sent, the tasks that it created, and the turns that messages began."""

    sent: float = 0.0
    """Messages that count at `at`; the time since then reduces them."""
    at: float = 0.0
    wakes: Mapping[str, float] = field(default_factory=dict[str, float])
    """Sender -> turns that its messages began and that count at `at`."""
    created: float = 0.0
    """Created tasks that count at `at`; the time since then reduces them."""


def counts_after(counts: MailCounts, seconds: float) -> MailCounts:
    """Return the counts this many seconds after `at`."""
    minutes = max(0.0, seconds) / 60
    wakes = {name: count - minutes * WAKES_PER_MINUTE for name, count in counts.wakes.items()}
    return MailCounts(
        sent=max(0.0, counts.sent - minutes * PER_MINUTE),
        at=counts.at + max(0.0, seconds),
        wakes={name: count for name, count in wakes.items() if count > 0},
        created=max(0.0, counts.created - minutes * PER_MINUTE),
    )


def allowed_messages(counts: MailCounts, seconds: float) -> int:
    """Return the number of messages that the agent may send this many seconds after `at`."""
    return max(0, math.floor(BURST - counts_after(counts, seconds).sent + _CLOSE))


def allowed_tasks(counts: MailCounts, seconds: float) -> int:
    """Return the number of tasks that the agent may create this many seconds after `at`."""
    return max(0, math.floor(BURST - counts_after(counts, seconds).created + _CLOSE))


def seconds_muted(counts: MailCounts, seconds: float, envelope: Envelope) -> float:
    """Return the seconds until an envelope may wake its recipient, this many seconds after `at`."""
    if not _is_message(envelope):
        return 0.0
    surplus = counts_after(counts, seconds).wakes.get(envelope.sender, 0.0) - (MOST_WAKES - 1)
    return surplus * 60 / WAKES_PER_MINUTE if surplus > _CLOSE else 0.0


def after_sending(counts: MailCounts, messages: int, at: float) -> MailCounts:
    """Return the counts after messages were sent. They were within the limit, whatever the clock shows."""
    if not messages:
        return counts
    current = _moved(counts, at)
    return replace(current, sent=min(BURST, current.sent + messages))


def after_creating(counts: MailCounts, tasks: int, at: float) -> MailCounts:
    """Return the counts after tasks were created. They were within the limit, whatever the clock shows."""
    if not tasks:
        return counts
    current = _moved(counts, at)
    return replace(current, created=min(BURST, current.created + tasks))


def after_flood(counts: MailCounts, kind: Literal["mail", "tasks"], at: float) -> MailCounts:
    """Return the counts after a turn ended because of too many messages or tasks."""
    current = _moved(counts, at)
    full = BURST + PENALTY * PER_MINUTE
    return replace(current, sent=full) if kind == "mail" else replace(current, created=full)


def after_wake(counts: MailCounts, cause: Envelope | None, at: float) -> MailCounts:
    """Return the counts after an envelope began a turn. It was within the limit, whatever the clock shows."""
    if cause is None or not _is_message(cause):
        return counts
    current = _moved(counts, at)
    wakes = min(MOST_WAKES, current.wakes.get(cause.sender, 0.0) + 1)
    return replace(current, wakes={**current.wakes, cause.sender: wakes})


def after_receipt(counts: MailCounts, envelope: Envelope) -> MailCounts:
    """Return the counts after the receipt of an envelope. Prompts of the user and of schedules reset them."""
    outside = envelope.type in _BEGINS_ANEW or envelope.sender == "person"
    return MailCounts() if outside and counts != MailCounts() else counts


def denied_words(counts: MailCounts, seconds: float) -> str:
    """Return the message for the agent when a message is not sent: the reason and the alternatives."""
    minutes = _minutes_until_next(counts_after(counts, seconds).sent)
    return (
        f"Not sent: you have sent too many messages. An agent may send {BURST} and {PER_MINUTE:g} more a minute. Go on "
        f"with your work, and put what is to be said into one message: you may send it in {minutes} min."
    )


def denied_task_words(counts: MailCounts, seconds: float) -> str:
    """Return the message for the agent when a task is not created: the reason and the alternatives."""
    minutes = _minutes_until_next(counts_after(counts, seconds).created)
    return (
        f"Not created: you have created too many tasks. An agent may create {BURST} and {PER_MINUTE:g} more a minute. "
        f"Let the team work on those of the board, and put the rest into few larger tasks: you may create the next one "
        f"in {minutes} min."
    )


def _minutes_until_next(count: float) -> int:
    return math.ceil(max(0.0, count - BURST + 1) / PER_MINUTE)


def _moved(counts: MailCounts, at: float) -> MailCounts:
    """Return the counts at a recorded time. A time before `at` was recorded after the clock was set back."""
    return replace(counts_after(counts, at - counts.at), at=at)


def _is_message(envelope: Envelope) -> bool:
    return envelope.type == "message" and envelope.mode == "wake" and envelope.sender not in _OF_NO_AGENT
