"""A server that lives in the client of a headless run: its messages go through the client's protocol, one at a time.

`bridged` gives the streams that the SDK's own transports give. Each message is carried in a task of its own, so that a
call that takes long holds up no other.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager

import anyio
import mcp_types as types
from anyio.streams.memory import MemoryObjectReceiveStream, MemoryObjectSendStream
from mcp.shared.message import SessionMessage

from callboard.adapters.mcp.transports import Streams
from callboard.ports.mcp import Bridge

Into = MemoryObjectSendStream[SessionMessage | Exception]


@asynccontextmanager
async def bridged(bridge: Bridge) -> AsyncGenerator[Streams]:
    """Streams to the server beyond a bridge. A request that cannot be carried is answered with an error."""
    into, read = anyio.create_memory_object_stream[SessionMessage | Exception](0)
    write, given = anyio.create_memory_object_stream[SessionMessage](0)
    with into, read, write, given:
        async with anyio.create_task_group() as group:
            group.start_soon(_carry, bridge, given, into)
            try:
                yield read, write
            finally:
                group.cancel_scope.cancel()


async def _carry(bridge: Bridge, given: MemoryObjectReceiveStream[SessionMessage], into: Into) -> None:
    async with anyio.create_task_group() as group:
        async for message in given:
            group.start_soon(_one, bridge, message, into)


async def _one(bridge: Bridge, sent: SessionMessage, into: Into) -> None:
    message = sent.message
    asks = isinstance(message, types.JSONRPCRequest)
    try:
        answer = await bridge(message.model_dump(by_alias=True, mode="json", exclude_unset=True))
        if answer is None:
            if not asks:
                return
            raise ValueError("the client gave no answer")
        back = types.jsonrpc_message_adapter.validate_python(answer, by_name=False)
    except Exception as error:  # noqa: BLE001 - whatever the other end does to us becomes the answer of this message
        if not isinstance(message, types.JSONRPCRequest):
            return
        data = types.ErrorData(code=types.INTERNAL_ERROR, message=f"the client did not carry it: {error}")
        back = types.JSONRPCError(jsonrpc="2.0", id=message.id, error=data)
    await into.send(SessionMessage(back))
