"""MCP server of bare JSON lines on the standard library alone: it starts at once, and misbehaves on demand.

Words on the command line: `stubborn` (ignores SIGTERM), `parent` (leaves a process in another session behind), `noise`
(prints before it serves); `env` is a tool that returns the environment, and so on. Run as a script.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import time
from typing import Any

WORDS = sys.argv[1:]
TOOLS: list[dict[str, Any]] = [
    {"name": name} for name in ("echo", "die", "hang", "env", "grow", "large", "huge", "steps")
]


def send(**message: Any) -> None:
    sys.stdout.write(json.dumps({"jsonrpc": "2.0", **message}) + "\n")
    sys.stdout.flush()


def listed() -> list[dict[str, Any]]:
    schema = {"type": "object", "properties": {"text": {"type": "string"}, "self": {}, "class": {}}}
    return [{"description": "d", "inputSchema": schema, **tool} for tool in TOOLS]


def call(number: object, params: dict[str, Any]) -> None:
    name, given = params["name"], params.get("arguments", {})
    text = json.dumps(given)
    if name == "die":
        os._exit(9)
    if name == "hang":
        return
    if name == "env":
        text = json.dumps(dict(os.environ))
    if name == "large":
        text = "".join(f"line {n}\n" for n in range(30_000))
    if name == "huge":
        text = "x" * 20_000_000
    if name == "steps":
        token = params["_meta"]["progressToken"]
        for step in range(11):
            time.sleep(0.2)
            send(method="notifications/progress", params={"progressToken": token, "progress": step, "total": 11})
    if name == "grow":
        TOOLS.append({"name": given.get("text", "grown")})
        send(method="notifications/tools/list_changed")
    send(id=number, result={"content": [{"type": "text", "text": text}]})


def answer(message: dict[str, Any]) -> None:
    number, params = message.get("id"), message.get("params", {})
    if message["method"] == "initialize":
        offer = {"tools": {"listChanged": True}}
        info = {"name": "raw", "version": "1"}
        about = {"protocolVersion": params["protocolVersion"], "capabilities": offer, "serverInfo": info}
        send(id=number, result={**about, "instructions": "i" * 5_000})
    elif message["method"] == "tools/list":
        send(id=number, result={"tools": listed()})
    elif message["method"] == "tools/call":
        call(number, params)
    elif message["method"] == "ping" and "deaf" not in WORDS:
        send(id=number, result={})
    elif message["method"] == "notifications/cancelled":
        sys.stderr.write(f"cancelled {params['requestId']}\n")
        sys.stderr.flush()


def main() -> None:
    if "stubborn" in WORDS:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
    if "parent" in WORDS and not os.fork():
        os.setsid()
        time.sleep(600)
    if "noise" in WORDS:
        sys.stdout.write("Serving...\n{]\n\n[1]\n")
        sys.stdout.flush()
    for line in sys.stdin:
        answer(json.loads(line))
    if "stubborn" in WORDS:
        time.sleep(600)


if __name__ == "__main__":
    main()
