"""Model service of `web.py`: agents that stream paced text with the time of each piece in it.

`python bench/web_side.py` prints its port. The base URL is `http://127.0.0.1:PORT/AGENTS/PIECES`. The agent that
received "Go." starts AGENTS subagents; each of them streams one reply of PIECES pieces, one each `PACE` seconds. A
piece ends with the time of its sending, `@1732760000.123 `.
"""

from __future__ import annotations

import asyncio
import time

from aiohttp import web
from server import LARGEST_REQUEST, MANY_REQUESTS, event, fan_out, model

PACE = 0.05
TEXT = "The grammar of the cron field is ambiguous "


async def messages(request: web.Request) -> web.StreamResponse:
    body = await request.read()
    from_lead = b'"text":"Go."' in body or b'"text": "Go."' in body
    response = web.StreamResponse(headers={"content-type": "text/event-stream", "request-id": "req_1", **MANY_REQUESTS})
    await response.prepare(request)
    if from_lead and b'"tool_result"' not in body:
        await response.write(b"".join(fan_out(int(request.match_info["agents"]))))
        await response.write_eof()
        return response
    usage = {"input_tokens": 10, "output_tokens": 1, "cache_creation_input_tokens": 0, "cache_read_input_tokens": 0}
    message: dict[str, object] = {"id": "msg_paced", "type": "message", "role": "assistant", "content": []}
    await response.write(event("message_start", message={**message, "model": "claude-opus-4-8", "usage": usage}))
    await response.write(event("content_block_start", index=0, content_block={"type": "text", "text": ""}))
    for _ in range(2 if from_lead else int(request.match_info["pieces"])):
        await asyncio.sleep(PACE)
        delta = {"type": "text_delta", "text": f"{TEXT}@{time.time():.3f} "}
        await response.write(event("content_block_delta", index=0, delta=delta))
    await response.write(event("content_block_stop", index=0))
    stop = {"stop_reason": "end_turn", "stop_sequence": None}
    await response.write(event("message_delta", delta=stop, usage={"output_tokens": 40}) + event("message_stop"))
    await response.write_eof()
    return response


async def until_left(request: web.Request) -> web.StreamResponse:
    """Return the response of `messages`, also if the host ends in the middle of it."""
    try:
        return await messages(request)
    except ConnectionResetError:
        return web.Response()


async def count_tokens(request: web.Request) -> web.Response:
    return web.json_response({"input_tokens": len(await request.read()) // 4})


async def main() -> None:
    app = web.Application(client_max_size=LARGEST_REQUEST)
    app.router.add_post("/{agents}/{pieces}/v1/messages", until_left)
    app.router.add_post("/{agents}/{pieces}/v1/messages/count_tokens", count_tokens)
    app.router.add_get("/{steps}/{label}/v1/models/{model}", model)
    runner = web.AppRunner(app, access_log=None)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    print(runner.addresses[0][1], flush=True)
    await asyncio.Event().wait()


if __name__ == "__main__":
    asyncio.run(main())
