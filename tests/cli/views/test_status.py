"""The state of a session in words, and the notice when leaving it."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

import anyio

from callboard.cli.slash.registry import COMMANDS
from callboard.cli.views.status import left_block, lives_words


def test_agents_and_a_lead_without_a_prompt_are_listed_calmly() -> None:
    types = {"explore": "Finds things in the workspace and points to them. Reads only. For every question", "x": "y"}
    console = SimpleNamespace(session=SimpleNamespace(agent_types=types))
    shown = anyio.run(COMMANDS["agents"].act, console, "")
    assert [line.text for line in shown.fit(60)] == [
        "explore  Finds things in the workspace and points to them.",
        "         Reads only. For every question",
        "x        y",
    ]
    rows = [SimpleNamespace(name="lead", life="starting"), SimpleNamespace(name="a", life="starting")]
    assert lives_words(cast("Any", SimpleNamespace(living_agents=lambda: rows))) == "1 idle, 1 starting"


def test_who_leaves_reads_what_waits_for_them() -> None:
    requests = [SimpleNamespace(may_answer=("person",)), SimpleNamespace(may_answer=("lead",))]
    lead = SimpleNamespace(kind="lead", life="waiting")
    session = SimpleNamespace(id="s1", living_agents=lambda: [lead], requests=lambda: requests)
    lines = [line.text for line in left_block(cast("Any", session), None).lines]
    assert lines == [
        "1 waits for you (`callboard plans`)",
        "the session is kept: `callboard --resume s1` continues it",
    ]
    requests.clear()
    assert len(left_block(cast("Any", session), None).lines) == 1
