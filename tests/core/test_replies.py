"""A reply that came in parts is one text, however it was cut, and whatever was compacted in between."""

from __future__ import annotations

from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as hy
from tests.core.agent.agent_states import Life

from callboard.core.replies import ReplyText, reply_text
from callboard.types import events as ev
from callboard.types.messages import Edit


@given(hy.text("ab \n", min_size=1), hy.lists(hy.integers(0, 30), max_size=4))
def test_the_parts_of_a_text_that_was_cut_anywhere_are_that_text(text: str, cuts: list[int]) -> None:
    places = sorted({0, len(text), *(cut % len(text) for cut in cuts)})
    parts = [text[start:stop] for start, stop in pairwise(places)]
    said = ReplyText("of an earlier reply")
    for number, part in enumerate(parts, 1):
        sent = part.rstrip()
        blocks = [{"type": "text", "text": sent}] if sent else []
        said = said.with_reply(blocks, "end_turn" if number == len(parts) else "max_tokens", part[len(sent) :])
    assert "".join(said.text.split()) == "".join(text.split()) or (not text.strip() and "earlier" in said.text)
    if all(part.strip() for part in parts):
        assert said == ReplyText(text.strip())


def test_a_text_with_citations_is_one_text_although_it_has_several_blocks() -> None:
    passage = {"type": "web_search_result_location", "url": "https://example.org", "cited_text": "5 km"}
    blocks = (
        text("I look it up."),
        {"type": "server_tool_use", "id": "srvtoolu_1", "name": "web_search", "input": {}},
        text("It is "),
        text("5 km", [passage]),
        text(", so you can walk."),
        text("Shall I go on?"),
    )
    assert reply_text(blocks) == "I look it up.\nIt is 5 km, so you can walk.\nShall I go on?"
    assert ReplyText().with_reply(blocks, "end_turn").text == reply_text(blocks)
    assert (
        reply_text((text("", [passage]), {"type": "thinking", "thinking": "5"}, text("a"), text(""), text("b")))
        == "a\nb"
    )


def text(words: str, citations: list[object] | None = None) -> dict[str, object]:
    return {"type": "text", "text": words, "citations": citations}


def test_a_new_reply_is_not_joined_to_one_that_is_whole() -> None:
    life = Life.begun().prompted("go").said("first").said("second")
    assert life.state.turn is not None
    assert life.state.turn.text == "second"


def test_a_part_that_a_person_interrupts_is_kept_behind_the_others() -> None:
    life = Life.begun().prompted("go").said("one, ", stop="max_tokens").on(ev.ContinuationAsked, count=1).asked()
    life = life.on(ev.ReplyInterrupted, ordinal=2, text="two")
    assert life.state.turn is not None
    assert life.state.turn.text == "one,two"


def test_a_model_whose_part_was_compacted_is_shown_its_end_and_told_to_go_on() -> None:
    life = Life.begun().prompted("go").said("x" * 3_000 + " the end of it", stop="max_tokens")
    life = life.on(ev.ContinuationAsked, count=1)
    last = life.state.context.conversation.messages[-1].id
    blocks = ({"data": {"type": "text", "text": "[Compacted] short"}, "source": "compactor"},)
    edit = Edit.model_validate({"kind": "summarised", "message": 0, "last": last, "blocks": blocks})
    edited = {"stage": "summarize_all", "trigger": "auto", "revision": life.state.context.conversation.revision}
    compacted = life.on(ev.ContextEdited, **edited, edits=(edit,))
    (told,) = [one for one in compacted.state.context.injections if one.key == "continuation"]
    assert "the end of it" in told.text
    assert "Continue exactly there" in told.text
    assert len(told.text) < 2_600
    whole = Life.begun().prompted("go").said("done").on(ev.ContextEdited, **edited, edits=(edit,))
    assert [one.key for one in whole.state.context.injections] == []
