"""No frame of a client ends the process, and each request has a response, whatever it holds."""

from __future__ import annotations

import json
from pathlib import Path
from random import Random
from typing import Any

import pytest
from tests.cli.commands.command import Command
from tests.cli.headless.test_stream_json_input import SCENARIO, drive, of_type

from callboard.cli.headless import control

SUBTYPES = (*control._HANDLERS, "nonesuch", [], {}, None, 5)
FIELDS = (
    *("mode", "model", "settings", "server_name", "serverName", "servers", "enabled", "message", "title", "task_id"),
    *("tool_use_id", "user_message_id", "message_uuid", "dry_run", "cancel_queued", "max_thinking_tokens"),
    *("thinking_display", "add_plugins"),
)
VALUES = (
    *(None, True, 0, 1, -1, 1e308, "", "x", "lead", "plan", "haiku", [], ["x"], {}, {"a": 1}, {"model": 5}),
    *({"permissions": "x"}, {"permissions": []}, {"permissions": {"defaultMode": 5}}, {"permissions": 5}),
)
CONTENTS = ("look", "hello", "", [], 5, None, "/clear", "/model haiku", [{"type": "text", "text": "x"}], [{"type": 5}])
OTHERS = (
    *({"type": "keep_alive"}, {"type": "postcard"}, {"type": "control_cancel_request"}, {"type": "control_request"}),
    *({"type": "control_response", "response": response} for response in (None, 5, {}, {"request_id": "q"})),
    *({"type": "control_request", "request_id": "bare", "request": request} for request in (None, 5, [])),
)


def frame(random: Random, number: int) -> dict[str, Any]:
    """Return any frame. Requests have different ids, so that their responses can be counted."""
    kind = random.choices(("request", "message", "other"), (7, 2, 1))[0]
    if kind == "other":
        return random.choice(OTHERS)
    if kind == "message":
        uuid = {"uuid": random.choice((None, 5, "u1", "u2"))} if random.random() < 0.5 else {}
        return {"type": "user", "message": {"role": "user", "content": random.choice(CONTENTS)}, **uuid}
    fields = {name: random.choice(VALUES) for name in random.sample(FIELDS, random.randint(0, 4))}
    request = {"subtype": random.choice(SUBTYPES), **fields}
    return {"type": "control_request", "request_id": f"r{number}", "request": request}


def survived(folder: Path, seed: int) -> None:
    folder.mkdir()
    command = Command(folder)
    command.scenario(SCENARIO)
    random = Random(seed)
    frames = [frame(random, number) for number in range(40)]
    ran = drive(command, *map(json.dumps, frames))
    assert "a bug in" not in ran.err, (seed, ran.err)
    asked = [each["request_id"] for each in frames if str(each.get("request_id", "")).startswith("r")]
    answered = [each["response"]["request_id"] for each in of_type(ran, "control_response")]
    assert sorted(each for each in answered if each.startswith("r")) == sorted(asked), seed


@pytest.mark.parametrize("seed", range(2))
def test_a_run_survives_any_frames(tmp_path: Path, seed: int) -> None:
    survived(tmp_path / "run", seed)


@pytest.mark.soak
def test_a_run_survives_many_frames(tmp_path: Path, soak: int) -> None:
    for seed in range(2, soak * 40):
        survived(tmp_path / str(seed), seed)
