"""Durable values of schedules and of their fires. All are frozen and load forever."""

from typing import Literal

from callboard.types.records import Budget, Value


class ScheduleRights(Value):
    """Rights of the turns of one schedule. They can only narrow the rights of all scheduled turns."""

    mode: str = ""
    """Permission mode; empty: the mode of all scheduled turns."""
    allow: tuple[str, ...] = ()
    ask: tuple[str, ...] = ()
    deny: tuple[str, ...] = ()


class Schedule(Value):
    """A cron expression, a time zone and a prompt."""

    id: str
    cron: str
    """Five fields, `@daily` and similar, `every 20m`, or `at 2030-12-01T09:00`."""
    prompt: str
    name: str = ""
    """Name chosen by the user, unique in its session; empty: none."""
    timezone: str = "UTC"
    target: str = "lead"
    """`lead`, or the type of the agents that the schedule starts (`context`)."""
    context: Literal["lead", "fresh", "own"] = "lead"
    """Conversation of a fire: the lead's, that of a new agent for each fire, or that of one separate agent, which
    exists from the first fire on."""
    jitter: float | None = None
    """Maximum delay of a fire in seconds; None: the common default (`ScheduleDefaults.jitter`); 0: none."""
    window: float | None = None
    """Maximum lateness in seconds at which a missed fire still runs; None: the common default
    (`ScheduleDefaults.catch_up`)."""
    deadline: float | None = None
    """Seconds after which the turn of a fire is stopped; None: never."""
    retries: int = 0
    """Retries of a failed fire, with backoff, before its slot counts as failed."""
    rights: ScheduleRights = ScheduleRights()
    expires: float | None = None
    """Unix seconds. No slot at or after this time fires, and the schedule is `ended` then."""
    max_runs: int | None = None
    """Number of fires after which the schedule is `ended`."""
    source: str = ""
    """File that defines the schedule, relative to its workspace; empty: a command or a tool added it."""
    digest: str = ""
    """Digest of that file's content."""
    recurring: bool = True
    durable: bool = True
    enabled: bool = True
    misfire: Literal["skip", "latest", "all"] = "latest"
    misfire_cap: int = 10
    overlap: Literal["skip", "queue", "replace", "parallel"] = "skip"
    deliver: Literal["turn", "step"] = "turn"
    """Delivery as a separate turn, or into the running turn. A schedule with a budget always has separate turns."""
    state: Literal["active", "fired", "paused", "cancelled", "ended"] = "active"
    """`fired`: a one-shot that has fired; `ended`: expired, or fired as often as allowed."""
    failures: int = 0
    last_slot: float | None = None
    """Nominal time of the newest slot that fired or was skipped; None before the first."""
    created_by: str = "person"
    created_at: float = 0.0
    fires: int = 0
    budget: Budget = Budget()
    """Budget of all fires together. When it is used up, the schedule pauses."""
    fire_budget: Budget = Budget()
    """Budget of each fire."""
    paused_why: str = ""
    """Reason why the runtime paused the schedule."""
    skips: int = 0
    """Fires that a hook refused."""
    skipped_why: str = ""
    """Reason and due time of the newest fire that was refused."""


FireOutcome = Literal[
    "waiting", "running", "done", "failed", "timed_out", "skipped", "refused", "missed", "replaced", "lost"
]
"""Outcome of a fire. `waiting`: sent or queued, its turn has not begun; `skipped`: an earlier fire was still running;
`refused`: by a hook or a budget; `missed`: too late under its misfire policy; `replaced`: a newer fire took its place;
`lost`: its turn was cut off with its process and is not repeated."""


class Fire(Value):
    """One slot of a schedule and its outcome: the history.

    Stored separately from the session's rows, because it grows.
    """

    id: str
    """Id of the slot, `schedule:<id>:<time>`, and of its envelope; `schedule:<id>:run-...` for a manual run."""
    schedule: str
    session: str
    nominal: float
    """Time from the expression, in Unix seconds."""
    at: float
    """Time of the decision to fire (Unix seconds)."""
    outcome: FireOutcome = "waiting"
    why: str = ""
    agent: str = ""
    """Agent that runs the turn."""
    attempt: int = 1
    """Number of the attempt, from 1."""
    unserved: int = 0
    """Attempts that ended by a fault of the model service. They count neither as retries nor as failures of the
    schedule."""
    again_at: float | None = None
    """Time of the next attempt after such a fault (Unix seconds)."""
    began_at: float | None = None
    ended_at: float | None = None
    cost_usd: float = 0.0
    tokens: int = 0
    steps: int = 0
    """Model calls."""
    missed: int = 0
    """For a `missed` fire: the number of slots that it represents, including itself."""
