"""Conversion of a state to bytes and back, so that a resume need not fold a long journal from its beginning.

A snapshot is a shortcut; the journal is the truth. A snapshot states the digest of its shape and the version of its
rules. A damaged snapshot, or one of another shape or other rules, is ignored, and the whole journal is folded.
"""

from __future__ import annotations

import hashlib
import json
from functools import lru_cache

from pydantic import TypeAdapter, ValidationError

from callboard.core.agent.state import AgentState
from callboard.types import agent_spec, events_calls, messages, records
from callboard.types.late_pattern import late_pattern

RULES = 14
"""Version of the rules by which events change a state (`apply`). Raise it with each change that makes another state
from the same events; otherwise snapshots would keep the effects of the old rules."""
EVERY = 2_000
"""Events between two snapshots of a small view: the most that a resume after a crash folds, apart from the newest turn.
A process that ends in order leaves nothing to fold."""
PER_VIEW = 200_000
"""Tokens of the view for which snapshots are `EVERY` events farther apart. The cost of writing a snapshot is
proportional to the view, and its share of a step must not grow. A resume that folds the events must not take much
longer than one that reads the view."""
_ADDRESSES = late_pattern(r"0x[0-9a-f]+|:\d{6,}")
"""Pattern of the memory address of a class or a function."""


MODELS: tuple[type[records.Value], ...] = (
    *(records.PathGrant, records.HostGrant, records.Envelope, records.Budget, records.Usage, records.Fault),
    *(records.Todo, records.ToolCall),
    *(agent_spec.PermissionRules, agent_spec.Limits, agent_spec.StageSpec, agent_spec.ModelLimits),
    *(agent_spec.ThinkingChoice, agent_spec.AgentSpec),
    *(messages.SummaryWanted, messages.Injection),
    *(events_calls.ModelCalled, events_calls.CallFailed, events_calls.BackgroundStarted),
)
"""Models in a state, in the order of their definition."""


@lru_cache(maxsize=1)
def _adapter() -> TypeAdapter[AgentState]:
    """Return the adapter of a state, after its models are complete.

    A model is completed at its first use. A schema contains complete models and refers to others: without this, the
    shape would depend on what the process did before (`test_the_shape_does_not_depend_on_what_was_used_before`).
    """
    for model in MODELS:
        model.model_rebuild()
    return TypeAdapter(AgentState)


@lru_cache(maxsize=1)
def shape() -> str:
    """Return the digest of the state's shape and of the rules' version in this version: the same in every process.

    It uses the schema of the adapter: a JSON schema made from it has the same information and takes 50 ms more.
    """
    schema = _ADDRESSES.sub("", repr(_adapter().core_schema))
    return hashlib.sha256(f"{RULES} {schema}".encode()).hexdigest()[:16]


def is_due(before: int, state: AgentState) -> bool:
    """Return True if a snapshot of this state is to be written with the events after position `before`."""
    apart = EVERY * (1 + state.context.conversation.tokens // PER_VIEW)
    return state.seq // apart > before // apart


def dump(state: AgentState) -> bytes:
    """Return the state as JSON, after the digest of its shape."""
    return shape().encode() + b"\n" + _adapter().dump_json(state)


def load(data: bytes) -> AgentState | None:
    """Return the state, or None if another version wrote it."""
    written, _, body = data.partition(b"\n")
    if written.decode(errors="replace") != shape():
        return None
    try:
        return _adapter().validate_json(body)
    except ValidationError:
        return None


def positions(data: bytes) -> tuple[int, int] | None:
    """Return the numbers of the newest applied event and of the newest received envelope.

    Snapshots of other versions, which `load` ignores, are read too: a salvaged database continues their numbers. None
    if the data has neither the shape of this version nor the earlier flat one.
    """
    try:
        state = json.loads(data.partition(b"\n")[2])
        mail = state["inbox"] if isinstance(state.get("inbox"), dict) else state
        return int(state["seq"]), int(mail["position"])
    except (ValueError, KeyError, TypeError, AttributeError):
        return None
