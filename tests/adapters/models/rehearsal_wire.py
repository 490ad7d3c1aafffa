"""The emulator, and the clients that its tests use."""

from __future__ import annotations

import io
import json
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import aiohttp
from anthropic import AsyncAnthropic

from callboard.adapters.models.rehearsal.emulator import Emulator, EmulatorOptions, serve
from callboard.adapters.models.rehearsal.replies import SimulatedFault, SimulatedReply, SimulatedRequest, text, tool_use
from callboard.adapters.models.rehearsal.scenario import Scenario

Json = dict[str, Any]

HEADERS = {"x-api-key": "k", "anthropic-version": "2023-06-01"}

TOOLS = [{"name": "read", "input_schema": {"type": "object"}}]


def body(**fields: Any) -> Json:
    base = {
        "model": "rehearsal",
        "max_tokens": 4_000,
        "tools": TOOLS,
        "messages": [{"role": "user", "content": "hello"}],
    }
    return {**base, **fields}


@asynccontextmanager
async def run_emulator(
    scenario: Scenario | Callable[[SimulatedRequest], SimulatedReply], **options: Any
) -> AsyncIterator[Emulator]:
    scenario = scenario if isinstance(scenario, Scenario) else Scenario.from_callable(scenario)
    emulator = await serve(scenario, options=EmulatorOptions(**options))
    try:
        yield emulator
    finally:
        await emulator.aclose()


@asynccontextmanager
async def sdk(emulator: Emulator, **more: Any) -> AsyncIterator[AsyncAnthropic]:
    async with AsyncAnthropic(base_url=emulator.url, api_key="k", max_retries=0, timeout=60.0, **more) as client:
        yield client


async def post(
    emulator: Emulator, request: Json | bytes, path: str = "/v1/messages", **headers: str
) -> tuple[int, Any]:
    data = io.BytesIO(request if isinstance(request, bytes) else json.dumps(request).encode())
    sent = {name: value for name, value in {**HEADERS, **headers}.items() if value}
    async with (
        aiohttp.ClientSession() as session,
        session.post(emulator.url + path, data=data, headers=sent) as response,
    ):
        raw = await response.read()
        return response.status, json.loads(raw) if response.content_type == "application/json" else raw.decode()


async def events(emulator: Emulator, request: Json) -> list[tuple[str, Json]]:
    """Return the named events of a stream, as sent."""
    _, raw = await post(emulator, {**request, "stream": True})
    parts = [part.split("\n") for part in raw.strip().split("\n\n")]
    return [(part[0].removeprefix("event: "), json.loads(part[1].removeprefix("data: "))) for part in parts]


def faulty_reply(*faults: SimulatedFault, blocks: int = 1) -> Callable[[SimulatedRequest], SimulatedReply]:
    return lambda _: SimulatedReply((text("word " * 40), tool_use("read", {"path": "x" * 200})), faults=faults)


async def completes(emulator: Emulator, headers: dict[str, str]) -> bool:
    """Return whether a single attempt produced a whole message."""
    try:
        status, raw = await post(emulator, body(stream=True), **headers)
    except aiohttp.ClientError:
        return False
    return status == 200 and "message_stop" in raw
