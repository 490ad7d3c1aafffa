"""Failed calls for the tests of recovery, and what is decided on them."""

from __future__ import annotations

from typing import Any

from callboard.core.recovery import retry_policy as rec
from callboard.core.recovery.fallback import ModelDemand
from callboard.core.recovery.retry_policy import RecoveryState, recover
from callboard.types.agent_spec import AgentSpec
from callboard.types.events import CallFailed
from callboard.types.records import Fault
from callboard.types.steps import EndTurn, PlanRetry, Step, SwitchModel

NOW = 1_000.0
TRANSIENT = ("rate_limited", "overloaded", "server", "connection", "silence", "bad_reply")
FINAL = ("spend_limit", "credentials", "payment", "not_found", "invalid")
TWO = {"fallback_models": ("two",)}


def spec(**more: Any) -> AgentSpec:
    return AgentSpec(name="lead", kind="lead", agent_type="lead", model="one", **more)


def failed(kind: str, at: float = NOW, draw: float = 0.0, **more: Any) -> CallFailed:
    fault = Fault.model_validate({"kind": kind, "message": "said", **more})
    return CallFailed(at=at, ordinal=1, attempt=1, model="one", fault=fault, draw=draw)


def after(*faults: CallFailed, of: AgentSpec, demand: ModelDemand | None = None) -> Any:
    """The decision on the last of these failures, each earlier one retried at once or switched away from."""
    state = RecoveryState()
    for place, fault in enumerate(faults):
        state = rec.on_failed(state, fault)
        step = recover(fault, state, of, now=NOW, demand=demand)
        if place == len(faults) - 1:
            return step
        if isinstance(step, SwitchModel):
            state = rec.on_switched(state, step.model)
        else:
            assert isinstance(step, PlanRetry)
            state = rec.on_retry(state, step.until, step.parked)
    raise AssertionError("there is at least one fault")


def is_end(step: Step | None, reason: str) -> bool:
    return isinstance(step, EndTurn) and step.reason == reason and bool(step.why)


def is_retry(step: Step, wait: float) -> bool:
    return isinstance(step, PlanRetry) and not step.parked and step.until == NOW + wait


def is_switch(step: Step) -> bool:
    return isinstance(step, SwitchModel) and step.model == "two"
