"""Frame of a question: it fits the screen, folds a long body, counts what waits, and hides nothing."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from callboard.cli.terminal.frame import MOST_LINES, DrawnFrame, Frame, broken, echo_line
from callboard.cli.terminal.terminal import Line, columns, style_lines
from callboard.cli.views.question import frame_of, question_of, request_block
from callboard.core.approvals.requests import open_request
from callboard.types.records import Request

NOW = 1_800_000_000.0


def permission(command: str = "npm test", **payload: Any) -> Request:
    held = {"tool": "bash", "input": {"command": command}, "rule": "X", "why": "`npm` runs code", **payload}
    return open_request(Request(id="req_abcdefghijkl", kind="permission", asked_by="lead", payload=held))


def drawn(frame: Frame, width: int = 80, height: int = 24, *, encoding: str = "utf-8") -> tuple[DrawnFrame, list[str]]:
    view = DrawnFrame(frame, lambda: NOW, encoding)
    return view, [line.text for line in view.rows(width, height)]


def test_a_permission_is_a_frame_of_at_most_eight_lines() -> None:
    request = permission(always=["Bash(npm test:*)"])
    view, rows = drawn(frame_of(request, edits=True))
    assert [*rows, view.prompt(question_of(request, edits=True), 80)] == [
        f"╭─ lead wants to run a command {'─' * 30} req_abcdefghijkl",
        "│ npm test",
        "│ `npm` runs code (rule X)",
        "│ 1 yes",
        "│ 2 yes, and always in this session: Bash(npm test:*)",
        "│ 3 no, and say why",
        "│ 4 edit it first",
        "╰ allow this? [1-4, or y/n and why]> ",
    ]
    assert view.keys == {"1", "2", "3", "4"}


@pytest.mark.parametrize("width", [80, 100, 120])
def test_choices_share_a_row_rather_than_take_a_ninth_line(width: int) -> None:
    long = "it reaches the network, and `curl` is not a program that is known to only read what it is told to read"
    rules = ["Bash(curl https://example.org/data:*)", "Bash(jq:*)"]
    request = permission("curl https://example.org/data | jq .", why=long, always=rules)
    _, rows = drawn(frame_of(request, edits=True), width)
    assert len(rows) + 1 <= MOST_LINES
    text = " ".join(row[2:].strip() for row in rows)
    assert all(f"Bash({rule}" in text for rule in ("curl https://example.org/data:*)", "jq:*)"))
    assert long in text


def test_a_command_with_a_long_description_and_two_hosts_takes_eight_lines_besides_the_command() -> None:
    command = (
        "curl -sS https://packages.example.org/requests/ -o /tmp/index.html && pip download requests==2.32.0 --no-deps"
    )
    given = {"command": command, "description": "Download the index page of requests and its wheel, to look at both"}
    hosts = (
        "`curl` uses the network. An approval lets it reach packages.example.org, files.example.org, and no other host"
    )
    request = permission(input=given, why=hosts, always=["Bash(curl:*)", "Bash(pip download:*)"])
    _, rows = drawn(frame_of(request))
    assert len(rows) + 1 <= MOST_LINES + 1
    (description,) = [row for row in rows if "description: " in row]
    assert description == "│ description: Download the index page of requests and its wheel, to look a…"
    assert given["description"] in "\n".join(line.text for line in request_block(request).lines), (
        "a listing has it whole"
    )


def test_a_call_of_two_fields_takes_eight_lines() -> None:
    given = {
        "url": "https://docs.python.org/3/library/asyncio-task.html",
        "prompt": "What does TaskGroup do on a failure?",
    }
    why = "it reads from docs.python.org, and no rule allows that host yet, so that somebody has to say so first"
    request = permission(tool="web_fetch", input=given, why=why, always=["WebFetch(domain:docs.python.org)"])
    _, rows = drawn(frame_of(request, edits=True))
    assert len(rows) + 1 <= MOST_LINES


def test_a_long_diff_is_folded_with_a_count_and_a_key_shows_all() -> None:
    content = "".join(f"line {number}\n" for number in range(1, 101))
    held = {"tool": "write_file", "input": {"path": "a.txt", "content": content}}
    frame = frame_of(permission(**held), edits=True)
    view, rows = drawn(frame)
    assert rows[1] == "│   1 + line 1"
    (fold,) = [row for row in rows if "more line" in row]
    shown = sum(" + line " in row for row in rows)
    assert fold == f"│ … {100 - shown} more lines: v shows all"
    assert len(rows) + 1 <= 23
    assert "v" in view.keys
    assert [line.text for line in view.whole().lines][1:] == [f"{n:>3} + line {n}" for n in range(1, 101)]
    again = [line.text for line in view.rows(80, 24)]
    assert "│ (100 lines, shown above)" in again
    assert "v" not in view.keys
    _, taller = drawn(frame, 120, 40)
    assert sum(" + line " in row for row in taller) > shown


def test_what_waits_is_counted_as_it_comes_and_a_near_deadline_is_shown() -> None:
    waiting = [0]
    request = permission().model_copy(update={"expires_at": NOW + 1_000})
    frame = frame_of(request)
    view = DrawnFrame(Frame(frame.title, request=frame.request, waiting=lambda: waiting[0]), lambda: NOW)
    assert "1 of" not in view.rows(80, 24)[0].text
    waiting[0] = 2
    assert view.rows(80, 24)[0].text.endswith("─ 1 of 3   req_abcdefghijkl")
    far = DrawnFrame(frame, lambda: NOW)
    assert "until" not in far.rows(100, 24)[0].text
    assert far.seconds_until_near() == 700
    near = DrawnFrame(frame, lambda: NOW + 701)
    assert ", then it is refused" in near.rows(100, 24)[0].text
    assert near.seconds_until_near() is None


def test_a_screen_without_lines_and_a_screen_without_color_have_their_own_frames() -> None:
    view, rows = drawn(frame_of(permission()), encoding="ascii")
    assert "".join([*rows, view.prompt("allow this? [1,3]> ", 80)]).isascii()
    assert rows[0].startswith("+- lead wants to run a command ---")
    assert "\x1b" not in style_lines(view.rows(80, 24), color=False)
    assert "\x1b[" in style_lines(view.rows(80, 24), color=True)


def test_the_linear_form_is_whole_and_without_a_border() -> None:
    content = "".join(f"line {number}\n" for number in range(1, 101))
    request = permission(tool="write_file", input={"path": "a.txt", "content": content}, always=["Edit(/a.txt)"])
    lines = [line.text for line in frame_of(request).lines]
    assert lines[0] == "permission req_abcdefghijkl: write a.txt"
    assert lines[1:101] == [f"  {n:>3} + line {n}" for n in range(1, 101)]
    assert lines[101:] == [
        "  `npm` runs code (rule X)",
        "  1 yes",
        "  2 yes, and always in this session: Edit(/a.txt)",
        "  3 no, and say why",
    ]
    assert frame_of(request).repeat("type a number").lines == (Line("type a number", "warn"),)


TEXTS = st.text(alphabet="ab /.-12\u4f60\t", max_size=200)


@given(TEXTS, st.integers(20, 60))
@settings(max_examples=150, deadline=None)
def test_rows_fit_keep_every_word_and_break_only_long_ones(text: str, width: int) -> None:
    rows = [row.text for row in broken(Line(text), width)]
    assert all(columns(row) <= width for row in rows)
    assert "".join("".join(rows).split()) == "".join(text.split())
    short = [word for word in text.split() if columns(word) <= width // 2]
    assert all(any(word in row.split() for row in rows) for word in short)


@given(st.integers(40, 160), st.integers(14, 60), TEXTS, st.lists(TEXTS, max_size=40))
@settings(max_examples=60, deadline=None)
def test_a_frame_never_leaves_the_screen(width: int, height: int, title: str, body: Sequence[str]) -> None:
    frame = Frame(f"a {title[:40]}", body=tuple(map(Line, body)), request="req_abcdefghijkl")
    view = DrawnFrame(frame, lambda: NOW)
    rows = view.rows(width, height)
    assert all(columns(row.text) < width for row in rows)
    assert len(rows) < height
    assert all(columns(row.text) == sum(columns(span.text) for span in row.spans) for row in rows)


def test_the_persons_words_follow_an_empty_line_and_are_marked() -> None:
    assert [line.text for line in echo_line("one\ntwo").lines] == ["", "> one", "  two"]
    assert echo_line("one").lines[1].style == "strong"
    assert echo_line("\n".join("x" * 1 for _ in range(20))).lines[-1].text == "  … 8 more lines, sent whole"
    (_, first) = echo_line("x" * 260_000).lines
    assert first.text == f"> {'x' * 1_000} … 259000 more characters, sent whole"
