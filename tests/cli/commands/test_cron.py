"""`callboard cron`: a schedule's budget, its state with the reason, and resuming a paused one."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any
from unittest import mock

import anyio
import pytest
from tests.cli.commands.command import Command
from tests.cli.commands.test_exit_codes import HELLO

from callboard.core.keys import schedule_key
from callboard.ports.store import Put
from callboard.sessions.places import find_places
from callboard.sessions.stores import log_notice, open_store
from callboard.types.schedules import Schedule
from callboard.types.settings import Settings


@pytest.fixture
def command(tmp_path: Path) -> Command:
    return Command(tmp_path)


@pytest.mark.slow
def test_a_schedule_has_budgets_is_shown_in_full_and_is_resumed_with_more(command: Command) -> None:
    assert command.run_inline("run", "--model", command.scenario(HELLO), "Go.").code == 0
    asked = ["--budget", "cost_usd=0.5", "--budget", "tokens=9000", "--fire-budget", "steps=3"]
    assert command.run_inline("cron", "add", "@daily", "Look", *asked).code == 0
    (row,) = json.loads(command.run_inline("cron", "list", "--json").out)
    assert (row["budget"]["cost_usd"], row["budget"]["tokens"], row["fire_budget"]["steps"]) == (0.5, 9_000, 3)
    shown = command.run_inline("cron", "show", row["id"]).out
    assert "may spend: $0.5000, 9,000 tokens in all, 3 calls for each fire\n" in shown
    assert "state: active\n" in shown
    assert "has spent: 0 turns, 0 calls, 0 tokens, $0.0000\n" in shown
    whole = json.loads(command.run_inline("cron", "show", row["id"], "--json").out)
    assert (whole["schedule"], whole["turns"], whole["spent"]["calls"]) == (row, 0, 0)
    again = command.run_inline("cron", "resume", row["id"])
    assert (again.code, "is not paused, it is active" in again.err) == (2, True)
    for wrong in ("calls=3", "tokens=1.5", "cost_usd=-1", "cost_usd=nan", "seconds", "steps=inf"):
        ran = command.run_inline("cron", "add", "@daily", "Look", "--budget", wrong)
        kind = wrong.partition("=")[0]
        assert (ran.code, "--budget: " in ran.err, kind in ran.err) == (2, True, True), wrong
    assert command.run_inline("cron", "resume", row["id"], CALLBOARD_TOOL="1").code == 2


def test_a_paused_schedule_says_why_and_fires_again_when_a_person_lets_it(command: Command) -> None:
    assert command.run_inline("run", "--model", command.scenario(HELLO), "Go.").code == 0
    assert (
        command.run_inline("cron", "add", "@daily", "Look", "--budget", "steps=3", "--fire-budget", "steps=2").code == 0
    )
    (row,) = json.loads(command.run_inline("cron", "list", "--json").out)
    put_schedule(command, {**row, "state": "paused", "paused_why": "the budget is used up"})
    assert "paused: the budget is used up" in command.run_inline("cron", "list").out
    shown = command.run_inline("cron", "show", row["id"]).out
    assert "state: paused: the budget is used up\n" in shown
    assert f"callboard cron resume {row['id']}" in shown
    assert command.run_inline("cron", "resume", row["id"], "--budget", "steps=8", "--budget", "tokens=70").code == 0
    (now,) = json.loads(command.run_inline("cron", "list", "--json").out)
    assert (now["state"], now["paused_why"]) == ("active", "")
    assert (now["budget"]["steps"], now["budget"]["tokens"], now["fire_budget"]["steps"]) == (8, 70, 2)
    assert now["last_slot"] >= now["created_at"], "fires missed meanwhile never run"


def put_schedule(command: Command, row: dict[str, Any]) -> None:
    """Put a schedule's row into the workspace's store, as a host would."""
    (session,) = json.loads(command.run_inline("sessions", "--json").out)

    async def put() -> None:
        with mock.patch.dict(os.environ, command.env, clear=True):
            store = await open_store(find_places(command.workspace), Settings(durability="process"), log_notice)
        value = Schedule.model_validate(row).encode()
        await store.commit(Put(schedule_key(session["id"], row["id"]), value))
        await store.aclose()

    anyio.run(put)
