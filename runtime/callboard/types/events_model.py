"""Events of model calls and of context management. `events.py` states the rules."""

from __future__ import annotations

from typing import Literal

from callboard.types.messages import Edit, SummaryWanted
from callboard.types.records import Base, Fault, Json, ToolCall, Usage


class ModelCalled(Base):
    """A model call was started. `ordinal` numbers the calls of this journal; a retry has the same ordinal."""

    t: Literal["model_called"] = "model_called"
    ordinal: int
    attempt: int
    model: str
    max_tokens: int
    purpose: Literal["turn", "summary"] = "turn"
    reserved_tokens: int = 0
    """Most tokens that this call may use: its input and the requested output. 0 without a budget."""
    reserved_usd: float = 0.0
    wind_down: bool = False
    """True for the last call that a used-up budget allows, to report finished and unfinished work."""
    used: Usage = Usage()
    """For a summary: usage of the earlier calls of the same summary."""


class CallHeld(Base):
    """A call waited for more than a second before it was sent, because of the service's rate limits or a
    refused key."""

    t: Literal["call_held"] = "call_held"
    ordinal: int
    seconds: float
    why: str


class BudgetReached(Base):
    """A call or a new agent was refused because it exceeds a budget. `budget`: `session`, an agent's name,
    `schedule:<id>` or `fire:<id>`."""

    t: Literal["budget_reached"] = "budget_reached"
    budget: str
    kind: Literal["tokens", "cost_usd", "price", "steps", "seconds", "agents", "depth"]
    limit: float
    spent: float
    """Amount used so far, including reservations of calls in flight."""
    wanted: float
    winds_down: bool = False
    """True if one last call is allowed, to report the state of the work."""


class StuckNoticed(Base):
    """The agent repeats itself. It is nudged the first time in a turn, and stopped if it continues."""

    t: Literal["stuck_noticed"] = "stuck_noticed"
    pattern: Literal["repeat", "alternation", "monologue", "errors", "mail"]
    count: int
    what: str
    """Repeated action, in one line for the user."""
    action: Literal["nudge", "stop"] = "nudge"


class ModelReplied(Base):
    """A complete reply (`message_stop` was received). `blocks` has the form of the API; `calls` are its tool calls with
    ids of the runtime."""

    t: Literal["model_replied"] = "model_replied"
    ordinal: int
    model: str
    stop_reason: str
    blocks: tuple[Json, ...]
    calls: tuple[ToolCall, ...] = ()
    usage: Usage = Usage()
    message_id: str = ""
    draw: float = 0.0
    cut_call: str = ""
    """Tool whose input was cut at the output limit and which was therefore not called."""
    trimmed: str = ""
    """White space removed from the end of this part. The continuation of the reply follows it."""


class ReplyDropped(Base):
    """A reply that is not kept: it was cut at the output limit and is requested again with a higher one. It is
    billed."""

    t: Literal["reply_dropped"] = "reply_dropped"
    ordinal: int
    why: str
    usage: Usage = Usage()
    cut_call: str = ""
    """Tool whose input was cut; empty if none was."""
    cut_characters: int = 0
    """Characters received of the tool input that was cut."""


class ReplyInterrupted(Base):
    """Part of a reply that the user had seen before the interrupt, kept as assistant text without its tool calls."""

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
    text: str = ""
    """Text of a reply that was cut because the window was full. It is kept if the turn ends without another reply."""


class RetryPlanned(Base):
    """The call is repeated at `until`. `parked`: a wait for rate or spend limits, which does not count as an
    attempt."""

    t: Literal["retry_planned"] = "retry_planned"
    until: float
    attempt: int
    parked: bool = False
    why: str = ""
    """Fault of the failed attempt, and what may be billed for it."""
    purpose: Literal["turn", "summary"] = "turn"


class ModelSwitched(Base):
    """A fallback model takes over until the turn ends, or until the summary is made."""

    t: Literal["model_switched"] = "model_switched"
    model: str
    why: str = ""
    skipped: tuple[str, ...] = ()
    """Models of the chain that could not take over, with the reason: `name: reason`."""
    purpose: Literal["turn", "summary"] = "turn"


class LimitsLearned(Base):
    """The service stated lower limits of a model than assumed. They apply to this agent from now on."""

    t: Literal["limits_learned"] = "limits_learned"
    model: str
    max_output: int | None = None
    window: int | None = None
    why: str = ""


class OutputRaised(Base):
    """The output limit was raised after a reply was cut."""

    t: Literal["output_raised"] = "output_raised"
    limit: int


class ContinuationAsked(Base):
    """A reply was cut at the highest output limit. Its text is kept, and the model is asked to continue."""

    t: Literal["continuation_asked"] = "continuation_asked"
    count: int
    call: str = ""
    """Tool whose input did not fit; empty if the reply was cut in a text."""


class ContextEdited(Base):
    """A stage reduced the view. `tokens` before and after are estimates of the whole request."""

    t: Literal["context_edited"] = "context_edited"
    stage: str
    trigger: Literal["auto", "manual", "reactive"] = "auto"
    revision: int
    """Revision of the view that the stage examined."""
    edits: tuple[Edit, ...] = ()
    """Edits of the view. Empty: the stage found nothing to do at this revision and does not run again for it."""
    tokens_before: int = 0
    tokens_after: int = 0
    transcript: str = ""
    usage: Usage = Usage()
    why: str = ""
    """Reason for the edit, for the user."""
    rewritten: int = 0
    """Tokens after the first change, which the service must read again if it had cached them; 0 if it had not."""
    repaired: tuple[str, ...] = ()
    """Items that the check found missing after a summary and restored."""
    undoes: tuple[int, ...] = ()
    """Journal positions of the edits that this edit undoes."""


class TokensCounted(Base):
    """The service counted the tokens of the request at this revision. None: it did not, and is not asked again, or not
    before `until` (Unix seconds) if set."""

    t: Literal["tokens_counted"] = "tokens_counted"
    revision: int
    tokens: int | None
    why: str = ""
    until: float | None = None


class CacheThrash(Base):
    """Several calls in a row found almost nothing of the previous call in the prompt cache."""

    t: Literal["cache_thrash"] = "cache_thrash"
    calls: int
    changed: str
    """First block that differs from the previous call: a section, tool or message; or the statement that nothing in the
    request changed."""


class SummaryBegan(Base):
    """A summary call starts. `transcript` holds the full history before it."""

    t: Literal["summary_began"] = "summary_began"
    wanted: SummaryWanted
    revision: int
    transcript: str = ""


class SummaryFailed(Base):
    """A summary was unusable and counts towards the breaker (3 in a row in a turn), or a hook rejected it."""

    t: Literal["summary_failed"] = "summary_failed"
    why: str
    usage: Usage = Usage()
    skipped: SummaryWanted | None = None
    """Summary that a PreCompact hook rejected: it did not start and is not a failure."""


class ReactAsked(Base):
    """The service refused the prompt as too long. The view is compacted regardless of the thresholds."""

    t: Literal["react_asked"] = "react_asked"
    why: str = ""
