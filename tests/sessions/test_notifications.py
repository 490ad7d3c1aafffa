"""Notifications to a webhook, ntfy, Slack, and the desktop: what is sent, and what goes wrong."""

from __future__ import annotations

import json
import os
import socket
from pathlib import Path
from typing import Any

import pytest
import yaml
from pydantic import ValidationError
from tests.adapters.extensions.hook_server import respond_with, run_hook_server
from tests.cli.commands.command import Command
from tests.web.test_answers import PERMISSION, store_of

from callboard.adapters.processes import tool_ancestry
from callboard.core.keys import LINKS
from callboard.sessions.answer_links import find_link
from callboard.sessions.notifications import NotificationSender, RequestLinks
from callboard.types.hook_answers import HandlerResult
from callboard.types.personal_settings import NotifySettings, NotifyTarget, WebSettings

HOSTILE = "run <!channel> <https://evil.example|ok> *now* \x1b[2J\u202e & go"
EVENT: dict[str, Any] = {
    **{"hook_event_name": "Notification", "notification_type": "permission_prompt", "session_id": "s1"},
    **{"title": "Permission needed", "message": HOSTILE, "request_id": "req_1"},
}
SECRET = "x" * 43


async def link_for(kind: str, session: str, request: str) -> str:
    """Stand in for `RequestLinks`."""
    return f"https://agents.example.org/link#{SECRET}" if kind == "answer" else f"https://agents.example.org/{request}"


async def send(folder: Path, *targets: dict[str, object], timeout: float = 15.0, **changes: object) -> HandlerResult:
    settings = NotifySettings.model_validate({"targets": targets})
    return await NotificationSender(settings, str(folder), link_for).run({**EVENT, **changes}, timeout)


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


@pytest.mark.anyio
async def test_each_target_gets_the_notification_in_its_own_form(tmp_path: Path) -> None:
    with run_hook_server(respond_with({})) as server:
        headers = {"Authorization": "Bearer t"}
        result = await send(
            tmp_path,
            {"kind": "webhook", "url": server.url("/hook"), "headers": headers, "link": "answer"},
            {"kind": "ntfy", "url": server.url("/topic")},
            {"kind": "slack", "url": server.url("/services/x"), "link": "none"},
        )
        assert result == HandlerResult()
        bodies = dict(zip(server.paths, server.bodies, strict=True))
        webhook, ntfy, slack = bodies["/hook"], bodies["/"], bodies["/services/x"]
        assert server.headers[server.paths.index("/hook")]["Authorization"] == "Bearer t"
        assert (webhook["request"], webhook["link"]) == ("req_1", f"https://agents.example.org/link#{SECRET}")
        assert (ntfy["topic"], ntfy["click"]) == ("topic", "https://agents.example.org/req_1")
        assert "<!" not in slack["text"], "no mention, and no link of a model"
        assert "<http" not in slack["text"]
        assert not any("\x1b" in json.dumps(body, ensure_ascii=False) for body in server.bodies)
        assert (
            await send(tmp_path, {"kind": "webhook", "url": server.url()}, notification_type="agent_completed")
        ) == (HandlerResult())
        assert len(server.paths) == 3, "this kind is not among notify.events"


@pytest.mark.anyio
@pytest.mark.parametrize("status", [500, 404, 301, 307])
async def test_a_failed_target_is_named_without_its_address_and_no_redirect_is_followed(
    tmp_path: Path, status: int
) -> None:
    with run_hook_server(respond_with({})) as elsewhere, run_hook_server(respond_with({})) as works:
        answer = respond_with("no", status, Location=elsewhere.url("/stolen"))
        with run_hook_server(answer) as server:
            result = await send(
                tmp_path,
                {"kind": "slack", "url": server.url("/services/SECRETPART"), "link": "answer"},
                {"kind": "webhook", "url": works.url()},
            )
        assert result.fault.startswith(f"slack 127.0.0.1: status {status}")
        assert "SECRETPART" not in result.fault
        assert SECRET not in result.fault
        assert (len(elsewhere.paths), len(works.paths)) == (0, 1), "the other target has got its own"


@pytest.mark.anyio
async def test_a_target_that_does_not_answer_ends_in_time(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        port = silent.getsockname()[1]
        result = await send(tmp_path, {"kind": "webhook", "url": f"http://127.0.0.1:{port}/"}, timeout=1.2)
    assert "webhook 127.0.0.1: no answer within" in result.fault
    refused = await send(tmp_path, {"kind": "webhook", "url": f"http://127.0.0.1:{port}/"})
    assert "Connection refused" in refused.fault


@pytest.mark.anyio
async def test_the_desktop_shows_text_without_a_secret_and_without_marks(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    programs = tmp_path / "bin"
    programs.mkdir()
    program = programs / "notify-send"
    program.write_text(f'#!/bin/sh\nprintf "%s\\n" "$@" > {tmp_path}/shown; env > {tmp_path}/env\n')
    program.chmod(0o700)
    monkeypatch.setenv("PATH", f"{programs}:{os.environ['PATH']}")
    monkeypatch.setenv("ANTHROPIC_API_KEY", "sk-secret")
    assert await send(tmp_path / "workspace", {"kind": "desktop"}) == HandlerResult()
    shown = (tmp_path / "shown").read_text()
    assert shown.startswith("--app-name=Callboard\n--\nPermission needed\nrun &lt;!channel")
    assert shown.endswith("https://agents.example.org/req_1\n")
    assert "sk-secret" not in (tmp_path / "env").read_text()
    program.write_text("#!/bin/sh\nexit 3\n")
    assert (await send(tmp_path / "workspace", {"kind": "desktop"})).fault == "desktop: exit code 3"
    assert "there is no notify-send" in (await send(tmp_path, {"kind": "desktop"})).fault, "it is in the workspace"


@pytest.mark.parametrize(
    ("target", "words"),
    [
        ({"kind": "desktop", "link": "answer"}, "gets no answer link"),
        ({"kind": "webhook"}, "begin with http"),
        ({"kind": "ntfy", "url": "https://ntfy.sh/"}, "ends with its topic"),
        ({"kind": "slack", "url": "http://hooks.example/x", "link": "answer"}, "only sent over https"),
    ],
)
def test_a_target_that_cannot_be_used_is_refused(target: dict[str, object], words: str) -> None:
    with pytest.raises(ValidationError, match=words):
        NotifyTarget.model_validate(target)


@pytest.mark.anyio
async def test_an_answer_link_is_made_for_a_request_that_waits(tmp_path: Path) -> None:
    store = await store_of(PERMISSION)
    links = RequestLinks(WebSettings(address="https://agents.example.org"), tmp_path, store)
    address = await links("answer", "s1", "req_1")
    linked = await find_link(store, address.partition("#")[2])
    assert linked is not None
    assert linked.request.id == "req_1"
    assert await links("answer", "s1", "req_2") == ""
    assert await RequestLinks(WebSettings(), tmp_path, store)("page", "s1", "req_1") == "", "no page runs"
    assert len(await store.keys(LINKS)) == 1
    await store.aclose()


SCENARIO = """
agents:
  lead:
    - reply: [{tool_use: {name: spawn_teammate, input: {name: alice, role: worker, prompt: say hello}}}]
    - when: {result_of: spawn_teammate}
      reply: Waiting.
    - reply: Done.
  alice:
    - reply: Hello.
"""


@pytest.mark.skipif(bool(tool_ancestry.started_by_tool()), reason="these tests run in a tool's process")
def test_a_session_sends_notifications_of_the_persons_settings_only(tmp_path: Path) -> None:
    command = Command(tmp_path)
    settings = tmp_path / "config" / "callboard" / "settings.yaml"
    settings.parent.mkdir(parents=True)
    with run_hook_server(respond_with({})) as server:
        target = {"kind": "webhook", "url": server.url(), "link": "answer"}
        notify = {"notify": {"targets": [target], "events": ["agent_completed"]}}
        settings.write_text(yaml.safe_dump(notify))
        ran = command.run_inline("run", "--model", command.scenario(SCENARIO), "Go.")
        assert ran.code == 0, ran.err
        assert [body["message"] for body in server.bodies] == ["alice is done: Hello."]
    own = command.workspace / ".callboard" / "settings.yaml"
    own.parent.mkdir(exist_ok=True)
    own.write_text(yaml.safe_dump(notify))
    settings.unlink()
    assert "your own settings" in command.run_inline("config", "list", "--trust").err
