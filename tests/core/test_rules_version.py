"""A snapshot holds what the rules made of events: other rules need another version, so that old snapshots are passed
over."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from pydantic import TypeAdapter
from tests.core.agent.agent_states import Life

from callboard.core.agent import snapshot
from callboard.core.agent.apply import apply
from callboard.core.agent.state import AgentState
from callboard.types.events import decode_event

FOLDER = Path(__file__).parent / "golden"
VERSION = FOLDER / "rules.txt"
STATE = TypeAdapter(AgentState)
"""Made once: it takes a twentieth of a second."""


def cases() -> Iterator[tuple[Life, bytes]]:
    """Each golden event, after an agent's beginning and in the middle of its turn."""
    lines = (FOLDER / "rules.jsonl").read_text(encoding="utf-8").splitlines()
    states = (Life.begun("lead"), Life.begun("lead").prompted("go"), Life.begun("lead").prompted("go").called("bash"))
    for line in lines:
        for life in states:
            yield life, line.encode()


def digest() -> str:
    """What the rules make of the events."""
    made = hashlib.sha256()
    for life, data in cases():
        made.update(_applied(life, data).encode())
    return made.hexdigest()[:16]


def _applied(life: Life, data: bytes) -> str:
    try:
        state = apply(life.state, decode_event(data))
    except (AssertionError, LookupError, ValueError) as error:  # an event that cannot follow: that, too, is a rule
        return type(error).__name__
    return _written(state)


def _written(state: AgentState) -> str:
    body = STATE.dump_python(state, mode="json", exclude_defaults=True)
    return json.dumps(_sorted(body), sort_keys=True)


def _sorted(value: Any) -> Any:
    """The same in an order of its own: a set is written in any."""
    if isinstance(value, dict):
        return {name: _sorted(inner) for name, inner in value.items()}
    if isinstance(value, list):
        return sorted((_sorted(inner) for inner in value), key=lambda inner: json.dumps(inner, sort_keys=True))
    return value


def test_rules_that_make_another_state_have_another_version() -> None:
    now = f"{snapshot.RULES} {digest()}"
    assert VERSION.read_text(encoding="utf-8").strip() == now, (
        f"the rules make another state of the same events. Raise RULES in core/agent/snapshot.py, unless only the "
        f"form of the state changed; then write into {VERSION.name}: {now}"
    )


def test_a_rule_leaves_the_state_before_the_event_alone() -> None:
    for life, data in cases():
        before = _written(life.state)
        _applied(life, data)
        assert _written(life.state) == before, data


def test_a_snapshot_of_other_rules_is_passed_over(monkeypatch: Any) -> None:
    state = Life.begun("lead").prompted("go").state
    written = snapshot.dump(state)
    assert snapshot.load(written) is not None
    monkeypatch.setattr(snapshot, "RULES", snapshot.RULES + 1)
    snapshot.shape.cache_clear()
    try:
        assert snapshot.load(written) is None
    finally:
        snapshot.shape.cache_clear()
