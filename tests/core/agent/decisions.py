"""Lives that have a prompt, and the step that is decided for them."""

from __future__ import annotations

from typing import Any

from tests.core.agent.agent_states import Life, facts

from callboard.core.agent.decide import decide
from callboard.types import events as ev
from callboard.types import steps as st
from callboard.types.records import Fault

HI = {"type": "text", "text": "hi"}


def prompted(**spec: Any) -> Life:
    return Life.begun(**spec).prompted("go")


def step(life: Life, **more: Any) -> st.Step:
    return decide(life.state, facts(**more))


def failing(kind: str = "server", life: Life | None = None, **more: Any) -> Life:
    fault = Fault.model_validate({"kind": kind, **more})
    return (life or prompted().asked()).on(ev.CallFailed, ordinal=1, attempt=1, model="one", fault=fault)
