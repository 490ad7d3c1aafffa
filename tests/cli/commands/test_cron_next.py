"""`callboard cron next`: in words for a person, and with `--stdin` as a process that answers any line."""

from __future__ import annotations

import contextlib
import json
import random
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from tests.cli.commands.command import Command
from tests.cli.commands.test_exit_codes import HELLO
from tests.core.scheduling.cron_refused import REFUSED, ZONES
from tests.core.scheduling.cron_walk import triples, walk
from tests.warm import PIPE

FIELDS = {"minute", "hour", "day of month", "month", "day of week", "timezone", "expr", "base", "count"}


@pytest.fixture(scope="module")
def command(tmp_path_factory: pytest.TempPathFactory) -> Command:
    return Command(tmp_path_factory.mktemp("cron"))


def answers_to(command: Command, lines: Sequence[bytes]) -> list[dict[str, Any]]:
    """Return one real process's answers to these lines."""
    answers = command.answers("cron", "next", lines=lines)
    for answer in answers:
        if "next" in answer:
            assert set(answer) == {"next"}
            assert answer["next"]
        else:
            assert set(answer) == {"error", "field"}
            assert answer["field"] in FIELDS
            assert "a bug in Callboard" not in answer["error"]
    return answers


def question(expr: object, tz: object = None, base: object = None, count: object = None, **more: object) -> bytes:
    given = {"expr": expr, "tz": tz, "base": base, "count": count}
    return json.dumps({**{name: value for name, value in given.items() if value is not None}, **more}).encode()


NOON = "2026-03-28T12:00:00+01:00"
ANSWERED: list[tuple[bytes, list[str]]] = [
    (question("0 9 * * 1-5", "Europe/Berlin", NOON, 2), ["2026-03-30T09:00:00+02:00", "2026-03-31T09:00:00+02:00"]),
    (question("30 2 * * *", "Europe/Berlin", NOON, 2), ["2026-03-29T03:00:00+02:00", "2026-03-30T02:30:00+02:00"]),
    (question("0 12 * * *", "Europe/Berlin", NOON, 1), ["2026-03-29T12:00:00+02:00"]),
    (question("0 12 * * *", "Europe/Berlin", "2026-03-28T11:59:59.999999+01:00", 1), ["2026-03-28T12:00:00+01:00"]),
    (question("*/30 2 25 10 *", "Europe/Berlin", "2026-10-25T02:30:00+02:00", 2), []),
    (question("0 9 * * *", "Asia/Kolkata", "2026-01-01", 1), ["2026-01-01T09:00:00+05:30"]),
    (question("0 9 * * *", "America/New_York", "2026-01-01T09:00", 1), ["2026-01-02T09:00:00-05:00"]),
    (question("0 9 * * *", None, "20260101T085959Z", 1), ["2026-01-01T09:00:00+00:00"]),
    (question("15 2 4 10 *", "Australia/Lord_Howe", NOON, 1), ["2026-10-04T02:30:00+11:00"]),
    (question("0 0 29 2 */7", "UTC", "2096-03-01T00:00Z", 1), ["2128-02-29T00:00:00+00:00"]),
    (question("every 1h30m", "Europe/Berlin", NOON, 2), ["2026-03-28T13:30:00+01:00", "2026-03-28T15:00:00+01:00"]),
    (question("at 2026-12-01T09:00", "Europe/Berlin", NOON, 3), ["2026-12-01T09:00:00+01:00"]),
    (question("@yearly", "UTC", "8999-06-01T00:00Z", 3), ["9000-01-01T00:00:00+00:00"]),
    (question("@daily", "UTC", NOON, 1, id=7, note={"a": [None]}), ["2026-03-29T00:00:00+00:00"]),
    (json.dumps({"expr": "@daily", "tz": None, "base": NOON, "count": None}).encode(), []),
]
WRONG: list[tuple[str, bytes]] = [
    *(("expr", line) for line in (b"", b"   ", b"nonsense", b"[]", b"null", b'"* * * * *"', b"{}", b"5", b"\x00\x00")),
    *(("expr", line) for line in (b'{"expr": "@daily"', b'{"expr": "\xff\xfe"}', b"\xef\xbb\xbf{}", b"{'expr': 1}")),
    ("expr", b'{"expr": "@daily", "expr": "@hourly"}'),
    ("expr", b'{"expr": ' + b"[" * 60_000 + b"]" * 5 + b"}"),
    ("expr", b'{"expr": "' + b"x" * 200_000 + b'"}'),
    ("expr", b'{"expr": "@daily", "count": ' + b"9" * 5_000 + b"}"),
    *(("expr", question(expr)) for expr in (5, True, [], {}, ["@daily"], 1.5, "", "\0", "at 2020-01-01T00:00")),
    *(("timezone", question("@daily", tz)) for tz in (5, [], {}, True, "Mars/Olympus", "", "\0", "\ud800", "../UTC")),
    *(
        ("base", question("@daily", "UTC", base))
        for base in (5, 1e99, [], {}, True, "", "now", "12:00", "2026-02-30", "\0")
    ),
    *(
        ("base", question("@daily", "UTC", base))
        for base in ("2026-01-01T25:00", "0001-01-01", "9999-12-31", "-5", "\ud800")
    ),
    ("base", question("@daily", "UTC", "0001-01-01T00:00+23:59")),
    *(
        ("count", question("@daily", "UTC", NOON, count))
        for count in (0, -1, 1.0, 1e400, "3", True, [], {}, 10**30, 1_001)
    ),
    ("timezone", question("@daily", timezone="Europe/Berlin")),
    ("base", question("@daily", **{"from": NOON})),
    ("expr", b'{"cron": "@daily"}'),
]


@pytest.mark.slow
def test_each_question_gets_its_times(command: Command) -> None:
    drawn = [triple for triple in triples(71, 60, each=6) if next(walk(triple), None) is not None]
    walked = [
        question(one.expression.text, one.zone, datetime.fromtimestamp(one.after, UTC).isoformat(), 1) for one in drawn
    ]
    answers = answers_to(command, [line for line, _ in ANSWERED] + walked)
    wrong = [(line, got) for (line, due), got in zip(ANSWERED, answers, strict=False) if due and got != {"next": due}]
    assert wrong == []
    assert len(answers[len(ANSWERED) - 1]["next"]) == 5
    found = [datetime.fromisoformat(answer["next"][0]).timestamp() for answer in answers[len(ANSWERED) :]]
    assert len(drawn) >= 20
    assert found == [float(next(walk(one))) for one in drawn]


def test_what_is_wrong_is_told_with_its_field_and_nothing_stops(command: Command) -> None:
    refused = [(field, question(text)) for field, texts in REFUSED.items() for text in texts]
    due = [*WRONG, *refused, *(("timezone", question("@daily", zone)) for zone in ZONES)]
    lines = [each for _, line in due for each in (line, question("@daily"))]
    answers = answers_to(command, [*lines, *corrupted_lines(600)])[: len(lines)]
    assert all("next" in answer for answer in answers[1::2])
    wrong = [
        (line, answer)
        for (field, line), answer in zip(due, answers[::2], strict=True)
        if answer.get("field") != field.replace("expression", "expr")
    ]
    assert wrong == []


def corrupted_lines(count: int) -> list[bytes]:
    """Return requests with a few changed bytes."""
    draw, made = random.Random(7), list[bytes]()
    lines = [line for line, _ in ANSWERED] + [line[:2_000] for _, line in WRONG]
    for _ in range(count):
        line = bytearray(draw.choice(lines))
        for _ in range(draw.randint(1, 4)):
            at = draw.randrange(len(line) + 1)
            line[at : at + draw.randint(0, 3)] = draw.choice([b'"', b"{", b"\\", b"\xc3", b"\\u0000", b"9", b"", b"}"])
        made.append(bytes(line).replace(b"\n", b" "))
    return made


def test_an_answer_comes_before_the_next_line_is_given(command: Command) -> None:
    process = command.start("cron", "next", "--stdin", stdin=PIPE)
    assert process.stdin is not None
    assert process.stdout is not None
    for count in (1, 2, 3):
        process.stdin.write(question("@daily", count=count).decode() + "\n")
        process.stdin.flush()
        assert len(json.loads(process.stdout.readline())["next"]) == count
    process.stdin.write(question("@daily").decode())  # the last line need not end with a newline
    process.stdin.close()
    assert "next" in json.loads(process.stdout.readline())
    assert process.wait(180) == 0


def test_it_ends_quietly_when_nobody_reads_the_answers(command: Command) -> None:
    process = command.start("cron", "next", "--stdin", stdin=PIPE)
    assert process.stdin is not None
    assert process.stdout is not None
    assert process.stderr is not None
    process.stdout.close()
    with contextlib.suppress(BrokenPipeError):
        process.stdin.write((question("@daily").decode() + "\n") * 2_000)
        process.stdin.flush()
    assert process.wait(180) == 0
    assert process.stderr.read() == ""


def test_a_person_is_told_the_words_and_the_next_times(command: Command) -> None:
    ran = command.run_inline(
        "cron", "next", "0 9 * * 1-5", "--timezone", "Europe/Berlin", "--from", NOON, "--count", "2"
    )
    assert (ran.code, ran.err) == (0, "")
    assert ran.out == (
        "at 09:00 on weekdays, Europe/Berlin\n  Mon 2026-03-30 09:00 CEST\n  Tue 2026-03-31 09:00 CEST\n"
    )
    ran = command.run_inline("cron", "next", "every", "20m", "--from", "2026-01-01T00:00Z", "--count", "1", "--json")
    assert json.loads(ran.out) == {
        "expr": "every 20m",
        "tz": "UTC",
        "words": "every 20 minutes from 00:00 on 1 January 2026, UTC",
        "next": ["2026-01-01T00:20:00+00:00"],
    }


@pytest.mark.parametrize(
    ("given", "told"),
    [
        ((), "give an expression"),
        (("60 * * * *",), "minute: '60' is out of range"),
        (("@dayly",), "expression: '@dayly' is not known"),
        (("every 5s",), "expression: the period '5s' is out of range"),
        (("at 2020-01-01T00:00",), "never fires after"),
        (("@daily", "--timezone", "berlin"), "did you mean Europe/Berlin"),
        (("@daily", "--from", "noon"), "base: 'noon' is not a time"),
        (("@daily", "--count", "0"), "0 is out of range: give 1 to"),
        (("@daily", "--stdin"), "omit EXPR"),
    ],
)
def test_what_cannot_be_told_is_a_usage_error(command: Command, given: tuple[str, ...], told: str) -> None:
    ran = command.run_inline("cron", "next", *given)
    assert (ran.code, ran.out) == (2, "")
    assert told in ran.err


def test_a_schedule_is_told_by_its_id(tmp_path: Path) -> None:
    command = Command(tmp_path)
    assert command.run_inline("run", "--model", command.scenario(HELLO), "Go.").code == 0
    added = command.run_inline("cron", "add", "0 9 * * 1-5", "Look", "--timezone", "Asia/Tokyo")
    assert added.code == 0, added.err
    (row,) = json.loads(command.run_inline("cron", "list", "--json").out)
    ran = command.run_inline("cron", "next", row["id"], "--count", "1")
    assert (ran.code, ran.out.splitlines()[0]) == (0, "at 09:00 on weekdays, Asia/Tokyo")
    assert " 09:00 JST" in ran.out.splitlines()[1]
    assert command.run_inline("cron", "remove", row["id"]).code == 0
    assert "never again" in command.run_inline("cron", "next", row["id"]).out
    assert command.run_inline("cron", "next", "cron_nothing").code == 2
