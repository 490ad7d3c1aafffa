"""Links that answer one request once, each bound to the content that the request had when the link was made.

The secret of a link is in its address and nowhere else: the key of its row is a digest of the secret. The first answer
to the request ends all of its links, whoever gives it, because a decided request accepts no other answer.
"""

from __future__ import annotations

import secrets
import time

from callboard.core.approvals.requests import answerers, digest_of, is_overdue
from callboard.core.decoding import read_value
from callboard.core.keys import LINKS, link_key, request_key, short_id
from callboard.ports.store import Delete, Put, Row, Store
from callboard.ports.store_reading import row_of, rows_of
from callboard.sessions.person_actions import write_links_as_person
from callboard.sessions.running_page import LINK_PATH
from callboard.types.errors import UsageError
from callboard.types.lazy_dataclass import dataclass
from callboard.types.records import AnswerLink, Request

_SECRET_BYTES = 32


@dataclass(frozen=True, slots=True)
class MadeLink:
    """A new link, and the only place of its secret."""

    row: AnswerLink
    secret: str

    def address(self, base: str) -> str:
        """Return the address for a browser. `base`: address of the page."""
        return f"{base.rstrip('/')}{LINK_PATH}#{self.secret}"


@dataclass(frozen=True, slots=True)
class LinkedRequest:
    """A valid link, and its request."""

    link: AnswerLink
    request: Request


async def make_link(store: Store, session: str, request: Request, *, seconds: float, user: str = "") -> MadeLink:
    """Make a link to a request, valid for a time.

    Raises `UsageError` for a request that does not wait for a person, and inside a tool's process.
    """
    now = time.time()
    if reason := refusal_of(request, now):
        raise UsageError(reason)
    secret = secrets.token_urlsafe(_SECRET_BYTES)
    link = AnswerLink(
        id=short_id("link", link_key(secret)),
        session=session,
        request=request.id,
        digest=request.digest,
        created_at=now,
        expires_at=now + seconds,
        user=user,
    )
    old = [Delete(row.key) for row, earlier in await _links(store) if _is_over(earlier, now)]
    await write_links_as_person(store, Put(link_key(secret), link.encode(), expected=0), *old)
    return MadeLink(link, secret)


async def find_link(store: Store, secret: str) -> LinkedRequest | None:
    """Return the link with this secret, and its request; None if there is none.

    Raises `UsageError` with the reason if the link is not valid any more.
    """
    row = await row_of(store, link_key(secret))
    if row is None or row.value is None:
        return None
    link = read_value(AnswerLink, row.value, row.key)
    stored = await row_of(store, request_key(link.session, link.request))
    request = None if stored is None or stored.value is None else read_value(Request, stored.value, stored.key)
    if reason := void_reason(link, request, time.time()):
        raise UsageError(reason)
    assert request is not None, "a link without its request is void"
    return LinkedRequest(link, request)


async def revoke_links(store: Store, session: str, request_id: str) -> int:
    """Revoke the valid links to a request, and return their number. Raises `UsageError` inside a tool's process."""
    now = time.time()
    changes = [
        Put(row.key, link.model_copy(update={"revoked_at": now}).encode(), expected=row.revision)
        for row, link in await _links(store)
        if (link.session, link.request) == (session, request_id) and not _is_over(link, now)
    ]
    await write_links_as_person(store, *changes)
    return len(changes)


async def _links(store: Store) -> list[tuple[Row, AnswerLink]]:
    return [(row, read_value(AnswerLink, row.value or b"", row.key)) for row in await rows_of(store, LINKS)]


def refusal_of(request: Request, now: float) -> str:
    """Return the reason why a request cannot have a link; empty if it can."""
    if request.status != "pending":
        by = f" by {request.answered_by}" if request.answered_by else ""
        return f"{request.id} is {request.status}{by} already"
    if is_overdue(request, now):
        return f"{request.id}: its deadline has passed"
    if "person" not in answerers(request):
        return f"{request.id} waits for {' or '.join(answerers(request)) or 'nobody'}, not for a person"
    return ""


def void_reason(link: AnswerLink, request: Request | None, now: float) -> str:
    """Return the reason why a link opens nothing; empty if it is valid. `request`: its current row."""
    if request is None:
        return "the request of this link does not exist any more"
    if reason := refusal_of(request, now):
        return reason
    if link.revoked_at is not None:
        return f"this link to {request.id} was revoked"
    if now >= link.expires_at:
        return f"this link to {request.id} has expired"
    if request.digest != link.digest or digest_of(request.kind, request.payload) != link.digest:
        return f"the content of {request.id} has changed since this link was made"
    return ""


def _is_over(link: AnswerLink, now: float) -> bool:
    """Return True if a link is void by its own row, whatever its request is."""
    return link.revoked_at is not None or now >= link.expires_at
