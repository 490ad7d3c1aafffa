"""Model service for benches: requests one tool call after another, as a stream of events, without delay.

`python bench/server.py` prints its port and serves until it is ended. The base URL is
`http://127.0.0.1:PORT/STEPS/LABEL`. A conversation with fewer than STEPS tool results is answered with a call of
`read_file`, otherwise with a final text. `/LABEL/seen` describes the newest request of a LABEL, so that a bench can
check that both sides sent the same history. The service checks nothing else; the rehearsal is the strict one.

A LABEL may have options: `name+200ms` waits this long before each reply; `name+500agents` asks the agent that received
"Go." to start this many subagents, which then do the steps; `name+50mates` the same with teammates; `name+500held`
answers none of them before this many have asked; `name+200000window` is a model with this window, which writes
summaries, and whose conversation ends after STEPS calls, whatever its history still holds; `name+files` reads another
file in each step.
"""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta

from aiohttp import web

FILE = "notes.txt"
"""File that each call reads; the bench creates it in the workspace."""
FILES = "notes-{:05}.txt"
"""File that a call reads with the option `files`, by the number of the call."""

WORDS = ("I read ", "the next ", "part of ", "the notes ", "and go on.")
LARGEST_REQUEST = 64 * 1024 * 1024

SUMMARY = b"answer with the summary and nothing else"
"""Part of each request of Callboard for a summary."""
DEFAULT_WINDOW = 1_000_000

SEEN: web.AppKey[dict[str, dict[str, int]]] = web.AppKey("seen", dict)
GATES: web.AppKey[dict[str, asyncio.Barrier]] = web.AppKey("gates", dict)
MANY_REQUESTS = {f"anthropic-ratelimit-requests-{name}": "100000" for name in ("limit", "remaining")}
"""Headers that allow a client to send many requests at once, without increasing their number step by step."""


def event(name: str, **data: object) -> bytes:
    return f"event: {name}\ndata: {json.dumps({'type': name, **data}, separators=(',', ':'))}\n\n".encode()


def events(number: int, *, last: bool, tokens: int, file: str = FILE) -> Iterator[bytes]:
    """Return one reply: a short text, and a call unless it is the last."""
    usage = {"input_tokens": tokens, "output_tokens": 1}
    yield event(
        "message_start",
        message={
            "id": f"msg_{number:024}",
            "type": "message",
            "role": "assistant",
            "model": "claude-opus-4-8",
            "content": [],
            "stop_reason": None,
            "stop_sequence": None,
            "usage": {**usage, "cache_creation_input_tokens": 0, "cache_read_input_tokens": 0},
        },
    )
    yield event("content_block_start", index=0, content_block={"type": "text", "text": ""})
    for word in WORDS:
        yield event("content_block_delta", index=0, delta={"type": "text_delta", "text": word})
    yield event("content_block_stop", index=0)
    if not last:
        call: dict[str, object] = {"type": "tool_use", "id": f"toolu_{number:024}", "name": "read_file", "input": {}}
        yield event("content_block_start", index=1, content_block=call)
        for part in ('{"pa', 'th": ', f'"{file}"}}'):
            yield event("content_block_delta", index=1, delta={"type": "input_json_delta", "partial_json": part})
        yield event("content_block_stop", index=1)
    stop = {"stop_reason": "end_turn" if last else "tool_use", "stop_sequence": None}
    yield event("message_delta", delta=stop, usage={"output_tokens": 40})
    yield event("message_stop")


def fan_out(agents: int, *, mates: bool = False) -> Iterator[bytes]:
    """Return a reply that starts this many subagents or teammates."""
    tool = "spawn_teammate" if mates else "task"
    message: dict[str, object] = {"id": "msg_fan_out", "type": "message", "role": "assistant", "content": []}
    usage = {"input_tokens": 10, "output_tokens": 1, "cache_creation_input_tokens": 0, "cache_read_input_tokens": 0}
    yield event("message_start", message={**message, "model": "claude-opus-4-8", "stop_reason": None, "usage": usage})
    for number in range(agents):
        call: dict[str, object] = {"type": "tool_use", "id": f"toolu_{number:024}", "name": tool, "input": {}}
        yield event("content_block_start", index=number, content_block=call)
        task = {"description": f"Part {number}", "prompt": "Do your part.", "agent_type": "explore"}
        mate = {"name": f"mate-{number}", "role": "waits", "prompt": "Hello."}
        given = json.dumps(mate if mates else task)
        yield event("content_block_delta", index=number, delta={"type": "input_json_delta", "partial_json": given})
        yield event("content_block_stop", index=number)
    yield event("message_delta", delta={"stop_reason": "tool_use", "stop_sequence": None}, usage={"output_tokens": 40})
    yield event("message_stop")


async def messages(request: web.Request) -> web.StreamResponse:
    body = await request.read()
    label = request.match_info["label"]
    results = body.count(b'"tool_result"')  # count without parsing, so that mostly the client works
    summary = SUMMARY in body
    done = request.app[SEEN].get(label, {}).get("replies", 0)
    request.app[SEEN][label] = {"results": results, "bytes": len(body), "replies": done + (not summary)}
    await asyncio.sleep(option(label, "ms") / 1_000)
    from_lead = b'"text":"Go."' in body or b'"text": "Go."' in body
    mates = option(label, "mates")
    agents = option(label, "agents") + mates if from_lead else 0
    held = option(label, "held")
    if held and not from_lead:
        gate = request.app[GATES].setdefault(label, asyncio.Barrier(held))
        await gate.wait()
    headers = {"content-type": "text/event-stream", "request-id": f"req_{results:024}"}
    if held:
        reset = datetime.now(UTC) + timedelta(minutes=1)
        headers |= {**MANY_REQUESTS, "anthropic-ratelimit-requests-reset": reset.isoformat()}
    response = web.StreamResponse(headers=headers)
    await response.prepare(request)
    steps = int(request.match_info["steps"])
    number = done if option(label, "window") else results
    last = summary or (results > 0 if agents else number >= steps)
    file = FILES.format(number) if "+files" in label else FILE
    parts = (
        fan_out(agents, mates=mates > 0)
        if agents and not last
        else events(number, last=last, tokens=len(body) // 4, file=file)
    )
    for part in [b"".join(parts)] if "+" in label else parts:  # with many agents the server must be fast
        await response.write(part)
    await response.write_eof()
    return response


def option(label: str, name: str) -> int:
    """Return the number before this name in a label, or 0."""
    found = re.search(rf"\+(\d+){name}", label)
    return int(found[1]) if found else 0


async def model(request: web.Request) -> web.Response:
    return web.json_response(
        {
            "type": "model",
            "id": request.match_info["model"],
            "display_name": request.match_info["model"],
            "created_at": "2026-01-01T00:00:00Z",
            "max_input_tokens": option(request.match_info["label"], "window") or DEFAULT_WINDOW,
            "max_tokens": 128_000,
        }
    )


async def count_tokens(request: web.Request) -> web.Response:
    return web.json_response({"input_tokens": len(await request.read()) // 4})


async def seen(request: web.Request) -> web.Response:
    return web.json_response(request.app[SEEN].get(request.match_info["label"], {}))


async def serve() -> None:
    app = web.Application(client_max_size=LARGEST_REQUEST)
    app[SEEN] = {}
    app[GATES] = {}
    app.router.add_post("/{steps}/{label}/v1/messages", messages)
    app.router.add_post("/{steps}/{label}/v1/messages/count_tokens", count_tokens)
    app.router.add_get("/{steps}/{label}/v1/models/{model}", model)
    app.router.add_get("/{label}/seen", seen)
    runner = web.AppRunner(app, access_log=None)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    print(runner.addresses[0][1], flush=True)
    await asyncio.Event().wait()


if __name__ == "__main__":
    asyncio.run(serve())
