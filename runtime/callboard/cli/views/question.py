"""Requests as questions for a person: the frame at a prompt, and the full text in a listing. Pure.

A frame says who asks, what for, and why, and offers numbered choices. `read_answer` reads what was typed: the number of
a choice, or the letters y, n, a and e, which text may follow. Everything that an answer depends on is part of the
frame, with control characters spelled out.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

from callboard.cli.terminal.frame import Choice, Deadline, Frame
from callboard.cli.terminal.terminal import Block, Line, visible
from callboard.cli.views.permission import (
    about_line,
    call_body,
    call_title,
    effect_at_deadline,
    has_change,
    permission_lines,
    read_always,
)
from callboard.core.approvals.plans import COMMIT_DIGITS, AnswerDetails, options_of, submitted_of
from callboard.core.approvals.session_rules import offered_rules
from callboard.core.mcp.elicitation import Field, fields_of, question_in
from callboard.ports.environment import Answer
from callboard.types.mcp import Elicitation
from callboard.types.records import Request

_YES = frozenset({"y", "yes"})
_NO = frozenset({"n", "no"})
_EDIT = frozenset({"e", "edit", "/edit"})
_ALWAYS = frozenset({"a", "always"})
_WITH_EDITS = frozenset({"a", "acceptedits"})


def frame_of(
    request: Request, *, edits: bool = False, home: str = "", changes: Sequence[Line] = (), note: str = ""
) -> Frame:
    """Return the frame of a request.

    `edits`: it can be edited here. `home`: folder that need not be named. `changes`: from the previous revision of a
    plan. `note`: changes around it since it was asked.
    """
    noted = (Line(one_line(note), "warn"),) if note else ()
    frame = Frame(
        title=_title(request, home),
        body=(*_FRAME_BODIES.get(request.kind, _shutdown)(request), *changes, *noted),
        choices=choices_of(request, edits=edits),
        request=request.id,
        heading=_heading_line(request),
        recorded=request.kind in ("permission", "plan"),
        style="bad" if request.person_only and request.kind == "permission" else "name",
        deadline=None if request.expires_at is None else Deadline(request.expires_at, effect_at_deadline(request)),
    )
    if request.kind == "permission":
        only = (Line("only a person answers this, for this one call", "dim"),) if request.person_only else ()
        return replace(frame, about=(*about_line(request, home), *only), short=not has_change(request.payload))
    if request.kind == "plan":
        return replace(frame, about=(Line(_place(request), "dim"),))
    if (form := question_in(request)) is not None:
        return replace(frame, about=(replace(form_lines(form)[0], text=form_lines(form)[0].text.lstrip()),))
    return frame


def _title(request: Request, home: str) -> str:
    asker = one_line(request.asked_by)
    if request.kind == "permission":
        kind = one_line(str(request.payload.get("agent_type") or ""))
        role = f" ({kind})" if kind and kind not in (request.asked_by, "lead", "teammate") else ""
        return f"{asker}{role} wants to {call_title(request, home)}"
    if request.kind == "plan":
        return f"{asker} asks you to approve a plan"
    return f"{asker} asks" if request.kind == "question" else f"{asker}: {request.kind}"


def choices_of(request: Request, *, edits: bool = False) -> tuple[Choice, ...]:
    """Return the numbered choices.

    The numbers of a permission never change their meaning; those of the options of a plan come first.
    """
    if request.kind == "question":
        options = () if question_in(request) else options_of(request)
        return tuple(Choice(str(number), one_line(text), str(number)) for number, text in enumerate(options, 1))
    if request.kind == "permission":
        rules = offered_rules(request)
        always = f"yes, and always in this session: {one_line(', '.join(rules))}"
        return (
            Choice("1", "yes", "y"),
            *((Choice("2", always, "a"),) if rules else ()),
            Choice("3", "no, and say why", "n"),
            *((Choice("4", "edit it first", "e"),) if edits else ()),
        )
    options = options_of(request) if request.kind == "plan" else ()
    answers = [(f"yes: {one_line(text)}", str(number)) for number, text in enumerate(options, 1)] or [("yes", "y")]
    if request.kind == "plan":
        answers += [("yes, and accept its edits", "a"), ("no, and say what to change", "n")]
    else:
        answers += [("no", "n")]
    if edits and request.kind == "plan":
        answers.append(("edit it first", "e"))
    return tuple(Choice(str(number), text, answer) for number, (text, answer) in enumerate(answers, 1))


def question_of(request: Request, *, edits: bool = False) -> str:
    """Return the text before the cursor. `edits`: it can be edited here."""
    keys = [choice.key for choice in choices_of(request, edits=edits)]
    numbers = _ranges([int(key) for key in keys])
    if request.kind == "question":
        return f"your answer [{numbers}, or in words]> " if numbers else "your answer> "
    return f"{'approve this plan' if request.kind == 'plan' else 'allow this'}? [{numbers}, or y/n and why]> "


def _ranges(numbers: Sequence[int]) -> str:
    """Return `1-4`, or `1,3,4` if one is missing."""
    if len(numbers) > 1 and list(numbers) == list(range(numbers[0], numbers[-1] + 1)):
        return f"{numbers[0]}-{numbers[-1]}"
    return ",".join(map(str, numbers))


def typed_choice(request: Request, typed: str | None) -> Choice | None:
    """Return the choice whose number begins the typed line; None if there is none."""
    first = (typed or "").strip().partition(" ")[0].rstrip(",.:;")
    if request.kind == "question":
        return None
    return next((choice for choice in choices_of(request, edits=True) if choice.key == first), None)


def in_letters(request: Request, typed: str | None) -> str:
    """Return the typed line with the number of a choice replaced by its answer."""
    text = (typed or "").strip()
    choice = typed_choice(request, text)
    return text if choice is None else f"{choice.answer} {text.partition(' ')[2]}".strip()


def wants_edit(request: Request, typed: str | None) -> str | None:
    """Return the message for the agent that accompanies an edit of a plan or a call; None if no edit is requested."""
    first, _, reason = in_letters(request, typed).partition(" ")
    if request.kind not in ("plan", "permission") or first.rstrip(",.:;").lower() not in _EDIT:
        return None
    return reason.strip().removeprefix(request.id).strip()


def read_answer(request: Request, typed: str | None) -> Answer | None:
    """Return the meaning of the typed line for this request.

    None if it is invalid and the question must be repeated.
    """
    text = in_letters(request, typed)
    if request.kind == "question":
        return _answer_to_question(request, text)
    first, _, reason = text.partition(" ")
    reason = reason.strip()
    verdict = first.rstrip(",.:;").lower()
    if verdict in _YES:
        return Answer("approved", "person", reason)
    if verdict in _NO or not text:
        return Answer("rejected", "person", reason)
    if request.kind == "plan" and verdict in _WITH_EDITS:
        return Answer("approved", "person", reason, AnswerDetails(mode="acceptEdits"))
    if verdict in _ALWAYS and offered_rules(request):
        always, reason = read_always(reason)
        return Answer("approved", "person", reason, always=always)
    if request.kind == "plan" and verdict.isdecimal() and 1 <= int(verdict) <= len(options_of(request)):
        return Answer("approved", "person", reason, AnswerDetails(int(verdict)))
    return None


def unread_reply(request: Request) -> str:
    """Return the reply to an invalid answer."""
    always = ", or a for always (`a agent 2h`: this agent, two hours)" if offered_rules(request) else ""
    return f"answer with a number, y or n{always}; text after it goes to the agent"


def request_block(request: Request, note: str = "") -> Block:
    """Return the request in full. `note`: changes since it was asked."""
    noted = (Line(f"  {one_line(note)}", "warn"),) if note else ()
    return Block((_heading_line(request), *_BODIES[request.kind](request), *noted))


def _heading_line(request: Request) -> Line:
    return Line(f"{request.kind} {request.id}{_heading(request)}", "strong", request.asked_by)


def _heading(request: Request) -> str:
    """Return the text after the id in the first line, without repeating the body."""
    if request.kind == "plan" and request.status == "pending":
        return " waits for approval"
    if request.kind == "permission" and "tool" in request.payload:
        return f": {call_title(request)}"
    body_says_it = request.kind in ("plan", "question")
    return "" if body_says_it or not request.subject else f": {one_line(request.subject)}"


def _answer_to_question(request: Request, text: str) -> Answer:
    options = [one_line(option) for option in options_of(request)]
    if text.isdigit() and 1 <= int(text) <= len(options):
        return Answer("answered", "person", options[int(text) - 1])
    return Answer("answered", "person", text or "(the person gave no answer)")


def _plan_text(request: Request) -> tuple[Line, ...]:
    return _text(str(request.payload.get("plan", "")), "")


def _question_text(request: Request) -> tuple[Line, ...]:
    lines = _text(str(request.payload.get("question", request.subject)), "")
    form = question_in(request)
    return lines if form is None else (*lines, *(replace(line, text=line.text[2:]) for line in form_lines(form)[1:]))


def _plan(request: Request) -> tuple[Line, ...]:
    lines = (Line(f"  {_place(request)}", "dim"), *_text(str(request.payload.get("plan", "")), "  "))
    options = options_of(request)
    return lines + tuple(Line(f"  option {number}: {one_line(option)}") for number, option in enumerate(options, 1))


def _place(request: Request) -> str:
    """Return the plan's revision, its subject, its folder and its commit."""
    held = request.payload
    edited = ", edited by a person" if submitted_of(request) else ""
    parts = [f"revision {request.revision}{edited}", f"for {held['task_id']}" if held.get("task_id") else ""]
    if held.get("folder"):
        base = str(held.get("base") or "")[:COMMIT_DIGITS]
        parts.append(f"in {one_line(str(held['folder']))}{f' at commit {one_line(base)}' if base else ''}")
    return "; ".join(part for part in parts if part)


def _question(request: Request) -> tuple[Line, ...]:
    lines = _text(str(request.payload.get("question", request.subject)), "  ")
    if (form := question_in(request)) is not None:
        lines += form_lines(form)
    options = () if question_in(request) else options_of(request)
    return lines + tuple(Line(f"  {number}. {one_line(option)}") for number, option in enumerate(options, 1))


def _shutdown(request: Request) -> tuple[Line, ...]:
    return _text(str(request.payload.get("why", "")), "  ") if request.payload.get("why") else ()


_BODIES: dict[str, Callable[[Request], tuple[Line, ...]]] = {
    "plan": _plan,
    "permission": permission_lines,
    "question": _question,
    "shutdown": _shutdown,
}
_FRAME_BODIES: dict[str, Callable[[Request], tuple[Line, ...]]] = {
    "plan": _plan_text,
    "permission": call_body,
    "question": _question_text,
}


def _text(text: str, indent: str) -> tuple[Line, ...]:
    """Return all lines of the text."""
    return tuple(Line(indent + visible(line)) for line in text.split("\n"))


def one_line(text: str) -> str:
    """Return the text in one line, with control characters spelled out."""
    return visible(text).replace("\n", "\\n")


def form_lines(form: Elicitation) -> tuple[Line, ...]:
    """Return the lines with the question and the name of the server."""
    lines = [Line(f"  asked by the MCP server {one_line(form.server)}: your answer goes to it", "dim")]
    if form.url:
        lines.append(Line(f"  it asks you to visit: {one_line(form.url)}", "warn"))
    fields = fields_of(form.schema)
    if len(fields) > 1 or not form.url:
        lines += [Line(f"  {_about(field)}") for field in fields]
    return tuple(lines)


def field_prompt(field: Field) -> str:
    """Return the text before the cursor for one field of a form."""
    return f"{one_line(field.name)}{_hint(field)}> "


def form_prompt(form: Elicitation) -> str:
    """Return the text before the cursor for a form that is answered in one line."""
    if form.url:
        return "have you been there? [y, or decline]> "
    if not fields_of(form.schema):
        return "agree? [y/N]> "
    return "your answer, or decline> "


def _hint(field: Field) -> str:
    if field.options:
        return f" [{', '.join(f'{number} {one_line(option)}' for number, option in enumerate(field.options, 1))}]"
    if field.default is not None:
        return f" [{one_line(str(field.default))}]"
    return " [y/n]" if field.kind == "boolean" else ""


def _about(field: Field) -> str:
    need = "" if field.required else ", optional"
    about = f": {one_line(field.about)}" if field.about else ""
    return f"{one_line(field.name)} ({field.kind}{need}){about}"
