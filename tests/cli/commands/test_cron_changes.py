"""`callboard cron` for a person: dry runs, changes, pauses, and history, by id or name."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any, TypeVar
from unittest import mock

import anyio
import pytest
from tests.cli.commands.command import Command
from tests.cli.commands.test_exit_codes import HELLO

from callboard.core.keys import fire_key, schedule_key
from callboard.ports.store import Put, Store
from callboard.sessions.places import find_places
from callboard.sessions.stores import log_notice, open_store
from callboard.types.schedules import Fire, Schedule
from callboard.types.settings import Settings

NOON = 1_800_000_000.0
T = TypeVar("T")


@pytest.fixture
def command(tmp_path: Path) -> Command:
    command = Command(tmp_path)
    assert command.run_inline("run", "--model", command.scenario(HELLO), "Go.").code == 0
    return command


def add(command: Command, *more: str) -> dict[str, Any]:
    ran = command.run_inline("cron", "add", "0 9 * * 1-5", "Look", "--name", "look", "--json", *more)
    assert ran.code == 0, ran.err
    return json.loads(ran.out)


def schedules_of(command: Command) -> list[dict[str, Any]]:
    return json.loads(command.run_inline("cron", "list", "--json").out)


def test_a_dry_run_shows_what_would_be_and_adds_nothing(command: Command) -> None:
    asked = ("cron", "add", "0 9 * * 1-5", "Look", "--timezone", "Europe/Berlin", "--max-runs", "2", "--retries", "3")
    dry = command.run_inline(*asked, "--dry-run")
    assert "at 09:00 on weekdays, Europe/Berlin" in dry.out
    assert (dry.out.count("next: "), "retries: 3" in dry.out) == (2, True)
    assert dry.out.endswith("dry run: nothing was changed\n")
    assert schedules_of(command) == []
    would = json.loads(command.run_inline(*asked, "--dry-run", "--json").out)
    assert ("jitter: " in dry.out) == (would["put_off"] >= 1), "less than a second is not shown"
    real = json.loads(command.run_inline(*asked, "--json").out)
    assert (would["id"], would["put_off"], would["next"]) == (real["id"], real["put_off"], real["next"])
    assert (would["dry_run"], real["dry_run"], len(schedules_of(command))) == (True, False, 1)


def test_every_field_is_an_option_and_edit_changes_what_is_given_alone(command: Command) -> None:
    fields = (
        "--misfire",
        "all",
        "--misfire-cap",
        "4",
        "--window",
        "30m",
        "--overlap",
        "queue",
        "--agent-type",
        "general",
    )
    more = (
        "--jitter",
        "0",
        "--deadline",
        "20m",
        "--expires",
        "7d",
        "--permission-mode",
        "plan",
        "--deny",
        "Bash(rm *)",
    )
    row = add(command, *fields, *more, "--allow", "Bash(npm test)", "--ask", "Edit", "--budget", "cost_usd=1")
    assert (row["misfire"], row["misfire_cap"], row["window"], row["overlap"]) == ("all", 4, 1_800, "queue")
    assert (row["context"], row["target"], row["jitter"], row["deadline"]) == ("fresh", "general", 0, 1_200)
    assert row["rights"] == {"mode": "plan", "allow": ["Bash(npm test)"], "ask": ["Edit"], "deny": ["Bash(rm *)"]}
    dry = command.run_inline("cron", "edit", "look", "--prompt", "Look twice", "--dry-run")
    assert (dry.code, schedules_of(command)[0]["prompt"]) == (0, "Look")
    changed = ("--prompt", "Look twice", "--deadline", "none", "--budget", "steps=5", "--cron", "every 2h")
    assert command.run_inline("cron", "edit", "look", *changed).code == 0
    (now,) = schedules_of(command)
    assert (now["prompt"], now["deadline"], now["cron"]) == ("Look twice", None, "every 2h")
    assert (now["budget"]["cost_usd"], now["budget"]["steps"], now["overlap"]) == (1, 5, "queue")
    assert now["last_slot"] >= row["created_at"], "its new times count from now on"
    nothing = command.run_inline("cron", "edit", "look")
    assert (nothing.code, "give a change, as in" in nothing.err) == (2, True)


WRONG = (
    (("61 * * * *", "x"), "EXPR: minute: "),
    (("at 2020-01-01T00:00", "x"), "EXPR: at 2020-01-01T00:00 never fires"),
    (("@daily", " "), "PROMPT: is empty"),
    (("@daily", "x", "--timezone", "Berlin"), "--timezone: 'Berlin' is not a known time zone"),
    (("@daily", "x", "--deadline", "soon"), "--deadline: 'soon' is not a duration: write it as 90s, 20m"),
    (("@daily", "x", "--misfire", "none"), "--misfire: 'none' is not one of skip, latest, all"),
    (("@daily", "x", "--misfire-cap", "many"), "--misfire-cap: "),
    (("@daily", "x", "--name", "look"), "--name: look is already the name of cron_"),
    (("@daily", "x", "--agent-type", "general", "--context", "lead"), "--agent-type: "),
    (("@daily", "x", "--agent-type", "generl"), "--agent-type: unknown type 'generl': choose general"),
    (("@daily", "x", "--expires", "2020-01-01"), "--expires: '2020-01-01' is past"),
    (("@yearly", "x", "--expires", "1m", "--jitter", "0"), "--expires: its next time is "),
    (("@daily", "x", "--deny", "Bash("), "--deny: "),
)


def test_what_is_wrong_is_told_by_its_option(command: Command) -> None:
    add(command)
    for wrong, told in WRONG:
        ran = command.run_inline("cron", "add", *wrong)
        assert (ran.code, ran.out, told in ran.err, "Traceback" in ran.err) == (2, "", True, False), ran.err
    assert len(schedules_of(command)) == 1


def test_a_change_after_which_it_would_never_fire_is_refused(command: Command) -> None:
    row = add(command)
    change_row(command, row["id"], fires=3)
    for change, told in (
        (("--cron", "at 2020-01-01T00:00"), "--cron: at 2020-01-01T00:00 never fires from now on"),
        (("--expires", "1s"), "--expires: its next time is "),
        (("--max-runs", "3"), "--max-runs: it has fired 3 times already: write a larger number, or none"),
    ):
        ran = command.run_inline("cron", "edit", "look", *change)
        assert (ran.code, told in ran.err) == (2, True), ran.err
    assert schedules_of(command)[0]["cron"] == "0 9 * * 1-5"
    assert command.run_inline("cron", "edit", "look", "--max-runs", "4").code == 0


def test_what_fell_due_while_it_was_over_is_not_made_up(command: Command) -> None:
    row = add(command)
    change_row(command, row["id"], state="ended", last_slot=1_700_000_000.0, fires=3, max_runs=3)
    assert command.run_inline("cron", "edit", "look", "--prompt", "Look closely").code == 0
    assert stored_row(command, row["id"]).last_slot == 1_700_000_000.0, "it stays over"
    before = time.time()
    assert command.run_inline("cron", "edit", "look", "--max-runs", "none").code == 0
    changed = stored_row(command, row["id"])
    assert (changed.state, (changed.last_slot or 0) >= before) == ("active", True)


def test_a_person_pauses_resumes_and_runs_one_by_its_name(command: Command) -> None:
    row = add(command)
    assert command.run_inline("cron", "pause", "look", "--why", "on leave").code == 0
    assert "paused: on leave" in command.run_inline("cron", "list").out
    assert command.run_inline("cron", "pause", "look").code == 2
    sent = command.run_inline("cron", "run", row["id"])
    assert sent.code == 0, "a manual run works even while it is paused"
    assert sent.out.endswith(": no process hosts its session now: `callboard serve` runs it\n")
    (fire,) = json.loads(command.run_inline("cron", "history", "look", "--json").out)
    assert (fire["name"], fire["outcome"], fire["schedule"]) == ("look", "waiting", row["id"])
    assert command.run_inline("cron", "resume", row["id"][:9]).code == 0
    assert schedules_of(command)[0]["state"] == "active"
    assert command.run_inline("cron", "remove", "look").code == 0
    assert (
        schedules_of(command)[0]["state"],
        "cancelled" in command.run_inline("cron", "edit", "look", "--once").err,
    ) == (
        "cancelled",
        True,
    )
    assert add(command)["id"] != row["id"], "a name is free again after its schedule has ended"
    unknown = command.run_inline("cron", "show", "other")
    assert (unknown.code, "unknown schedule 'other': choose look (cron_" in unknown.err) == (2, True)


def test_the_list_says_when_nothing_is_running_that_would_fire_them(command: Command) -> None:
    assert "no running process" not in command.run_inline("cron", "list").err
    add(command)
    said = command.run_inline("cron", "list")
    assert "no running process would fire them: start `callboard serve`" in said.err
    (row,) = schedules_of(command)
    assert (row["fired_by"], len(row["next"]), row["session"]) == (
        "",
        3,
        json.loads(command.run_inline("sessions", "--json").out)[0]["id"],
    )
    command.run_inline("cron", "pause", "look")
    assert "no running process" not in command.run_inline("cron", "list").err


def test_the_history_and_the_numbers_of_fires(command: Command) -> None:
    row = add(command)
    base = {"schedule": row["id"], "session": schedules_of(command)[0]["session"], "agent": "lead"}
    done = {"began_at": NOON, "ended_at": NOON + 12, "cost_usd": 0.25, "tokens": 900, "steps": 2, "outcome": "done"}
    failed = {"began_at": NOON + 60, "ended_at": NOON + 64, "outcome": "failed", "why": "no network", "attempt": 2}
    put_fires(command, [{**base, **done}, {**base, **failed}, {**base, "outcome": "missed", "missed": 5}])
    lines = command.run_inline("cron", "history").out.splitlines()
    assert [line.split()[3] for line in lines[1:]] == ["missed", "failed,", "done"], "the newest first"
    assert ("missed x5" in lines[1], "try 2" in lines[2], "no network" in lines[2], "$0.2500" in lines[3]) == (
        True,
    ) * 4
    (newest,) = json.loads(command.run_inline("cron", "history", "look", "--limit", "1", "--json").out)
    assert (newest["outcome"], newest["duration"]) == ("missed", None)
    (stats,) = json.loads(command.run_inline("cron", "stats", "--json").out)
    assert (stats["fires"], stats["success_rate"], stats["mean_seconds"]) == (7, 0.5, 8)
    assert (stats["outcomes"], stats["cost_usd"]) == ({"done": 1, "failed": 1, "missed": 5}, 0.25)
    assert "1 done, 1 failed, 5 missed" in command.run_inline("cron", "stats", "look").out
    put_fires(command, [{**base, "outcome": "missed", "missed": 10_000}])
    assert "missed x10000+" in command.run_inline("cron", "history").out, "more are not counted"


def test_schedules_of_every_session_are_seen_from_anywhere(command: Command) -> None:
    add(command)
    assert command.run_inline("run", "--model", command.scenario(HELLO), "Go again.").code == 0
    assert command.run_inline("cron", "add", "@daily", "Sum up", "--name", "sum").code == 0
    assert [row["name"] for row in schedules_of(command)] == ["sum", "look"]
    assert "SESSION" in command.run_inline("cron", "list").out
    assert command.run_inline("cron", "show", "look").code == 0
    newest = json.loads(command.run_inline("sessions", "--json").out)[0]["id"]
    assert "look" not in command.run_inline("cron", "list", "--session", newest).out


def test_a_schedule_can_be_added_before_there_is_a_session(tmp_path: Path) -> None:
    command = Command(tmp_path)
    assert command.run_inline("cron", "list").out.startswith("no schedules: callboard cron add")
    assert command.run_inline("cron", "add", "@daily", "Look", "--dry-run").code == 0
    assert not (tmp_path / "state").exists(), "a dry run creates nothing"
    ran = command.run_inline("cron", "add", "@daily", "Look", "--model", command.scenario(HELLO))
    assert (ran.code, len(schedules_of(command))) == (0, 1), ran.err


def test_a_broken_file_is_told_by_the_list(command: Command) -> None:
    folder = Path(command.env["XDG_CONFIG_HOME"]) / "callboard/schedules"
    folder.mkdir(parents=True)
    (folder / "roof.md").write_text('---\ncron: "@daily"\ntimezon: UTC\n---\nLook.\n')
    told = command.run_inline("cron", "list")
    assert (told.code, "roof.md:3: timezon: is not a field of a schedule: choose timezone," in told.err) == (
        0,
        True,
    )


@pytest.mark.parametrize("act", ["add", "edit", "pause", "resume", "remove", "run"])
def test_a_tool_s_process_changes_no_schedule(tmp_path: Path, act: str) -> None:
    given = {"add": ("@daily", "x"), "edit": ("look", "--once")}.get(act, ("look",))
    ran = Command(tmp_path).run_inline("cron", act, *given, CALLBOARD_TOOL="1")
    assert (ran.code, "for a person" in ran.err) == (2, True)


def with_store(command: Command, act: Callable[[Store, str], Awaitable[T]]) -> T:
    """Run `act` with the store and the session of the workspace."""
    session = str(schedules_of(command)[0]["session"])

    async def acting() -> T:
        with mock.patch.dict(os.environ, command.env, clear=True):
            store = await open_store(find_places(command.workspace), Settings(durability="process"), log_notice)
        try:
            return await act(store, session)
        finally:
            await store.aclose()

    return anyio.run(acting)


def stored_row(command: Command, schedule: str) -> Schedule:
    """Return the row of a schedule."""

    async def read(store: Store, session: str) -> Schedule:
        row = await store.get(schedule_key(session, schedule))
        assert row is not None
        return Schedule.model_validate_json(row.value or b"")

    return with_store(command, read)


def change_row(command: Command, schedule: str, **fields: object) -> None:
    """Change the row of a schedule as a host would."""
    row = stored_row(command, schedule).model_copy(update=fields)

    async def put(store: Store, session: str) -> None:
        await store.commit(Put(schedule_key(session, schedule), row.encode()))

    with_store(command, put)


def put_fires(command: Command, rows: list[dict[str, Any]]) -> None:
    """Put fires into the history, a minute apart, as a host would."""
    fires = [
        Fire(id=f"schedule:{row['schedule']}:{n}", nominal=NOON + 60 * n, at=NOON, **row) for n, row in enumerate(rows)
    ]

    async def put() -> None:
        with mock.patch.dict(os.environ, command.env, clear=True):
            store = await open_store(find_places(command.workspace), Settings(durability="process"), log_notice)
        await store.commit(*(Put(fire_key(one.session, one.schedule, one.id), one.encode()) for one in fires))
        await store.aclose()

    anyio.run(put)


def test_a_type_of_a_plugin_that_the_session_began_with_is_a_type_of_its_schedules(command: Command) -> None:
    agent = command.workspace.parent / "acme/agents/scout.md"
    agent.parent.mkdir(parents=True)
    agent.write_text("---\nname: scout\ndescription: Finds places\n---\nYou scout.\n")
    asked = ("cron", "add", "@daily", "Look", "--agent-type", "acme:scout", "--name", "scouting")
    assert "unknown type 'acme:scout'" in command.run_inline(*asked).err
    began = command.run_inline("run", "--plugin-dir", str(agent.parents[1]), "--model", command.scenario(HELLO), "Go.")
    assert began.code == 0, began.err
    added = command.run_inline(*asked)
    assert added.code == 0, added.err
    edited = command.run_inline("cron", "edit", "scouting", "--agent-type", "acme:scot")
    assert "choose acme:scout" in edited.err
