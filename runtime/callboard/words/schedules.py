"""The durable values of schedules: what is to be done when, and what became of each fire. Frozen; all load for ever."""

from __future__ import annotations

from typing import Literal

from callboard.words.values import Budget, Value


class ScheduleRights(Value):
    """What the turns of one schedule may do, beside what holds for all scheduled turns: never more than that."""

    mode: str = ""
    """A permission mode; empty: the one of all scheduled turns."""
    allow: tuple[str, ...] = ()
    ask: tuple[str, ...] = ()
    deny: tuple[str, ...] = ()


class Schedule(Value):
    """A cron expression, a time zone and a prompt."""

    id: str
    cron: str
    """Five fields, `@daily` and the like, `every 20m`, or `at 2026-12-01T09:00`."""
    prompt: str
    name: str = ""
    """What a person calls it: unique in its session, empty for none."""
    timezone: str = "UTC"
    target: str = "lead"
    """`lead` of the session, or the agent type of the agents that it starts (`context`)."""
    context: Literal["lead", "fresh", "own"] = "lead"
    """Whose conversation a fire goes into: the lead's, that of an agent made for each fire, or that of one agent of its
    own, which is there from the first fire on."""
    jitter: float | None = None
    """Seconds that a fire is put off at most; None: as for all (`Rules.jitter`); 0: never."""
    window: float | None = None
    """Seconds that a missed fire may be late and still run; None: as for all (`Rules.catch_up`)."""
    deadline: float | None = None
    """Seconds after which the turn of a fire is stopped; None: never."""
    retries: int = 0
    """How often a fire that failed is tried again, with backoff, before its slot counts as failed."""
    rights: ScheduleRights = ScheduleRights()
    expires: float | None = None
    """Unix seconds: no slot at or after this moment fires, and it is `ended` then."""
    max_runs: int | None = None
    """It is `ended` after so many fires."""
    source: str = ""
    """The file that it was read from, relative to its workspace; empty: it was added by a command or a tool."""
    digest: str = ""
    """Of that file's content."""
    recurring: bool = True
    durable: bool = True
    enabled: bool = True
    misfire: Literal["skip", "latest", "all"] = "latest"
    misfire_cap: int = 10
    overlap: Literal["skip", "queue", "replace", "parallel"] = "skip"
    deliver: Literal["turn", "step"] = "turn"
    """As a turn of its own, or into the turn under way; one with a budget always has its own."""
    state: Literal["active", "fired", "paused", "cancelled", "ended"] = "active"
    """`fired`: a one-shot that has; `ended`: it has expired, or has run as often as it may."""
    failures: int = 0
    last_slot: float | None = None
    """The nominal time of the newest slot that was fired or skipped; None before the first."""
    created_by: str = "person"
    created_at: float = 0.0
    fires: int = 0
    budget: Budget = Budget()
    """For all fires together; used up, the schedule pauses."""
    fire_budget: Budget = Budget()
    """For each fire."""
    paused_why: str = ""
    """Why the runtime paused it."""
    skips: int = 0
    """Fires that a hook refused."""
    skipped_why: str = ""
    """Why the newest of them was refused, and when it was due."""


FireOutcome = Literal[
    "waiting", "running", "done", "failed", "timed_out", "skipped", "refused", "missed", "replaced", "lost"
]
"""What became of a fire. `waiting`: sent or queued, its turn has not begun; `skipped`: an earlier one was under way;
`refused`: by a hook or a budget; `missed`: too late by its misfire policy; `replaced`: a newer one took its place;
`lost`: its turn was cut off with its process and is not made up."""


class Fire(Value):
    """One slot of a schedule and what became of it: the history. Kept beside the session's rows, since it grows."""

    id: str
    """The slot's id, `schedule:<id>:<time>`, also of its envelope; `schedule:<id>:run-...` for one by hand."""
    schedule: str
    session: str
    nominal: float
    """The time that the expression says, unix seconds."""
    at: float
    """When it was decided upon."""
    outcome: FireOutcome = "waiting"
    why: str = ""
    agent: str = ""
    """Whose turn it is."""
    attempt: int = 1
    """1 for the first try."""
    began_at: float | None = None
    ended_at: float | None = None
    cost_usd: float = 0.0
    tokens: int = 0
    steps: int = 0
    """Model calls."""
    missed: int = 0
    """Of a `missed` one: how many slots it stands for, itself included."""
