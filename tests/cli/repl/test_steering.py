"""The meaning of a typed line: a table, and rules for all lines."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from callboard.cli.repl.input import (
    LEAVING,
    EmptyLine,
    InterruptRequest,
    InvalidInput,
    Say,
    Shell,
    SlashLine,
    Typed,
    is_busy,
    queued_words,
    read_line,
    runs,
)
from callboard.sessions.result import AgentSummary
from callboard.types.records import Usage

TEAM = {"lead": "working", "alice": "idle", "bob-2": "waiting", "zoe": "stopped"}
CUT = "!@alice TEXT interrupts it"
ALL = ("lead", "alice", "bob-2")


@pytest.mark.parametrize(
    ("line", "typed"),
    [
        ("", EmptyLine()),
        ("  \n ", EmptyLine()),
        ("mend it", Say("mend it")),
        ("two\nlines", Say("two\nlines")),
        ("  mend it ", Say("mend it")),
        ("@alice use tabs", Say("use tabs", ("alice",))),
        ("@Alice: use tabs", Say("use tabs", ("alice",))),
        ("@bob-2, two\nlines", Say("two\nlines", ("bob-2",))),
        ("@lead go on", Say("go on", ("lead",))),
        ("@all stop at noon", Say("stop at noon", ALL)),
        ("ask @alice for it", Say("ask @alice for it")),
        ("@docs/plan.md is wrong", Say("@docs/plan.md is wrong")),
        ("@plan.md is wrong", Say("@plan.md is wrong")),
        ("@ nobody", Say("@ nobody")),
        (" exit ", SlashLine("/quit")),
        ("Quit", SlashLine("/quit")),
        ("?", SlashLine("/help")),
        ("? why", Say("? why")),
        ("exit the loop early", Say("exit the loop early")),
        ("\\exit", Say("exit")),
        ("!ls -a", Shell("ls -a")),
        ("! git log | head", Shell("git log | head")),
        ("!ls @alice", Shell("ls @alice")),
        ("!@lead no, the other one", InterruptRequest("no, the other one")),
        ("!", InterruptRequest("")),
        ("!@alice not that file", InterruptRequest("not that file", ("alice",))),
        ("!@alice", InterruptRequest("", ("alice",))),
        ("!@all", InterruptRequest("", ALL)),
        ("/tasks", SlashLine("/tasks")),
        (" /compact the parser", SlashLine("/compact the parser")),
        ("\\/etc/hosts is wrong", Say("/etc/hosts is wrong")),
        ("\\/fix it", Say("\\/fix it")),
        ("\\!important", Say("!important")),
        ("\\@nobody", Say("@nobody")),
        ("\\\\n", Say("\\n")),
        ("\\", EmptyLine()),
    ],
)
def test_a_line_is_words_an_interrupt_or_a_command(line: str, typed: Typed) -> None:
    assert read_line(line, TEAM) == typed


@pytest.mark.parametrize(
    ("line", "says"),
    [
        ("@alise use tabs", ["unknown agent 'alise': choose @alice, @lead or @bob-2"]),
        ("@zoe go on", ["zoe has stopped"]),
        ("!@carol stop", ["unknown agent 'carol'"]),
        ("@alice", ["@alice TEXT"]),
        ("@all ", ["everyone"]),
    ],
)
def test_a_name_that_nobody_has_is_told_and_nothing_is_sent(line: str, says: list[str]) -> None:
    typed = read_line(line, TEAM)
    assert isinstance(typed, InvalidInput)
    assert all(words in typed.why for words in says), typed.why


def test_a_file_may_begin_the_words_for_the_lead_but_an_agent_goes_before_it() -> None:
    files = {"Makefile", "alice"}.__contains__
    assert read_line("@Makefile is wrong", TEAM, files) == Say("@Makefile is wrong")
    assert isinstance(read_line("!@Makefile is wrong", TEAM, files), InvalidInput)
    assert read_line("@alice is wrong", TEAM, files) == Say("is wrong", ("alice",))
    assert isinstance(read_line("@makefiles is wrong", TEAM, files), InvalidInput)


@given(st.text(max_size=40))
def test_no_line_is_lost_and_none_reaches_another_than_it_names(line: str) -> None:
    typed = read_line(line, TEAM)
    match typed:
        case Say() | InterruptRequest():
            assert typed.text in line, "the text is sent as typed"
            assert typed.to == ("lead",) or "@" in line
        case Shell():
            assert typed.command
            assert line.strip() == f"!{typed.command}" or line.strip()[1:].strip() == typed.command
        case SlashLine():
            assert line.strip().startswith("/") or line.strip().lower() in LEAVING
        case EmptyLine():
            assert line.strip() in ("", "\\") or not line.strip().strip("\\").strip()
        case InvalidInput():
            assert line.strip().lstrip("!").strip().startswith("@")


@given(st.text(min_size=1, max_size=40).filter(lambda text: text == text.strip() != "" and text[0] != "/"))
def test_behind_a_backslash_every_text_goes_to_the_lead_as_it_stands(text: str) -> None:
    assert read_line(f"\\{text}", TEAM) == Say(text)


@pytest.mark.parametrize(
    ("life", "waiting_for", "words"),
    [
        ("idle", "", ""),
        ("waiting", "question req_q", ""),
        ("working", "", "queued: alice reads it at its next step; !@alice TEXT interrupts it"),
        (
            "waiting",
            "plan req_p",
            "queued: alice reads it when its plan is answered (req_p); !@alice TEXT interrupts it",
        ),
        (
            "waiting",
            "subagents",
            "queued: alice reads it when its subagents have reported; !@alice TEXT interrupts it",
        ),
        (
            "waiting",
            "rate",
            "queued: alice reads it when the service takes its calls again; !@alice TEXT interrupts it",
        ),
        ("stopping", "", "alice is about to stop: it may no longer read this"),
        (
            "crashed",
            "",
            "queued: alice is parked after crashes; it reads this when it continues (callboard team resume alice)",
        ),
    ],
)
def test_a_word_that_waits_says_until_when(life: str, waiting_for: str, words: str) -> None:
    assert queued_words("alice", life, waiting_for) == words


@pytest.mark.parametrize(
    ("kind", "life", "waiting_for", "busy", "running"),
    [
        ("lead", "starting", "", False, False),
        ("lead", "starting", "restart", True, True),
        ("teammate", "starting", "", True, True),
        ("lead", "working", "", True, True),
        ("lead", "waiting", "subagents", True, True),
        ("lead", "waiting", "rate", True, True),
        ("lead", "waiting", "permission req_a", True, False),
        ("teammate", "waiting", "plan req_a", True, False),
        ("teammate", "waiting", "question req_a", True, False),
        ("lead", "idle", "", False, False),
        ("teammate", "stopped", "", False, False),
        ("teammate", "crashed", "", False, False),
    ],
)
def test_an_agent_runs_unless_it_has_no_turn_or_waits_for_a_person(
    kind: str, life: str, waiting_for: str, *, busy: bool, running: bool
) -> None:
    agent = AgentSummary("a", kind, 0, Usage(), life, "", "", waiting_for)
    assert (is_busy(agent), runs(agent)) == (busy, running)
