"""WebPage of the open requests of all sessions, the earliest deadline first. Pure: rows in, elements out.

What a request says, and the choices that answer it, come from the frame of the terminal (`cli/views/question.py`), so
both front ends show the same.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import replace

import htpy as h
from htpy import Element, Node, VoidElement
from starlette.requests import Request as WebRequest
from starlette.responses import Response
from starlette.routing import Route

from callboard.cli.terminal.frame import Frame
from callboard.cli.views.edits import approval, edited_input, text_to_edit
from callboard.cli.views.permission import effect_at_deadline, seconds_of, spell_out
from callboard.cli.views.question import choices_of, frame_of, read_answer
from callboard.cli.views.revisions import revision_lines
from callboard.core.approvals.session_rules import AlwaysAllow, offered_rules
from callboard.core.mcp.elicitation import Field, fields_of, question_in
from callboard.ports.environment import Answer
from callboard.sessions.handle import SessionHandle
from callboard.sessions.inspect.inspector import handle_of
from callboard.sessions.inspect.open_requests import OpenRequest
from callboard.types.errors import UsageError
from callboard.types.records import Request
from callboard.web.guard import EVENTS, Visit, visit_of
from callboard.web.html import Viewer, WebPage, chosen, field, form, moment, path_of, session_title, shown_lines
from callboard.web.routes import EventStream, PageServices, changed_fragments, viewer_of

PATH = "/waiting"
WAITING = "waiting"
"""Id of the list of requests."""
CHOICE = "choice"
TEXT = "text"
DIGEST = "digest"
EDITED = "edited"
FORM_FIELD = "field-"
"""Beginning of the names of the fields of an MCP server's form; its number follows."""
FOR = "for"
THIS_AGENT = "this_agent"
DURATIONS = (("", "as long as the session"), ("30m", "30 minutes"), ("2h", "2 hours"), ("1d", "1 day"))
"""Lifetimes of a rule: as `callboard approve --for` reads them, and in words."""


def waiting_screen(rows: Sequence[OpenRequest], viewer: Viewer) -> WebPage:
    """Return the screen."""
    return WebPage("Waiting for an answer", PATH, {WAITING: _listed(rows, viewer)})


def _listed(rows: Sequence[OpenRequest], viewer: Viewer) -> Element:
    for_person = sum("person" in row.request.may_answer for row in rows)
    return h.section(f"#{WAITING}", data_count=str(for_person))[
        [request_card(row, viewer) for row in rows] or h.p(".nothing")["Nothing waits for an answer."]
    ]


def request_card(row: OpenRequest, viewer: Viewer, *, alone: bool = False) -> Element:
    """Return one request with the forms that answer it. `alone`: on a page of its session, which need not be named."""
    request = row.request
    frame = frame_of(request, home=row.session.workspace, changes=revision_lines(request, row.earlier))
    name = f"request-{request.id}"
    return h.article(
        ".card.strong" if request.person_only else ".card",
        id=name,
        tabindex="-1",
        data_card=True,
        aria_labelledby=f"{name}-title",
    )[
        h.h2(id=f"{name}-title")[spell_out(frame.title)],
        h.p(".about")[
            h.span(".kind")[request.kind],
            " ",
            h.code[request.id],
            None if alone else [" in ", _session_link(row)],
            ", asked ",
            moment(request.created_at),
        ],
        _deadline(request),
        None if row.hosted else h.p(".about.warn")[_without_host(request)],
        shown_lines(frame.body) if frame.body else None,
        [h.p(class_=f"about {line.style}")[spell_out(line.text)] for line in frame.about if line.text.strip()],
        _answers(row, frame, viewer),
    ]


def _without_host(request: Request) -> str:
    later = ": the agent reads your answer later" if "person" in request.may_answer else ""
    return f"No process hosts its session{later}."


def _session_link(row: OpenRequest) -> Element:
    session = row.session
    return h.a(href=path_of("sessions", session.id))[session_title(session.id, session.prompt)]


def _deadline(request: Request) -> Node:
    if request.expires_at is None:
        return h.p(".about")["It waits without a deadline."]
    return h.p(".about")[moment(request.expires_at, counts=True), f" until {effect_at_deadline(request)}"]


def _answers(row: OpenRequest, frame: Frame, viewer: Viewer) -> Node:
    request = row.request
    if "person" not in request.may_answer:
        return h.p(".about")[f"It waits for {' or '.join(request.may_answer)}. You cannot answer it."]
    action = path_of("sessions", row.session.id, "requests", request.id)
    if request.kind == "question":
        return _answers_to_question(request, frame, action, viewer)
    accept = [choice for choice in frame.choices if choice.answer not in ("n", "a", "e")]
    edits = [choice for choice in frame.choices if choice.answer == "a" and request.kind == "plan"]
    label = "What to change" if request.kind == "plan" else "Message to the agent, or the reason to reject"
    return [
        form(
            viewer,
            action,
            _digest(request),
            h.label[
                h.span[f"{label} {'(needed to reject)' if request.kind == 'plan' else '(optional)'}"],
                h.textarea(name=TEXT, rows="2"),
            ],
            h.div(".buttons")[
                [_button(choice.answer, _accepting(choice.text), primary=True) for choice in accept],
                [_button(choice.answer, "Approve, and accept its edits") for choice in edits],
                _button("n", "Reject", danger=True),
            ],
            label="Answer",
        ),
        _edit(request, action, viewer) if request.kind in ("plan", "permission") else None,
        _always(request, action, viewer) if offered_rules(request) else None,
    ]


def _edit(request: Request, action: str, viewer: Viewer) -> Element:
    """Return the form that approves a plan or a call with another text."""
    text, suffix = text_to_edit(request)
    names = {".md": "The plan", ".sh": "The command", ".json": "The whole input, as JSON", ".txt": "The new text"}
    if spell_out(text) != text:
        about = "It has characters that a browser would not show: edit it in the terminal."
        return h.details[h.summary["Edit it first …"], h.p(".about.warn")[about]]
    return h.details[
        h.summary["Edit it first …"],
        form(
            viewer,
            action,
            _digest(request),
            field(names[suffix], h.textarea(".edited", name=EDITED, rows="6", required=True)[f"\n{text}"]),
            field("Message to the agent", h.input(name=TEXT), "(optional)"),
            h.div(".buttons")[_button("e", "Approve as edited", primary=True)],
            label="Edit",
        ),
    ]


def _accepting(text: str) -> str:
    """Return the label of a button that approves: with the text of the option, if the plan has several."""
    _, _, option = text.partition(": ")
    return f"Approve: {spell_out(option)}" if option else "Approve"


def _always(request: Request, action: str, viewer: Viewer) -> Element:
    """Return what "always" would allow, and its form."""
    return h.details[
        h.summary["Always allow ", h.code[spell_out(", ".join(offered_rules(request)))], " …"],
        h.p["This allows every call in this session that matches:"],
        h.ul[[h.li[h.code[spell_out(rule)]] for rule in offered_rules(request)]],
        form(
            viewer,
            action,
            _digest(request),
            h.label[
                h.span["How long"],
                h.select(name=FOR)[[h.option(value=value)[text] for value, text in DURATIONS]],
            ],
            h.label(".check")[
                h.input(type="checkbox", name=THIS_AGENT, value="1"), f" only for {spell_out(request.asked_by)}"
            ],
            h.div(".buttons")[_button("a", "Approve, and always allow this")],
            label="Always allow",
        ),
    ]


def _answers_to_question(request: Request, frame: Frame, action: str, viewer: Viewer) -> Node:
    digest = _digest(request)
    elicitation = question_in(request)
    choices = [
        form(
            viewer,
            action,
            digest,
            h.div(".buttons")[[_button(choice.answer, spell_out(choice.text)) for choice in frame.choices]],
            label="Options",
        )
        if frame.choices
        else None
    ]
    decline = [_button("decline", "Decline", danger=True)] if elicitation is not None else []
    fields = fields_of(elicitation.schema) if elicitation is not None and not elicitation.url else ()
    return [
        choices,
        form(
            viewer,
            action,
            digest,
            [_form_field(number, each) for number, each in enumerate(fields)]
            if len(fields) > 1
            else h.label[h.span["Your answer"], h.textarea(name=TEXT, rows="2")],
            h.div(".buttons")[_button("", "Send the answer", primary=True), decline],
            label="Answer in words",
        ),
    ]


def _form_field(number: int, each: Field) -> Element:
    """Return the control for one field of the form of an MCP server."""
    name = f"{FORM_FIELD}{number}"
    default = "" if each.default is None else spell_out(str(each.default))
    choices = ("yes", "no") if each.kind == "boolean" else each.options
    hint = "" if each.required else "(optional)"
    if choices and each.kind != "array":
        control: Node = chosen(name, [(choice, choice) for choice in ("", *map(spell_out, choices))], default)
    else:
        control = h.input(name=name, value=default)
    if each.kind == "array":
        hint = f"some of {', '.join(each.options)}, separated by commas {hint}".strip()
    return field(spell_out(each.about or each.name), control, spell_out(hint))


def _digest(request: Request) -> VoidElement:
    """Return the hidden field that binds an answer to the content that the page shows."""
    return h.input(type="hidden", name=DIGEST, value=request.digest)


def _button(answer: str, text: str, *, primary: bool = False, danger: bool = False) -> Element:
    kind = "primary" if primary else "danger" if danger else None
    return h.button(type="submit", name=CHOICE, value=answer, class_=kind)[text]


# The answers


def waiting_routes(services: PageServices) -> list[Route]:
    """Return the routes of the screen, and the one that takes answers."""

    async def page(request: WebRequest) -> WebPage:
        return waiting_screen(await services.requests.earliest_first(), viewer_of(request))

    async def show(request: WebRequest) -> Response:
        return services.page(request, await page(request))

    async def follow(request: WebRequest) -> EventStream:
        return EventStream(lambda: changed_fragments(services.news, lambda: page(request)))

    async def answer(request: WebRequest) -> Response:
        handle = await handle_of(services.store, request.path_params["session"])
        name = request.path_params["request"]
        row = next((row for row in handle.requests(pending_only=False) if row.id == name), None)
        if row is None:
            raise UsageError(f"there is no request {name} in session {handle.id}")
        return services.done(request, await _answer(handle, row, visit_of(request)), PATH)

    return [
        Route(PATH, show),
        Route(f"{PATH}{EVENTS}", follow),
        Route("/sessions/{session}/requests/{request}", answer, methods=["POST"]),
    ]


async def _answer(handle: SessionHandle, row: Request, visit: Visit) -> str:
    """Answer as the form says, and return the result in a line. Raises `UsageError` if the answer is not accepted."""
    form_fields = visit.form
    if form_fields.get(DIGEST, "") != row.digest:
        raise UsageError(f"the content of {row.id} has changed since the page showed it: read it again")
    answer = answer_in(row, form_fields)
    details = replace(answer.word, seen=row.digest, user=visit.browser.user if visit.browser else "")
    refusal = await handle.answer(
        row.id, answer.status, answer.reason, word=details, always=answer.always, tool_input=answer.input
    )
    if refusal is not None:
        raise UsageError(refusal)
    note = await handle.commit_change(row) if answer.status == "approved" else ""
    edited = " as edited" if answer.word.plan or answer.input is not None else ""
    return f"{row.id} {answer.status}{edited}{f'. Note: {note}' if note else ''}"


def answer_in(row: Request, form_fields: Mapping[str, str]) -> Answer:
    """Return the answer that a form means, as typed at a prompt. Raises `UsageError` for one that means none."""
    choice = form_fields.get(CHOICE, "")
    text = form_fields.get(TEXT, "").strip()
    if choice == "e" and row.kind in ("plan", "permission"):
        return _edited(row, form_fields.get(EDITED, ""), text)
    if row.kind == "question":
        text = text or _form_text(row, form_fields)
        if not choice and not text:
            raise UsageError("the answer is empty: write it, or choose an option")
        typed = choice or text
    elif choice not in {offer.answer for offer in choices_of(row)}:
        raise UsageError(f"{row.id}: the page sent no answer that it offers: reload it")
    elif choice == "n" and row.kind == "plan" and not text:
        raise UsageError("say what to change: the agent revises its plan by that")
    elif choice == "a" and row.kind == "permission":
        seconds = seconds_of(form_fields.get(FOR, "")) if form_fields.get(FOR) else None
        always = AlwaysAllow(seconds, agent_only=bool(form_fields.get(THIS_AGENT)))
        return Answer("approved", "person", text, always=always)
    else:
        typed = f"{choice} {text}"
    answer = read_answer(row, typed)
    assert answer is not None, "its choice is one of those that the page offers"
    return answer


def _edited(row: Request, typed: str, reason: str) -> Answer:
    """Return the answer that approves an edited text. Raises `UsageError` if it is not a valid edit."""
    text = typed.replace("\r\n", "\n")
    before, _ = text_to_edit(row)
    if text.rstrip("\n") == before.rstrip("\n"):
        raise UsageError("the text is unchanged: nothing is approved")
    if row.kind == "plan":
        return Answer("approved", "person", reason, approval(row, text))
    return Answer("approved", "person", reason, input=edited_input(row, text))


def _form_text(row: Request, form_fields: Mapping[str, str]) -> str:
    """Return the filled fields of the form of an MCP server as JSON; empty if none is filled."""
    elicitation = question_in(row)
    fields = fields_of(elicitation.schema) if elicitation is not None else ()
    values = {each.name: form_fields.get(f"{FORM_FIELD}{number}", "").strip() for number, each in enumerate(fields)}
    filled = {name: value for name, value in values.items() if value}
    return json.dumps(filled) if filled else ""
