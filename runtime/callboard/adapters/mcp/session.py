"""One connection to one server, on the SDK: the handshake, requests as plain JSON, and the server's requests.

Requests and responses are plain JSON, not the SDK's models, so that an invalid entry in a server's list or result costs
only that entry. Sampling is refused, because the server would spend the user's money.
"""

from __future__ import annotations

import json
import re
from collections.abc import AsyncGenerator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, Protocol, cast

import anyio
import mcp_types as types
from mcp.client.session import ClientRequestContext, ClientSession
from mcp.shared.exceptions import MCPError
from mcp.shared.jsonrpc_dispatcher import JSONRPCDispatcher
from pydantic import ValidationError

from callboard import __version__
from callboard.adapters.mcp.sse import BY_STATUS, status_reason
from callboard.adapters.mcp.transports import ConnectionObservations, Streams
from callboard.core.mcp.results import cut, one_line
from callboard.core.validation import faults_of
from callboard.types.late_pattern import late_pattern
from callboard.types.lazy_dataclass import dataclass
from callboard.types.mcp import Elicitation, ElicitationAnswer
from callboard.types.records import Json

MOST_PAGES = 50
MOST_ENTRIES = 2_000
"""Most entries of one list of a server."""
_NO_SESSION = (-32_001, -32_000, types.INVALID_REQUEST)
_FORGOTTEN = late_pattern(
    r"\bsession( id)? (not found|expired)|no valid session|(unknown|invalid) session", re.IGNORECASE
)
_UNREAD = late_pattern(r"Failed to parse [^:]*: \d+ validation errors? ")
"""The SDK's text for an answer that is no message begins so."""
Progress = Callable[[float, float | None, str | None], Awaitable[None]]


class ServerFailed(Exception):
    """A request to a server failed. `lost`: the connection is lost too. `unsent`: the server did not receive it."""

    def __init__(self, reason: str, *, lost: bool = False, unsent: bool = False) -> None:
        super().__init__(reason)
        self.why = reason
        self.lost = lost
        self.unsent = unsent


class Listener(Protocol):
    """Receiver of messages that a server sends by itself."""

    def changed(self, kind: str) -> None:
        """Handle a changed list: `tools`, `prompts` or `resources`."""
        ...

    def log(self, level: str, text: str) -> None:
        """Handle a message for the log."""
        ...

    async def elicit(self, question: Elicitation) -> ElicitationAnswer:
        """Return the user's answer to a question."""
        ...


@dataclass(frozen=True, slots=True)
class McpSession:
    """A connection after its handshake."""

    dispatcher: JSONRPCDispatcher[Any]
    seen: ConnectionObservations
    info: Json
    """The server's response to `initialize`: `serverInfo`, `capabilities`, `instructions`."""

    def offers(self, kind: str) -> bool:
        """Return True if the server declares `tools`, `prompts` or `resources`."""
        return isinstance(self.info["capabilities"].get(kind), dict)

    async def request(self, method: str, params: Json, progress: Progress | None = None) -> Json:
        """Send a request and return the response unchanged.

        A cancellation is sent to the server. Raises `ServerFailed`.
        """
        options: dict[str, Any] = {} if progress is None else {"on_progress": progress}
        try:
            return await self.dispatcher.send_raw_request(method, params, cast("Any", options))
        except MCPError as error:
            raise server_failure(error, self.seen) from None

    async def list_all(self, method: str, key: str, wrong: list[str]) -> list[Json]:
        """Return the different objects on all pages of a list.

        If the server refuses a later page, the pages before it count, and `wrong` gets the reason. Raises
        `ServerFailed`.
        """
        items: dict[str, Json] = {}
        cursor: object = None
        for number in range(1, MOST_PAGES + 1):
            try:
                page = await self.request(method, {} if cursor is None else {"cursor": cursor})
            except ServerFailed as error:
                if error.lost or cursor is None:
                    raise
                wrong.append(f"only {len(items)} of its {key} are known, as page {number} was refused: {error.why}")
                break
            entries = page.get(key)
            # A server that ignores cursors sends one page again and again, and a tool listed twice would be an error
            # (test_a_list_ends_at_an_empty_cursor_and_a_page_that_comes_again_counts_once).
            for entry in cast("list[Any]", entries) if isinstance(entries, list) else ():
                if isinstance(entry, dict):
                    items[json.dumps(entry, sort_keys=True)] = cast("Json", entry)
            after, cursor = cursor, page.get("nextCursor")
            if not isinstance(cursor, str) or cursor in ("", after) or len(items) >= MOST_ENTRIES:
                break
        return list(items.values())[:MOST_ENTRIES]


@asynccontextmanager
async def handshake(
    streams: Streams, workspace: Path, listener: Listener, seen: ConnectionObservations
) -> AsyncGenerator[McpSession]:
    """Perform the handshake over the streams of a transport. Raises `ServerFailed`."""
    dispatcher: JSONRPCDispatcher[Any] = JSONRPCDispatcher(*streams)
    session = ClientSession(
        dispatcher=dispatcher,
        list_roots_callback=_roots(workspace),
        elicitation_callback=_elicitation(listener),
        logging_callback=_logging(listener),
        message_handler=_changes(listener),
        client_info=types.Implementation(name="callboard", version=__version__),
    )
    async with session:
        try:
            result = await session.initialize()
        except MCPError as error:
            raise server_failure(error, seen) from None
        except (ValidationError, RuntimeError) as error:
            reason = "; ".join(faults_of(error)) if isinstance(error, ValidationError) else str(error)
            raise ServerFailed(f"its answer to `initialize` is invalid: {one_line(reason)}") from None
        yield McpSession(dispatcher, seen, result.model_dump(by_alias=True, mode="json", exclude_none=True))


def server_failure(error: MCPError, seen: ConnectionObservations) -> ServerFailed:
    """Return the runtime's error for an error of the SDK."""
    message = one_line(error.error.message, 2_000) or "no reason given"
    if error.error.code == types.CONNECTION_CLOSED:
        return ServerFailed(f"the connection ended: {message}", lost=True)
    # The transport's text for a bare 404, and the answer of the SDKs' servers about a session that they no longer know.
    if message == "Session terminated" or (error.error.code in _NO_SESSION and _FORGOTTEN.search(message)):
        return ServerFailed("the server has forgotten this session", lost=True, unsent=True)
    if message == BY_STATUS and seen.statuses:
        status = seen.statuses[-1]
        return ServerFailed(status_reason(status), lost=True, unsent=400 <= status < 500)
    if error.error.code == types.PARSE_ERROR and _UNREAD.match(message):
        # The rest of the SDK's text lists what each kind of message would need.
        detail = message.partition("Invalid JSON: ")[2].partition(" [type=")[0]
        return ServerFailed(f"its answer is not a valid message of the protocol: {detail or 'it has another form'}")
    return ServerFailed(f"{message} (error {error.error.code})")


def first_of(error: BaseException) -> BaseException:
    """Return the first exception of a group that is not a cancellation."""
    if isinstance(error, BaseExceptionGroup):
        inner: Sequence[BaseException] = cast("BaseExceptionGroup[BaseException]", error).exceptions
        errors = [
            exception
            for exception in inner
            if isinstance(exception, Exception) or type(exception) is BaseExceptionGroup
        ]
        return first_of(errors[0] if errors else inner[0])
    return error


def _roots(workspace: Path) -> Any:
    async def roots(context: ClientRequestContext) -> types.ListRootsResult:
        root = {"uri": workspace.as_uri(), "name": workspace.name}
        return types.ListRootsResult.model_validate({"roots": [root]})

    return roots


def _elicitation(listener: Listener) -> Any:
    async def elicit(
        context: ClientRequestContext, params: types.ElicitRequestFormParams | types.ElicitRequestURLParams
    ) -> types.ElicitResult:
        request = params.model_dump(by_alias=True, mode="json", exclude_none=True)
        question = Elicitation(
            "", cut(params.message), request.get("requestedSchema", {}), one_line(request.get("url", ""), 2_000)
        )
        answer = await listener.elicit(question)
        if answer.action != "accept" or question.url:
            return types.ElicitResult(action=answer.action)
        try:
            return types.ElicitResult(action="accept", content=cast("Any", answer.content))
        except ValidationError:
            return types.ElicitResult(action="cancel")  # an answer for which the protocol has no form

    return elicit


def _logging(listener: Listener) -> Any:
    async def logged(params: types.LoggingMessageNotificationParams) -> None:
        listener.log(params.level, one_line(params.data if isinstance(params.data, str) else repr(params.data), 2_000))
        await anyio.lowlevel.checkpoint()

    return logged


def _changes(listener: Listener) -> Any:
    kinds = {
        types.ToolListChangedNotification: "tools",
        types.PromptListChangedNotification: "prompts",
        types.ResourceListChangedNotification: "resources",
    }

    async def handle(message: object) -> None:
        if kind := kinds.get(cast("Any", type(message))):
            listener.changed(kind)
        await anyio.lowlevel.checkpoint()

    return handle
