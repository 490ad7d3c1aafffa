"""Plans at a prompt: asked one by one and counted, withdrawn with the reason, answered with a comment."""

from __future__ import annotations

import io
from collections.abc import Sequence

import anyio
import pytest
from tests.cli.views.plan_rows import answered_request, plan, text_of

from callboard.cli.repl.prompt_line import wrap_prompt
from callboard.cli.repl.questions import QuestionInterrupted, Questions
from callboard.cli.slash.context import SlashContext
from callboard.cli.slash.registry import perform
from callboard.cli.terminal.approver import PersonApprover, TakenBack
from callboard.cli.terminal.frame import Frame
from callboard.cli.terminal.terminal import Block, Terminal
from callboard.cli.views.question import choices_of, question_of, read_answer, request_block, wants_edit
from callboard.core.approvals.plans import AnswerDetails
from callboard.core.approvals.requests import open_request, withdraw
from callboard.core.approvals.session_rules import AlwaysAllow
from callboard.ports.environment import Answer
from callboard.types.records import Json, Request


@pytest.mark.parametrize(
    ("typed", "read"),
    [
        ("2", Answer("approved", "person", "", AnswerDetails(2))),
        ("1, but test it", Answer("approved", "person", "but test it", AnswerDetails(1))),
        ("y", Answer("approved", "person")),
        ("3", Answer("approved", "person", "", AnswerDetails(mode="acceptEdits"))),
        ("4 smaller steps", Answer("rejected", "person", "smaller steps")),
        ("5", None),
        ("0", None),
        ("-1", None),
    ],
)
def test_an_option_is_chosen_by_its_number(typed: str, read: Answer | None) -> None:
    assert read_answer(plan("x", "by hand", "by tool"), typed) == read
    assert read_answer(plan("x"), "1") == Answer("approved", "person"), "the plan has no options"


def test_the_question_says_what_may_be_typed() -> None:
    assert question_of(plan("x", "a", "b"), edits=True) == "approve this plan? [1-5, or y/n and why]> "
    assert [f"{choice.key} {choice.text}" for choice in choices_of(plan("x", "a", "b"), edits=True)] == [
        "1 yes: a",
        "2 yes: b",
        "3 yes, and accept its edits",
        "4 no, and say what to change",
        "5 edit it first",
    ]
    assert question_of(plan("x")) == "approve this plan? [1-3, or y/n and why]> "


def test_what_may_be_typed_breaks_between_words_where_the_line_is_narrow() -> None:
    words = question_of(plan("x", "a", "b"), edits=True) + "and so on, so that the line is too long> "
    lines = wrap_prompt(words, 40).split("\n")
    assert all(len(line) <= 40 for line in lines)
    assert " ".join(lines) == words, "line breaks occur only at spaces"
    assert wrap_prompt("> ", 80) == "> "


def test_a_question_of_an_agent_is_shown_once() -> None:
    payload: Json = {"question": "Which database?"}
    made = Request(id="req_q", kind="question", asked_by="alice", subject="Which database?", payload=payload)
    shown = [line.text for line in request_block(made).lines]
    assert shown[0] == "question req_q"
    assert sum("Which database?" in line for line in shown) == 1


def test_a_plan_and_a_permission_say_each_thing_once() -> None:
    text = "\n".join(line.text for line in request_block(plan("Mend it")).lines)
    assert text.startswith("plan req_a1 waits for approval\n")
    assert text.count("Mend it") == 1
    given: Json = {"tool": "bash", "input": {"command": "rm one"}, "rule": "D", "why": "`rm` deletes"}
    subject = "alice wants to run bash: `rm` deletes"
    made = Request(id="req_p", kind="permission", asked_by="alice", subject=subject, payload=given)
    text = "\n".join(line.text for line in request_block(made).lines)
    assert [text.count(part) for part in ("alice", "tool: bash", "`rm` deletes")] == [1, 1, 1]
    unread = Request(id="req_p", kind="permission", asked_by="alice", subject=subject)
    assert subject in request_block(unread).lines[0].text, "an older row may contain nothing else"


@pytest.mark.parametrize(
    ("typed", "why"), [("e", ""), ("Edit, mind the roof", "mind the roof"), ("/edit req_a1 so", "so"), ("else", None)]
)
def test_an_edit_is_asked_for_at_the_question_of_a_plan_only(typed: str, why: str | None) -> None:
    assert wants_edit(plan(), typed) == why
    assert wants_edit(Request(id="req_q", kind="question", asked_by="alice"), typed) is None
    assert "edit it first" in [choice.text for choice in choices_of(plan(), edits=True)]
    assert wants_edit(plan(), "4") == ""


class Rows:
    """A session's rows, as an approver reads them."""

    def __init__(self, *rows: Request, note: str = "") -> None:
        self.rows, self.note = list(rows), note

    beside_host = False

    def requests(self, *, pending_only: bool = True) -> Sequence[Request]:
        return self.rows

    async def commit_change(self, request: Request) -> str:
        return self.note


class AskingTerminal:
    """A terminal that answers with the text that the test types."""

    def __init__(self) -> None:
        self.shown, self.words, self.gone = list[str](), list[str](), list[str]()
        self.typed, self.answers = anyio.create_memory_object_stream[str](10)

    async def ask(self, shown: Frame, words: str, taken_back: TakenBack) -> str | None:
        self.shown.append(text_of(Block(shown.lines)))
        self.words.append(words)
        try:
            return await self.answers.receive()
        except anyio.get_cancelled_exc_class():
            self.gone.append(taken_back())
            raise

    def close(self) -> None:
        self.typed.close()
        self.answers.close()


@pytest.fixture(params=["asyncio", "trio"])
def anyio_backend(request: pytest.FixtureRequest) -> str:
    return request.param


@pytest.mark.anyio
async def test_plans_wait_in_line_are_counted_and_never_interleave() -> None:
    asking, answers = AskingTerminal(), dict[str, Answer | None]()
    approver = PersonApprover(asking.ask)

    async def answer_one(request: Request) -> None:
        answers[request.id] = await approver.answer(request)

    async with anyio.create_task_group() as group:
        for number, name in enumerate(("alice", "bob", "carol")):
            group.start_soon(answer_one, plan(f"of {name}", id=f"req_{number}", asked_by=name))
            await anyio.wait_all_tasks_blocked()
        assert len(asking.words) == 1, "one question at a time"
        for words in ("y", "n because", "y"):
            await asking.typed.send(words)
            await anyio.wait_all_tasks_blocked()
    assert "of alice" in asking.shown[0]
    assert "1 more waits: plan req_2 (carol)" in asking.shown[1]
    assert "more wait" not in asking.shown[2]
    assert [one and one.status for one in answers.values()] == ["approved", "rejected", "approved"]
    asking.close()


@pytest.mark.anyio
async def test_what_comes_while_a_question_is_on_the_screen_is_told_and_counted() -> None:
    asking, err = AskingTerminal(), io.StringIO()
    terminal = Terminal(io.StringIO(), err, color="never")
    approver = PersonApprover(asking.ask, terminal)
    approver.attach(Rows())
    async with anyio.create_task_group() as group:
        for number, name in enumerate(("alice", "bob", "carol")):
            group.start_soon(approver.answer, plan(f"of {name}", id=f"req_{number}", asked_by=name))
            await anyio.wait_all_tasks_blocked()
        for words in ("y", "y", "y"):
            await asking.typed.send(words)
            await anyio.wait_all_tasks_blocked()
    terminal.close()
    told = [line for line in err.getvalue().splitlines() if "behind" in line]
    assert told == [
        "plan req_1 (bob) waits behind req_0: 1 more waits",
        "plan req_2 (carol) waits behind req_0: 2 more wait",
    ]
    assert len(asking.shown) == 3
    asking.close()


@pytest.mark.anyio
async def test_a_revised_plan_is_asked_for_whole_with_what_differs_from_the_one_before() -> None:
    steps = [f"{number}. step {'x' * 300}" for number in range(40)]
    first = plan("\n".join(steps), id="req_a1", revision=1)
    second = plan("\n".join([*steps[:20], "20. test it first", *steps[21:]]), "by hand", id="req_a2", revision=2)
    asking = AskingTerminal()
    approver = PersonApprover(asking.ask, now=lambda: second.created_at)
    approver.attach(Rows(answered_request(first, "rejected", "test it first"), second))
    await asking.typed.send("y")
    await approver.answer(second)
    shown = asking.shown[0].splitlines()
    assert [line[2:] for line in shown if line[2:] in steps] == [*steps[:20], *steps[21:]], "the whole text, in order"
    title = shown.index("  changes since revision 1 (req_a1, rejected by person: test it first)")
    assert f"    -{steps[20]}" in shown[title:]
    assert "    +20. test it first" in shown[title:]
    assert "    +option 1: by hand" in shown[title:]
    assert "until" not in asking.shown[0], "the deadline is far"
    asking.close()


def withdrawn(request: Request) -> Request:
    row = withdraw(request, "alice", "another plan", request.created_at)
    assert isinstance(row, Request)
    return row


PENDING = plan()


@pytest.mark.anyio
@pytest.mark.parametrize(
    ("becomes", "words"),
    [
        (answered_request(PENDING, "approved"), "answered elsewhere: req_a1 approved by person"),
        (withdrawn(PENDING), "no longer needed: req_a1 withdrawn"),
        (PENDING.model_copy(update={"digest": "d"}), "its content has changed"),
        (PENDING, "no longer asked"),
    ],
)
async def test_a_question_that_is_taken_back_says_why(becomes: Request, words: str) -> None:
    asking = AskingTerminal()
    approver = PersonApprover(asking.ask)
    approver.attach(Rows(becomes))
    async with anyio.create_task_group() as group:
        group.start_soon(approver.answer, PENDING)
        await anyio.wait_all_tasks_blocked()
        group.cancel_scope.cancel()
    assert asking.gone == [words]
    asking.close()


@pytest.mark.anyio
async def test_an_answer_that_came_too_late_is_told_at_the_prompt() -> None:
    asking, err = AskingTerminal(), io.StringIO()
    terminal = Terminal(io.StringIO(), err, color="never")
    approver = PersonApprover(asking.ask, terminal)
    approver.attach(Rows(note="/work/roof has moved"))
    await asking.typed.send("y")
    given = await approver.answer(plan())
    assert given is not None
    assert given == Answer("approved", "person")
    given.refused("req_a1 is rejected by lead already")
    terminal.close()
    assert "your answer did not count: req_a1 is rejected by lead already" in err.getvalue()
    assert "/work/roof has moved" in asking.shown[0], "the approver learns what changed meanwhile"
    asking.close()


@pytest.mark.anyio
@pytest.mark.parametrize(
    ("typed", "reason", "questions"),
    [(("n", "smaller steps"), "smaller steps", 2), (("n too big",), "too big", 1), (("",), "", 1), (("no", ""), "", 2)],
)
async def test_a_rejection_is_asked_for_its_feedback(typed: Sequence[str], reason: str, questions: int) -> None:
    asking = AskingTerminal()
    for words in typed:
        await asking.typed.send(words)
    assert await PersonApprover(asking.ask).answer(plan()) == Answer("rejected", "person", reason)
    assert len(asking.words) == questions
    asking.close()


@pytest.mark.anyio
async def test_what_a_person_made_of_a_plan_is_the_answer_and_no_edit_is_none() -> None:
    asking, saved = AskingTerminal(), ["# Mend it\n1. read\n", "  \n", "# Mend it\n1. read twice\n"]

    async def edit(request: Request) -> str:
        return saved.pop(0)

    for words in ("e", "e", "e so it is safe"):
        await asking.typed.send(words)
    given = await PersonApprover(asking.ask, edit=edit).answer(plan())
    assert given == Answer(
        "approved", "person", "so it is safe", AnswerDetails(plan="# Mend it\n1. read twice", seen=plan().digest)
    )
    assert "the plan is unchanged" in asking.shown[1]
    assert "the text is empty" in asking.shown[2]
    asking.close()


class Session(Rows):
    """The part of a session that the slash commands use."""

    def __init__(self, *rows: Request) -> None:
        super().__init__(*rows)
        self.given: list[tuple[object, ...]] = []

    async def answer(
        self,
        request_id: str,
        status: str,
        reason: str = "",
        word: AnswerDetails = AnswerDetails(),  # noqa: B008 - frozen
        always: AlwaysAllow | None = None,
    ) -> str | None:
        self.given.append((request_id, status, reason, word.plan or word.option))
        assert always is None, "a plan is approved once"
        return None


async def edit(request: Request) -> str:
    """Return a person's edit of any plan."""
    return "# Mend it\n1. read twice\n"


@pytest.mark.anyio
@pytest.mark.parametrize(
    ("line", "given", "words"),
    [
        ("/approve req_a1 option 2 go on", [("req_a1", "approved", "go on", 2)], "req_a1 approved"),
        ("/approve req_a1 optionally", [("req_a1", "approved", "optionally", 0)], "req_a1 approved"),
        ("/reject req_a1", [], "say what to change"),
        ("/reject req_a1 smaller", [("req_a1", "rejected", "smaller", 0)], "req_a1 rejected"),
        ("/show req_a1", [], "option 2: b"),
        ("/show", [], "which one?"),
        (
            "/edit req_a1 mind",
            [("req_a1", "approved", "mind", "# Mend it\n1. read twice")],
            "req_a1 approved as edited",
        ),
        ("/edit", [], "which one?"),
    ],
)
async def test_the_slash_commands_do_what_the_command_line_does(
    line: str, given: list[tuple[object, ...]], words: str
) -> None:
    session, err = Session(plan("x", "a", "b")), io.StringIO()
    terminal = Terminal(io.StringIO(), err, color="never")
    await perform(line, SlashContext(session, edit), terminal)  # only this part of a session is used
    terminal.close()
    assert session.given == given
    assert words in err.getvalue()


def test_the_block_of_a_plan_names_its_options() -> None:
    assert "option 1: a" in text_of(request_block(plan("x", "a")))


class AttachedRows(Rows):
    """The rows of a session that another process hosts."""

    beside_host = True


@pytest.mark.anyio
@pytest.mark.parametrize("kind", ["plan", "permission", "question"])
async def test_the_end_of_input_beside_a_host_answers_nothing(kind: str) -> None:
    async def ended(shown: Frame, words: str, taken_back: object) -> None:
        return None

    payload: Json = {"plan": "x", "tool": "bash", "input": {}}
    request = open_request(
        Request.model_validate({"id": "req_1", "kind": kind, "asked_by": "alice", "payload": payload})
    )
    approver = PersonApprover(ended)
    approver.attach(AttachedRows())
    assert await approver.answer(request) is None
    approver.attach(Rows())
    assert await approver.answer(request) is not None


@pytest.mark.anyio
@pytest.mark.parametrize("key", [EOFError, KeyboardInterrupt])
async def test_leaving_at_a_question_answers_nothing_and_it_is_put_again(key: type[BaseException]) -> None:
    typed = [key(), "y"]

    async def line(words: str, leave: object, drawn: object) -> str:
        match typed.pop(0):
            case str() as text:
                return text
            case raised:
                raise raised

    questions = Questions(Terminal(io.StringIO(), io.StringIO()), line, lambda: None, None)
    answers: list[str | None] = []

    async def ask() -> None:
        answers.append(await questions.ask(Block(()), "allow? ", lambda: "gone"))

    async with anyio.create_task_group() as group:
        group.start_soon(ask)
        await anyio.wait_all_tasks_blocked()
        with pytest.raises(QuestionInterrupted if key is KeyboardInterrupt else EOFError):
            await questions.serve()
        await anyio.wait_all_tasks_blocked()
        assert (answers, len(questions)) == ([], 1)
        await questions.serve()
    assert answers == ["y"]
