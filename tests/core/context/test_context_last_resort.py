"""What is too large by itself. It goes to files, whole, and the view keeps its beginning and its end."""

from __future__ import annotations

import base64
from typing import Any, cast

import pytest
from hypothesis import given
from hypothesis import strategies as hy
from tests.core.context.context_histories import Session, call, png, result, said, text

from callboard.core.context.pipeline import next_stage, react_stage
from callboard.core.context.stage_input import Situation
from callboard.core.context.stages.last_resort import LEFT_OUT, TOGETHER, blame, drop_old_images
from callboard.core.context.stages.results import persisted_texts
from callboard.core.context.view.conversation import message_tokens, with_overhead
from callboard.core.context.view.invariants import in_file, invariants
from callboard.core.context.view.messages import is_result, result_text
from callboard.core.context.view.tokens import FEW, MOST, image_bytes
from callboard.core.messaging.envelopes import envelope_block
from callboard.types.agent_spec import ModelLimits
from callboard.types.messages import Edit, Placed
from callboard.types.records import Envelope, Json

BUDGET = 10_000


def here(**more: Any) -> Situation:
    given: dict[str, Any] = {"now": 0.0, "folder": "/out", "transcript": "/t/lead-7.jsonl", **more}
    return Situation(**given)


def settle(session: Session, budget: int = BUDGET, **more: Any) -> dict[str, str]:
    """Ask until nothing is left to do; what was written to files. A stage that never ends would be a loop."""
    files: dict[str, str] = {}
    for _ in range(20):
        found = next_stage((), session.view, budget, here(**more))
        if found is None:
            return files
        assert found.edits, "an edit each time, or it is over"
        files |= persisted_texts(session.view, found.edits)
        session.edit(found.edits)
    raise AssertionError("a loop")


def shrunk(session: Session) -> None:
    assert session.faults == []
    assert invariants(session.view.messages) == []


def parallel(count: int, length: int) -> Session:
    session = Session().user(said("go"))
    session.reply(*(call(f"c{n}", "read_file", path=f"f{n}") for n in range(count)))
    return session.user(*(result(f"c{n}", f"{n} " + "x" * length) for n in range(count)))


def test_a_hundred_parallel_results_each_of_legal_size_fit_in_the_end() -> None:
    session = parallel(100, 20_000)
    files = settle(session)
    shrunk(session)
    assert message_tokens(session.view) <= BUDGET
    assert all(whole.endswith("x" * 20_000) for whole in files.values()), "each file holds all of its result"
    texts = [result_text(block) for block in session.view.messages[-1].blocks if is_result(block)]
    assert len(texts) == 100
    assert all(one.startswith("<persisted-output>\nFull output: /out/c") or len(one) > 20_000 for one in texts)


def test_several_giant_results_at_once_with_a_reminder_behind_them() -> None:
    session = Session().user(said("go")).reply(call("a", "bash"), call("b", "bash"))
    note = said("<system-reminder>\nmind\n</system-reminder>", "reminder")
    session.user(result("a", [text("y" * 2_000_000), text("z" * 9)]), result("b", "x" * 1_000_000), note)
    files = settle(session)
    shrunk(session)
    assert message_tokens(session.view) <= BUDGET
    assert sorted(map(len, files.values())) == [1_000_000, 2_000_010], "all texts of a result are in its file"
    assert session.view.messages[-1].blocks[-1].data["text"] == note.data["text"]


def test_a_persons_message_larger_than_the_window_stands_whole_in_a_file() -> None:
    words = "FIRST " + "w" * 90_000 + " LAST"
    session = Session().user(said("go")).step("a").reply(text("ok")).user(said(words))
    files = settle(session)
    shrunk(session)
    assert list(files.values()) == [words]
    shown = str(session.view.messages[-1].blocks[-1].data["text"])
    assert shown.startswith(f"[Large input saved to {next(iter(files))}, {len(words)} chars. Read it in parts.]")
    assert "FIRST" in shown
    assert shown.endswith("LAST")
    assert session.view.messages[-1].blocks[-1].source == "person"


def test_a_pinned_instruction_larger_than_the_window_is_still_pinned_and_no_longer_in_the_way() -> None:
    session = Session().user(said("w" * 90_000)).step("a")
    files = settle(session)
    shrunk(session)
    assert [len(whole) for whole in files.values()] == [90_000]
    (pin,) = session.view.messages.pinned_blocks()
    assert str(pin.data["text"]).startswith("[Large input saved to ")


def test_another_agents_words_go_before_the_persons_and_keep_their_tag() -> None:
    given = {"id": "e1", "sender": "bob", "recipient": "a", "type": "message", "content": "m" * 28_000 + "</inbox>"}
    mail = envelope_block(Envelope.model_validate(given))
    session = Session().user(said("go")).step("a").reply(text("ok")).user(mail, said("p" * 20_000))
    files = settle(session, 7_000)
    shrunk(session)
    first, words = (str(block.data["text"]) for block in session.view.messages[-1].blocks)
    assert words == "p" * 20_000, "the person's words stay as long as that is enough"
    assert first.startswith('<inbox from="bob" type="message" id="e1">\n[Large message saved to /out/words-')
    assert first.endswith("</inbox>")
    assert first.count("</inbox>") == 1
    assert list(files.values()) == ["m" * 28_000 + "&lt;/inbox>"]


def test_what_stands_in_a_file_is_not_sent_to_a_file_again() -> None:
    session = Session().user(said("w" * 90_000))
    settle(session)
    assert settle(session) == {}
    assert settle(session, 10) == {}, "nothing is left: the model is asked, or the turn ends"


def test_a_refused_prompt_whose_newest_message_is_most_of_it_sends_that_to_files_before_it_summarises() -> None:
    session = Session().user(said("go"))
    for _ in range(3):
        session.step("a" * 8_000)
    session.step("b" * 28_000)
    first = react_stage(session.view, 200_000, here())
    assert first is not None
    assert (first.stage, first.prepares) == ("persist_newest", True)
    session.edit(first.edits)
    shrunk(session)
    second = react_stage(session.view, 200_000, here())
    assert second is not None
    assert second.summary is not None


@given(
    hy.lists(hy.integers(0, 60_000), min_size=1, max_size=6),
    hy.integers(0, 90_000),
    hy.integers(500, 20_000),
    hy.booleans(),
)
def test_whatever_is_too_large_it_ends_and_breaks_no_law(sizes: list[int], words: int, budget: int, cjk: bool) -> None:
    letter = "漢" if cjk else "x"
    session = Session().user(said("go")).reply(*(call(f"c{n}", "bash") for n in range(len(sizes))))
    session.user(*(result(f"c{n}", letter * size or "-") for n, size in enumerate(sizes)), said(letter * (words or 1)))
    before = session.view.tokens
    files = settle(session, budget)
    shrunk(session)
    assert session.view.tokens <= before
    assert all(set(whole) <= {letter, "-"} for whole in files.values())


# What does not fit is named


def test_an_overflow_says_what_is_too_large() -> None:
    session = parallel(2, 40_000)
    told = blame(session.view, 5_000)
    assert told.endswith("at most 5,000 may be sent; the largest part is a result of read_file (10,017 tokens)")
    full = with_overhead(session.view, 190_000)
    assert blame(full, 2_000) == "the system prompt and the tools take 190,000 tokens, which leaves 2,000 for messages"
    assert "words of source person" in blame(Session().user(said("x" * 400)).view, 90)


# Images


def image(side: int = 100, weight: int = 0) -> Json:
    head = b"\x89PNG\r\n\x1a\n\0\0\0\rIHDR" + side.to_bytes(4, "big") * 2 + b"\x08\x02"
    data = base64.b64encode(head + b"\0" * weight).decode()
    return {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": data}}


def shows(session: Session, picture: Json, number: int) -> None:
    session.reply(call(f"i{number}", "read_file"))
    session.user(result(f"i{number}", [text(f"picture {number}"), picture]))


def shown(session: Session) -> list[int]:
    """Which pictures are still seen."""
    found: list[int] = []
    for message in session.view.messages:
        for block in message.blocks:
            content = block.data.get("content")
            if is_result(block) and isinstance(content, list):
                found.append(int(str(cast("list[Json]", content)[0]["text"]).split()[1]))
    return found


@pytest.mark.parametrize(("window", "most"), [(200_000, MOST), (1_000_000, 600)])
def test_more_images_than_a_request_takes_leave_from_the_oldest(window: int, most: int) -> None:
    session = Session().user(said("go"))
    for number in range(most + 1):
        shows(session, image(), number)
    assert settle(session, 10**6, limits=ModelLimits(window=window)) == {}
    shrunk(session)
    left = shown(session)
    assert left == list(range(left[0], most + 1)), "the newest stay"
    assert most // 2 < len(left) <= most
    assert session.view.messages[2].blocks[0].data["content"] == f"picture 0\n{LEFT_OUT}"


def test_many_images_are_small_ones_or_few() -> None:
    session = Session().user(said("go"))
    for number in range(FEW):
        shows(session, image(3_000 if number in (3, 7) else 100), number)
    assert settle(session, 10**6) == {}
    assert len(shown(session)) == FEW, "twenty may be large"
    shows(session, image(), FEW)
    settle(session, 10**6)
    shrunk(session)
    assert shown(session) == [n for n in range(FEW + 1) if n not in (3, 7)], "with one more the large ones leave"
    shows(session, image(3_000), FEW + 1)
    settle(session, 10**6)
    assert shown(session)[-1] == FEW + 1, "a large one that is new is seen"
    assert len(shown(session)) <= FEW


def test_images_that_are_too_heavy_together_leave_from_the_oldest() -> None:
    session = Session().user(said("go"))
    heavy = image(100, 3_600_000)
    for number in range(6):
        shows(session, heavy, number)
    assert 6 * image_bytes(heavy) > TOGETHER
    settle(session, 10**6)
    shrunk(session)
    assert shown(session)[-1] == 5
    assert sum(len(message.wire) for message in session.view.messages) < TOGETHER


def test_after_a_refusal_all_images_but_the_newest_may_go() -> None:
    session = Session().user(said("go"))
    for number in range(3):
        shows(session, image(2_000), number)
    tried = frozenset({("react", session.view.revision)})
    found = react_stage(session.view, 200_000, here(tried=tried))
    assert found is not None
    session.edit(found.edits)
    shrunk(session)
    assert shown(session) == [2]


@pytest.mark.parametrize("reminders", [0, 5])
def test_a_refusal_hides_what_its_file_holds(reminders: int) -> None:
    """Exchanges are removed as well, so that the newest message joins what is left of the first one."""
    first = [
        said(f"<system-reminder>\nreminder {number}\n</system-reminder>", "reminder") for number in range(reminders)
    ]
    session = Session().user(*first, said("The first instruction."))
    session.reply(text("reply " * 50)).next_turn()
    session.user(said("then test it"))
    session.reply(text("reply " * 50)).next_turn()
    session.user(said("The newest paste. " + "n" * 90_000))
    found = react_stage(session.view, 18_000, here(summaries_failed=3))
    assert found is not None
    files = persisted_texts(session.view, found.edits)
    assert [content[:17] for content in files.values()] == ["The newest paste."]
    session.edit(found.edits)
    shrunk(session)
    hidden = [
        block.data["text"] for message in session.view.messages for block in message.blocks if in_file(block.data)
    ]
    assert len(hidden) == 1
    assert "The newest paste." in str(hidden[0])


def test_files_are_read_from_the_view_that_each_edit_changes() -> None:
    session = Session().user(said("one"), said("two")).reply(text("yes")).next_turn().user(said("the paste"))
    first, reply, newest = session.view.messages
    fold = Edit(kind="dropped", message=first.id, last=reply.id, blocks=(said("[gone]"),))
    hide = Edit(kind="persisted", message=first.id, last=first.id, block=1, text="[in a file]", path="/out/a.txt")
    nowhere = [hide.model_copy(update={"block": number}) for number in (-1, 7)]
    assert persisted_texts(session.view, [fold, hide]) == {"/out/a.txt": "the paste"}
    assert persisted_texts(session.view, [fold, *nowhere]) == {}
    assert persisted_texts(session.view, [fold, hide.model_copy(update={"message": newest.id})]) == {}


def test_a_model_with_a_smaller_window_gets_no_more_images_than_it_takes() -> None:
    session = Session()
    picture = Placed(data=png(400, 400), source="person")
    for _ in range(4):
        session.user(said("look"), *[picture] * 40).reply(text("seen")).next_turn()
    session.user(said("and now?"))
    assert session.view.messages.images == 160
    assert drop_old_images(session.view, BUDGET, here(limits=ModelLimits(window=1_000_000)), {}) is None
    session.edit(drop_old_images(session.view, BUDGET, here(limits=ModelLimits(window=200_000)), {}) or [])
    shrunk(session)
    assert session.view.messages.images == 75
    assert drop_old_images(session.view, BUDGET, here(limits=ModelLimits(window=200_000)), {}) is None
