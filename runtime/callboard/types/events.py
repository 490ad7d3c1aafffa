"""Every event of an agent's journal, version 1. `state = fold(apply, journal)`; nothing else changes a state.

Events are in the past tense, frozen, and load forever (`docs/records.md` is the table, `tests/core/golden/` the proof).
Every value that a decision used (a time, an id, a random draw, a deadline) is copied into the event, so that folding
needs no clock. Streaming deltas are never journalled.
"""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import Field, TypeAdapter

from callboard.types.events_agent import (
    AgentCrashed,
    AgentResumed,
    AgentStarted,
    AgentStopped,
    EnvelopeReceived,
    EnvelopesDelivered,
    EnvelopesDropped,
    InjectionQueued,
    InjectionsDelivered,
    Interrupted,
    PromptSet,
    ShutdownRefused,
    SpecChanged,
    StallNoticed,
    StopAsked,
    TasksReminded,
    TurnBegan,
    TurnEnded,
    WaitBegan,
)
from callboard.types.events_model import (
    BudgetReached,
    CacheThrash,
    CallFailed,
    CallHeld,
    ContextEdited,
    ContinuationAsked,
    LimitsLearned,
    ModelCalled,
    ModelReplied,
    ModelSwitched,
    OutputRaised,
    ReactAsked,
    ReplyDropped,
    ReplyInterrupted,
    RetryPlanned,
    StuckNoticed,
    SummaryBegan,
    SummaryFailed,
    TokensCounted,
)
from callboard.types.events_tool import (
    AnswerTaken,
    ApprovalNeeded,
    BackgroundEnded,
    BackgroundStarted,
    CallJudged,
    CompactAsked,
    FileSeen,
    GateSet,
    Reported,
    ResultsMerged,
    SkillCommandsBegan,
    SkillLoaded,
    StopHookRan,
    TaskHeld,
    TodosSet,
    ToolFinished,
    ToolSettled,
    ToolStarted,
)
from callboard.types.records import Base

__all__ = [
    "AgentCrashed",
    "AgentResumed",
    "AgentStarted",
    "AgentStopped",
    "AnswerTaken",
    "ApprovalNeeded",
    "BackgroundEnded",
    "BackgroundStarted",
    "Base",
    "BudgetReached",
    "CacheThrash",
    "CallFailed",
    "CallHeld",
    "CallJudged",
    "CompactAsked",
    "ContextEdited",
    "ContinuationAsked",
    "EnvelopeReceived",
    "EnvelopesDelivered",
    "EnvelopesDropped",
    "Event",
    "FileSeen",
    "GateSet",
    "InjectionQueued",
    "InjectionsDelivered",
    "Interrupted",
    "LimitsLearned",
    "ModelCalled",
    "ModelReplied",
    "ModelSwitched",
    "OutputRaised",
    "PromptSet",
    "ReactAsked",
    "ReplyDropped",
    "ReplyInterrupted",
    "Reported",
    "ResultsMerged",
    "RetryPlanned",
    "ShutdownRefused",
    "SkillCommandsBegan",
    "SkillLoaded",
    "SpecChanged",
    "StallNoticed",
    "StopAsked",
    "StopHookRan",
    "StuckNoticed",
    "SummaryBegan",
    "SummaryFailed",
    "TaskHeld",
    "TasksReminded",
    "TodosSet",
    "TokensCounted",
    "ToolFinished",
    "ToolSettled",
    "ToolStarted",
    "TurnBegan",
    "TurnEnded",
    "WaitBegan",
    "decode_event",
]

Event = Annotated[
    AgentStarted
    | AgentResumed
    | PromptSet
    | SpecChanged
    | AgentCrashed
    | WaitBegan
    | StallNoticed
    | StopAsked
    | AgentStopped
    | EnvelopeReceived
    | EnvelopesDelivered
    | EnvelopesDropped
    | TurnBegan
    | Interrupted
    | TurnEnded
    | InjectionQueued
    | InjectionsDelivered
    | ModelCalled
    | ModelReplied
    | ReplyDropped
    | ReplyInterrupted
    | CallFailed
    | RetryPlanned
    | ModelSwitched
    | LimitsLearned
    | OutputRaised
    | ContinuationAsked
    | CallJudged
    | ApprovalNeeded
    | AnswerTaken
    | ToolStarted
    | ToolFinished
    | ToolSettled
    | ResultsMerged
    | StopHookRan
    | TodosSet
    | FileSeen
    | SkillLoaded
    | SkillCommandsBegan
    | GateSet
    | TaskHeld
    | Reported
    | BackgroundStarted
    | BackgroundEnded
    | CompactAsked
    | ContextEdited
    | SummaryBegan
    | SummaryFailed
    | ReactAsked
    | TokensCounted
    | CacheThrash
    | CallHeld
    | BudgetReached
    | StuckNoticed
    | TasksReminded
    | ShutdownRefused,
    Field(discriminator="t"),
]

_ADAPTER: TypeAdapter[Any] = TypeAdapter(Event)


def decode_event(data: bytes) -> Event:
    """Parse one record of a journal. Raises `pydantic.ValidationError` for a record that is not an event."""
    return _ADAPTER.validate_json(data)
