"""One connection to one server, on the SDK: the handshake, requests as plain JSON, and what the server asks of us.

Requests go out and answers come in as plain JSON, not as the SDK's models: a server's odd list or odd result costs what
is odd of it, not all of it. Sampling is refused, since it would spend the person's money on a stranger's word.
"""

from __future__ import annotations

import re
from collections.abc import AsyncGenerator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol, cast

import anyio
import mcp_types as types
from mcp.client.session import ClientRequestContext, ClientSession
from mcp.shared.exceptions import MCPError
from mcp.shared.jsonrpc_dispatcher import JSONRPCDispatcher
from pydantic import ValidationError

from callboard import __version__
from callboard.adapters.mcp.transports import Seen, Streams
from callboard.core.mcp.texts import cut, one_line
from callboard.words.mcp import AnsweredBack, Asked
from callboard.words.values import Json

MOST_PAGES, MOST_ENTRIES = 50, 2_000
"""Of one list of a server."""
_NO_SESSION = (-32_001, -32_000, types.INVALID_REQUEST)
_FORGOTTEN = re.compile(
    r"\bsession( id)? (not found|expired)|no valid session|(unknown|invalid) session", re.IGNORECASE
)
_BY_STATUS = "Server returned an error response"
"""The SDK's word for an HTTP status of 400 and above whose body says no more."""
Progress = Callable[[float, float | None, str | None], Awaitable[None]]


class ServerFailed(Exception):
    """A request to a server failed. `lost`: the connection is gone with it. `unsent`: the server did not take it."""

    def __init__(self, why: str, *, lost: bool = False, unsent: bool = False) -> None:
        super().__init__(why)
        self.why, self.lost, self.unsent = why, lost, unsent


class Heard(Protocol):
    """Who hears what a server says on its own."""

    def changed(self, what: str) -> None:
        """A list is another one now: `tools`, `prompts` or `resources`."""
        ...

    def said(self, level: str, text: str) -> None:
        """A message for the log."""
        ...

    async def asked(self, asked: Asked) -> AnsweredBack:
        """A question for the person."""
        ...


@dataclass(frozen=True, slots=True)
class Wire:
    """A connection that has shaken hands."""

    dispatcher: JSONRPCDispatcher[Any]
    seen: Seen
    info: Json
    """The server's answer to `initialize`: `serverInfo`, `capabilities`, `instructions`."""

    def offers(self, what: str) -> bool:
        """Whether it says that it has `tools`, `prompts` or `resources`."""
        return isinstance(self.info["capabilities"].get(what), dict)

    async def request(self, method: str, params: Json, progress: Progress | None = None) -> Json:
        """Ask, and return the answer as it came. Cancelled: the server is told. Raises `ServerFailed`."""
        options: dict[str, Any] = {} if progress is None else {"on_progress": progress}
        try:
            return await self.dispatcher.send_raw_request(method, params, cast("Any", options))
        except MCPError as error:
            raise failed(error, self.seen) from None

    async def listed(self, method: str, key: str) -> list[Json]:
        """All pages of a list: what in it is an object. Raises `ServerFailed`."""
        found: list[Json] = []
        cursor: object = None
        for _ in range(MOST_PAGES):
            page = await self.request(method, {} if cursor is None else {"cursor": cursor})
            entries = page.get(key)
            if isinstance(entries, list):
                found += [one for one in cast("list[Any]", entries) if isinstance(one, dict)]
            after, cursor = cursor, page.get("nextCursor")
            if not isinstance(cursor, str) or cursor == after or len(found) >= MOST_ENTRIES:
                break
        return found[:MOST_ENTRIES]


@asynccontextmanager
async def shaken(streams: Streams, workspace: Path, heard: Heard, seen: Seen) -> AsyncGenerator[Wire]:
    """Shake hands over the streams of a transport. Raises `ServerFailed`."""
    dispatcher: JSONRPCDispatcher[Any] = JSONRPCDispatcher(*streams)
    session = ClientSession(
        dispatcher=dispatcher,
        list_roots_callback=_roots(workspace),
        elicitation_callback=_elicitation(heard),
        logging_callback=_logging(heard),
        message_handler=_changes(heard),
        client_info=types.Implementation(name="callboard", version=__version__),
    )
    async with session:
        try:
            result = await session.initialize()
        except MCPError as error:
            raise failed(error, seen) from None
        except (ValidationError, RuntimeError) as error:
            raise ServerFailed(f"its answer to `initialize` is none: {one_line(str(error))}") from None
        yield Wire(dispatcher, seen, result.model_dump(by_alias=True, mode="json", exclude_none=True))


def failed(error: MCPError, seen: Seen) -> ServerFailed:
    """The SDK's error in our words."""
    told = one_line(error.error.message, 2_000) or "no reason given"
    if error.error.code == types.CONNECTION_CLOSED:
        return ServerFailed(f"the connection ended: {told}", lost=True)
    # The transport's word for a bare 404, and what the SDKs' servers answer for a session that they know no more.
    if told == "Session terminated" or (error.error.code in _NO_SESSION and _FORGOTTEN.search(told)):
        return ServerFailed("the server has forgotten this session", lost=True, unsent=True)
    if told == _BY_STATUS and seen.statuses:
        status = seen.statuses[-1]
        return ServerFailed(f"the server answered with HTTP {status}", lost=True, unsent=400 <= status < 500)
    return ServerFailed(f"{told} (error {error.error.code})")


def first_of(error: BaseException) -> BaseException:
    """The first exception of a group that says something: not a cancellation."""
    if isinstance(error, BaseExceptionGroup):
        inner: Sequence[BaseException] = cast("BaseExceptionGroup[BaseException]", error).exceptions
        told = [one for one in inner if isinstance(one, Exception) or type(one) is BaseExceptionGroup]
        return first_of(told[0] if told else inner[0])
    return error


def _roots(workspace: Path) -> Any:
    async def roots(context: ClientRequestContext) -> types.ListRootsResult:
        root = {"uri": workspace.as_uri(), "name": workspace.name}
        return types.ListRootsResult.model_validate({"roots": [root]})

    return roots


def _elicitation(heard: Heard) -> Any:
    async def elicit(
        context: ClientRequestContext, params: types.ElicitRequestFormParams | types.ElicitRequestURLParams
    ) -> types.ElicitResult:
        given = params.model_dump(by_alias=True, mode="json", exclude_none=True)
        asked = Asked("", cut(params.message), given.get("requestedSchema", {}), one_line(given.get("url", ""), 2_000))
        answer = await heard.asked(asked)
        if answer.action != "accept" or asked.url:
            return types.ElicitResult(action=answer.action)
        try:
            return types.ElicitResult(action="accept", content=cast("Any", answer.content))
        except ValidationError:
            return types.ElicitResult(action="cancel")  # an answer that the protocol has no form for

    return elicit


def _logging(heard: Heard) -> Any:
    async def logged(params: types.LoggingMessageNotificationParams) -> None:
        heard.said(params.level, one_line(params.data if isinstance(params.data, str) else repr(params.data), 2_000))
        await anyio.lowlevel.checkpoint()

    return logged


def _changes(heard: Heard) -> Any:
    kinds = {
        types.ToolListChangedNotification: "tools",
        types.PromptListChangedNotification: "prompts",
        types.ResourceListChangedNotification: "resources",
    }

    async def handle(message: object) -> None:
        if what := kinds.get(cast("Any", type(message))):
            heard.changed(what)
        await anyio.lowlevel.checkpoint()

    return handle
