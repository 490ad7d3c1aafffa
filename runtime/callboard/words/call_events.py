"""Events of model calls, and of what context management did. The laws stand in `events.py`."""

from __future__ import annotations

from typing import Literal

from callboard.words.agent_events import Base
from callboard.words.context import Edit, SummaryWanted
from callboard.words.values import Fault, Json, ToolCall, Usage


class ModelCalled(Base):
    """A call is under way. `ordinal` numbers the calls of this journal; a retry has the same ordinal."""

    t: Literal["model_called"] = "model_called"
    ordinal: int
    attempt: int
    model: str
    max_tokens: int
    purpose: Literal["turn", "summary"] = "turn"
    reserved_tokens: int = 0
    """The most that this call may use: its input and the output asked for. 0 where no budget holds."""
    reserved_usd: float = 0.0
    wind_down: bool = False
    """The last call that a used-up budget allows: to say what is done and what is left."""
    used: Usage = Usage()
    """Of a summary's call: what the calls of the same summary before it used."""


class CallHeld(Base):
    """A call waited for more than a second before it was sent: for the service's rate, or for a refused key."""

    t: Literal["call_held"] = "call_held"
    ordinal: int
    seconds: float
    why: str


class BudgetReached(Base):
    """A call, or a new agent, was refused because it does not fit. `budget`: `session`, an agent's name,
    `schedule:<id>` or `fire:<id>`."""

    t: Literal["budget_reached"] = "budget_reached"
    budget: str
    kind: Literal["tokens", "cost_usd", "steps", "seconds", "agents", "depth"]
    limit: float
    spent: float
    """What was used by then, and reserved for calls in flight."""
    wanted: float
    winds_down: bool = False
    """A last call is left to say what is done."""


class StuckNoticed(Base):
    """The agent repeats itself. It is nudged the first time in a turn, and stopped when it goes on."""

    t: Literal["stuck_noticed"] = "stuck_noticed"
    pattern: Literal["repeat", "alternation", "monologue", "errors"]
    count: int
    what: str
    """What is repeated, in a line for a person."""
    action: Literal["nudge", "stop"] = "nudge"


class ModelReplied(Base):
    """A whole reply (`message_stop` was seen). `blocks` in the API's form; `calls` are its tool calls, named by us."""

    t: Literal["model_replied"] = "model_replied"
    ordinal: int
    model: str
    stop_reason: str
    blocks: tuple[Json, ...]
    calls: tuple[ToolCall, ...] = ()
    usage: Usage = Usage()
    message_id: str = ""
    draw: float = 0.0


class ReplyDropped(Base):
    """A whole reply that is not kept: cut at the output limit, to be asked again with a higher one. It is billed."""

    t: Literal["reply_dropped"] = "reply_dropped"
    ordinal: int
    why: str
    usage: Usage = Usage()


class ReplyInterrupted(Base):
    """What the person had seen of a reply when they interrupted it: kept as assistant text, without its calls."""

    t: Literal["reply_interrupted"] = "reply_interrupted"
    ordinal: int
    text: str


class CallFailed(Base):
    """A model call ended without a reply. `draw` (0..1) is the jitter that recovery may use."""

    t: Literal["call_failed"] = "call_failed"
    ordinal: int
    attempt: int
    model: str
    purpose: Literal["turn", "summary"] = "turn"
    fault: Fault
    draw: float = 0.0


class RetryPlanned(Base):
    """Recovery decided to try again at `until`. `parked`: a wait for rate or spend limits, which is no attempt."""

    t: Literal["retry_planned"] = "retry_planned"
    until: float
    attempt: int
    parked: bool = False
    why: str = ""
    """The fault, and what the failed attempt may be billed for."""
    purpose: Literal["turn", "summary"] = "turn"


class ModelSwitched(Base):
    """A fallback model takes over until the turn ends; for a summary, until it is made."""

    t: Literal["model_switched"] = "model_switched"
    model: str
    why: str = ""
    skipped: tuple[str, ...] = ()
    """Models of the chain that could not take over, and why: `name: why`."""
    purpose: Literal["turn", "summary"] = "turn"


class OutputRaised(Base):
    """The output limit went up after a reply was cut."""

    t: Literal["output_raised"] = "output_raised"
    limit: int


class ContinuationAsked(Base):
    """At the highest limit: the text is kept and the model asked to go on."""

    t: Literal["continuation_asked"] = "continuation_asked"
    count: int


class ContextEdited(Base):
    """A stage reduced the view. `tokens` before and after are estimates of the whole request."""

    t: Literal["context_edited"] = "context_edited"
    stage: str
    trigger: Literal["auto", "manual", "reactive"] = "auto"
    revision: int
    """The view's revision that the stage looked at."""
    edits: tuple[Edit, ...] = ()
    """Empty: the stage found nothing to do at this revision, and is not asked again for it."""
    tokens_before: int = 0
    tokens_after: int = 0
    transcript: str = ""
    usage: Usage = Usage()
    why: str = ""
    """Why now, for a person to read."""
    rewritten: int = 0
    """Tokens behind the first change, that the service must read anew if it had cached them; 0 where it had not."""
    repaired: tuple[str, ...] = ()
    """What the check found missing after a summary, and put back."""
    undoes: tuple[int, ...] = ()
    """Journal positions of the edits that this one takes back."""


class TokensCounted(Base):
    """The service counted the request as it stood at this revision. None: it did not, and is not asked again; or not
    before `until` (Unix seconds), where that is told."""

    t: Literal["tokens_counted"] = "tokens_counted"
    revision: int
    tokens: int | None
    why: str = ""
    until: float | None = None


class CacheThrash(Base):
    """Several calls in a row found next to nothing of what the call before had left in the prompt cache."""

    t: Literal["cache_thrash"] = "cache_thrash"
    calls: int
    changed: str
    """The first block that was not what it was at the call before: which section, tool or message; or that nothing of
    ours changed."""


class SummaryBegan(Base):
    """A summary call is wanted; `transcript` holds the full history as it was."""

    t: Literal["summary_began"] = "summary_began"
    wanted: SummaryWanted
    revision: int
    transcript: str = ""


class SummaryFailed(Base):
    """It brought nothing usable; counts towards the breaker (3 in a row in a turn), or a hook wanted none."""

    t: Literal["summary_failed"] = "summary_failed"
    why: str
    usage: Usage = Usage()
    skipped: SummaryWanted | None = None
    """The summary that a PreCompact hook would not have: it has not begun, and is no failure."""


class ReactAsked(Base):
    """The service refused the prompt as too long: the view is compacted whatever the thresholds say."""

    t: Literal["react_asked"] = "react_asked"
    why: str = ""
