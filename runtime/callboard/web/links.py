"""Screens of answer links: they show one request, ask once more, and take its answer without a sign-in.

The secret of a link follows `#` in its address, so that opening the address sends it to nobody: a chat program that
fetches the address for a preview gets an empty page. The page sends the secret in a form, and the answer in another.
"""

from __future__ import annotations

from dataclasses import replace

import htpy as h
from htpy import Element, Node
from starlette.requests import Request as WebRequest
from starlette.responses import Response
from starlette.routing import Route

from callboard.cli.views.permission import spell_out
from callboard.cli.views.question import frame_of
from callboard.cli.views.revisions import revision_lines
from callboard.sessions.answer_links import LinkedRequest, find_link
from callboard.sessions.handle import SessionHandle
from callboard.sessions.inspect.inspector import handle_of
from callboard.types.errors import UsageError
from callboard.web.access import TooManyTries
from callboard.web.guard import CODE, LINK, LINK_ANSWER, too_many, visit_of
from callboard.web.html import bare_document, moment, shown_lines
from callboard.web.routes import PageServices, html_response
from callboard.web.waiting import CHOICE, DIGEST, TEXT, answer_in

SECRET = "secret"  # noqa: S105 - the name of a field
_ALWAYS = "a"
"""Choice that makes a rule. A link answers one request, and makes none."""


def open_document() -> Element:
    """Return the page that a link opens. It shows nothing of a request."""
    return bare_document(
        "Answer link",
        h.p["An answer link shows one request, and takes one answer."],
        h.form("#open-link", method="post", action=LINK, autocomplete="off")[
            h.label(for_=SECRET)["End of the link, after #"],
            h.input(f"#{SECRET}", name=SECRET, type="password", required=True, autocomplete="off"),
            h.button(".primary", type="submit")["Show the request"],
        ],
    )


def _said_document(title: str, text: str) -> Element:
    return bare_document(title, h.p[spell_out(text)], h.p["You can close this page."])


def request_document(linked: LinkedRequest, handle: SessionHandle, secret: str, *, needs_code: bool) -> Element:
    """Return the request of a link with the form that answers it."""
    request = linked.request
    earlier = handle.requests(pending_only=False)
    frame = frame_of(request, home=handle.row.workspace, changes=revision_lines(request, earlier))
    choices = [
        (choice.answer, choice.text)
        for choice in frame.choices
        if choice.answer not in ("e", "n") and not (choice.answer == _ALWAYS and request.kind == "permission")
    ]
    question = request.kind == "question"
    return bare_document(
        frame.title,
        h.p(".about")[h.span(".kind")[request.kind], " ", h.code[request.id], ", asked ", moment(request.created_at)],
        h.p(".about")["The link is valid until ", moment(linked.link.expires_at), ", for one answer."],
        shown_lines(frame.body) if frame.body else None,
        [h.p(class_=f"about {line.style}")[spell_out(line.text)] for line in frame.about if line.text.strip()],
        h.form(method="post", action=LINK_ANSWER, autocomplete="off", aria_label="Answer")[
            h.label[
                h.span["Your answer" if question else "Message to the agent, or the reason to reject"],
                h.textarea(name=TEXT, rows="2"),
            ],
            _code(needs_code=needs_code),
            h.input(type="hidden", name=SECRET, value=secret),
            h.input(type="hidden", name=DIGEST, value=request.digest),
            h.div(".buttons")[
                [_button(answer, text if question else text.capitalize()) for answer, text in choices],
                _button("", "Send the answer") if question else _button("n", "Reject", danger=True),
            ],
        ],
    )


def _code(*, needs_code: bool) -> Node:
    if not needs_code:
        return None
    return h.label(".code")[
        "Code from the terminal of callboard web", h.input(name=CODE, required=True, autocomplete="off", size="12")
    ]


def _button(answer: str, text: str, *, danger: bool = False) -> Element:
    return h.button(type="submit", name=CHOICE, value=answer, class_="danger" if danger else "primary")[spell_out(text)]


class _LinkRoutes:
    """Handlers of requests."""

    def __init__(self, services: PageServices) -> None:
        self._services = services

    async def entry(self, request: WebRequest) -> Response:
        """Show the page that sends the secret on."""
        return html_response(open_document())

    async def show(self, request: WebRequest) -> Response:
        """Show the request of a link. Changes nothing."""
        secret = visit_of(request).form.get(SECRET, "").strip()
        try:
            linked = await self._found(request, secret)
        except TooManyTries as many:
            return too_many(many)
        except UsageError as void:
            return _refused(void)
        handle = await handle_of(self._services.store, linked.link.session)
        return html_response(request_document(linked, handle, secret, needs_code=visit_of(request).needs_code))

    async def answer(self, request: WebRequest) -> Response:
        """Answer the request of a link."""
        form = visit_of(request).form
        try:
            linked = await self._found(request, form.get(SECRET, "").strip())
            handle = await handle_of(self._services.store, linked.link.session)
            status = await _answer(linked, handle, dict(form))
        except TooManyTries as many:
            return too_many(many)
        except UsageError as void:
            return _refused(void)
        return html_response(_said_document("Thank you", f"{linked.request.id} {status}"))

    async def _found(self, request: WebRequest, secret: str) -> LinkedRequest:
        """Return the request of a link. Raises `TooManyTries`, and `UsageError` for a link that is not valid."""
        tries = self._services.access.tries_of(visit_of(request).client)
        tries.check()
        linked = await find_link(self._services.store, secret)
        if linked is None:
            tries.count_wrong()
            raise UsageError("there is no such answer link: ask for a new one")
        return linked


def _refused(reason: UsageError) -> Response:
    return html_response(_said_document("Not done", str(reason)), 403)


async def _answer(linked: LinkedRequest, handle: SessionHandle, form: dict[str, str]) -> str:
    """Answer as the form says; return the new status. Raises `UsageError` if the answer is not accepted."""
    request = linked.request
    if form.get(DIGEST) != request.digest:
        raise UsageError(f"the content of {request.id} has changed since the page showed it: open the link again")
    if form.get(CHOICE) == _ALWAYS and request.kind == "permission":
        raise UsageError("an answer link allows one call, and makes no rule")
    answer = answer_in(request, form)
    details = replace(answer.word, seen=request.digest, user=linked.link.user or linked.link.id)
    refusal = await handle.answer(request.id, answer.status, answer.reason, word=details)
    if refusal is not None:
        raise UsageError(refusal)
    return answer.status


def link_routes(services: PageServices) -> list[Route]:
    """Return the routes of answer links. They need no cookie."""
    routes = _LinkRoutes(services)
    return [
        Route(LINK, routes.entry),
        Route(LINK, routes.show, methods=["POST"]),
        Route(LINK_ANSWER, routes.answer, methods=["POST"]),
    ]
