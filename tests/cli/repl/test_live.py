"""The lead's text at the prompt line: block by block as it streams, each once, void ones marked, the last always."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from tests.cli.repl.live_rows import LiveOutput, replied
from tests.core.agent.agent_states import Life

from callboard.cli.repl.live_screen import tail_rows
from callboard.ports.model import Delta
from callboard.types import events as ev
from callboard.types.messages import Edit
from callboard.types.records import ToolCall

TEXT = "First of all.\n\n- one\n- two\n\nAnd that is all."


@pytest.fixture
def shown() -> Iterator[LiveOutput]:
    shown = LiveOutput()
    yield shown
    shown.terminal.close()


def test_finished_blocks_appear_while_the_rest_streams(shown: LiveOutput) -> None:
    shown.stream("First of all.\n\n- one\n- two\n\nAnd th")
    assert shown.text() == "lead: First of all.\n\n- one\n- two\n"
    assert shown.screen.tail(80, 24) == "And th"
    shown.event(replied(TEXT))
    assert shown.text() == f"lead: {TEXT}\n"
    assert shown.screen.tail(80, 24) == ""


def test_what_the_service_sends_beside_the_text_breaks_no_word(shown: LiveOutput) -> None:
    for at, char in enumerate("One word.\n\nTwo."):
        shown.screen.on_delta("lead", Delta("event", "", {"at": at}))
        shown.screen.on_delta("lead", Delta("text", char))
    assert shown.text() == "lead: One word.\n"
    assert shown.screen.tail(80, 24) == "Two."


def test_texts_with_thoughts_between_them_are_two_texts(shown: LiveOutput) -> None:
    shown.stream("One.")
    shown.screen.on_delta("lead", Delta("thinking", "hm"))
    shown.stream("Two.")
    assert shown.screen.tail(80, 24) == "One.\nTwo."
    shown.event(replied("One.", "Two."))
    assert shown.text() == "lead: One.\nTwo.\n"


def test_a_reply_that_did_not_stream_is_shown_whole(shown: LiveOutput) -> None:
    shown.event(replied("One.", "Two."))
    shown.event(replied(TEXT), "alice")
    assert shown.text() == f"lead: One.\nTwo.\nalice: {TEXT}\n"


def test_pieces_that_were_lost_are_made_good_by_the_reply(shown: LiveOutput) -> None:
    shown.stream(TEXT.replace("- one\n", ""))
    shown.event(replied(TEXT))
    first, gap, *rest = shown.text().split("\n\n")[0], *shown.text().split("lead: [parts")[1:]
    assert first == "lead: First of all."
    assert "- one\n- two\n\nAnd that is all.\n" in gap
    assert shown.text().count("First of all.") == 1
    assert rest == []


def test_a_partial_reply_that_is_dropped_is_marked_as_void_even_when_quiet() -> None:
    shown = LiveOutput(quiet=True)
    shown.stream("Wrong words.\n\nMore wr")
    shown.screen.on_delta("lead", Delta("dropped", "overloaded: busy"))
    assert "What lead said above since its last whole reply is void" in shown.text()
    assert shown.screen.tail(80, 24) == ""
    shown.stream("Right words.\n\nYes.")
    shown.event(replied("Right words.\n\nYes."))
    assert shown.text().endswith("lead: Right words.\n\nYes.\n")
    shown.terminal.close()


def test_a_partial_reply_of_which_nothing_was_printed_needs_no_mark(shown: LiveOutput) -> None:
    shown.stream("Wro")
    shown.screen.on_delta("lead", Delta("dropped", "overloaded: busy"))
    assert shown.text() == ""
    shown.stream("Right.")
    shown.event(replied("Right."))
    assert shown.text() == "lead: Right.\n"


def test_what_a_person_interrupted_is_not_said_twice(shown: LiveOutput) -> None:
    shown.stream("One.\n\nTwo, and th")
    shown.event(ev.ReplyInterrupted(at=0, ordinal=1, text="One.\n\nTwo, and th"))
    assert shown.text() == "lead: One.\n\nTwo, and th\n[interrupted]\n"


def test_the_final_answer_is_shown_once_after_a_compaction(shown: LiveOutput) -> None:
    shown.stream("Let me see.\n\nI lo")
    shown.event(replied("Let me see.\n\nI look."))
    edits = (Edit(kind="summarised", message=1, last=2),)
    shown.event(ev.ContextEdited(at=0, stage="summarize_all", revision=1, edits=edits))
    shown.stream("The answer.\n\nIt is 42.")
    shown.event(replied("The answer.\n\nIt is 42."))
    shown.event(ev.TurnEnded(at=0, turn="t", reason="end", text="The answer.\n\nIt is 42."))
    assert shown.text().count("It is 42.") == 1
    assert shown.text().index("compaction") < shown.text().index("It is 42.")


def test_a_final_answer_that_no_reply_carried_is_shown(shown: LiveOutput) -> None:
    shown.event(ev.TurnEnded(at=0, turn="t", reason="end", text="It is 42."))
    assert shown.text() == "lead: It is 42.\n"


def test_with_colour_the_words_are_set_and_hold_no_sequence_of_the_models() -> None:
    shown = LiveOutput(color="always")
    shown.stream("# Title\x1b[2J\n\nSome **bold** text\x1b]0;owned\x07.\n\n```py\nx = 1\n```\n")
    shown.event(replied("# Title\x1b[2J\n\nSome **bold** text\x1b]0;owned\x07.\n\n```py\nx = 1\n```\n"))
    assert shown.plain_text() == "lead Title\n\nSome bold text.\n\n  x = 1\n"
    assert "\x1b[2J" not in shown.text()
    shown.terminal.close()


def test_a_call_is_folded_with_its_last_lines_or_its_change(shown: LiveOutput) -> None:
    calls = (
        ToolCall(id="c1", use_id="u1", name="bash", input={"command": "pytest -q"}),
        ToolCall(id="c2", use_id="u2", name="edit_file", input={"path": "a.py"}),
    )
    shown.event(replied().model_copy(update={"calls": calls}))
    output = "\n".join(["begin", *[f"dot {at}" for at in range(40)], "2 failed\x1b[2J", "done"])
    shown.event(ev.ToolFinished(at=0, call="c1", content=({"type": "text", "text": output},)))
    change = "Edited a.py:\n--- a.py\n+++ a.py\n@@ -1,2 +1,2 @@\n one\n-two\n+2"
    shown.event(ev.ToolFinished(at=0, call="c2", content=({"type": "text", "text": change},)))
    assert shown.text() == (
        "lead: bash pytest -q => 43 lines\n    dot 39\n    2 failed\n    done\n"
        "lead: edit_file a.py => +1 -1\n    -two\n    +2\n"
    )


def test_unchanged_items_of_a_list_are_no_removed_lines(shown: LiveOutput) -> None:
    shown.event(replied().model_copy(update={"calls": (ToolCall(id="c", use_id="u", name="edit_file", input={}),)}))
    change = "Edited a.md:\n--- a.md\n+++ a.md\n@@ -1,3 +1,3 @@\n - one\n - two\n-- three\n+- four"
    shown.event(ev.ToolFinished(at=0, call="c", content=({"type": "text", "text": change},)))
    assert shown.text().splitlines()[0].endswith("=> +1 -1")


def test_verbose_shows_a_result_in_full() -> None:
    shown = LiveOutput(verbose=True)
    call = ToolCall(id="c1", use_id="u1", name="bash", input={"command": "seq 30"})
    shown.event(replied().model_copy(update={"calls": (call,)}))
    output = "\n".join(map(str, range(30)))
    shown.event(ev.ToolFinished(at=0, call="c1", content=({"type": "text", "text": output},)))
    assert "".join(f"    {number}\n" for number in range(30)) in shown.text()
    shown.terminal.close()


@pytest.mark.parametrize(
    ("text", "width", "rows", "tail"),
    [
        ("", 20, 3, ""),
        ("one\ntwo\nthree", 20, 2, "two\nthree"),
        ("abcdefgh", 5, 4, "abcd\nefgh"),
        ("one two three", 9, 4, "one two\nthree"),
        ("你好世界", 5, 4, "你好\n世界"),
        ("a\x1b[2Jb\n\n", 20, 4, "ab"),
        ("x" * 10_000, 11, 2, "x" * 10 + "\n" + "x" * 10),
    ],
)
def test_the_tail_is_the_last_rows(text: str, width: int, rows: int, tail: str) -> None:
    assert tail_rows(text, width, rows) == tail


def test_a_continued_session_shows_its_last_prompt_with_the_answer_to_it_alone(shown: LiveOutput) -> None:
    answered = (
        Life.begun("lead").prompted("one").said("First.").on(ev.TurnEnded, turn="turn_0", reason="end", text="First.")
    )
    earlier = [line.text for line in shown.screen.earlier(answered.state).lines]
    assert earlier == ["", "> one", "First."]
    under_way = answered.prompted("two")
    assert [line.text for line in shown.screen.earlier(under_way.state).lines] == ["", "> two"]
    long = Life.begun("lead").prompted("one").on(ev.TurnEnded, turn="turn_0", reason="end", text="\n".join("x" * 30))
    assert [line.text for line in shown.screen.earlier(long.state).lines][-2:] == ["x", "  … 10 more lines"]
    assert shown.screen.earlier(Life.begun("lead").state).lines == ()
