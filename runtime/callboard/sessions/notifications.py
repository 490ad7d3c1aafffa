"""The bundled `Notification` hook: it sends to the targets of the person's settings, with a link.

It runs in the host's process, never as a command: a command line, an environment, and a file could show an answer link
to an agent. Texts of models are sent as text: each target gets them in a form that cannot contain a link or a mark.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import replace
from fnmatch import fnmatchcase
from pathlib import Path
from urllib.parse import urlsplit

import anyio

from callboard.adapters.processes.programs import find_program
from callboard.adapters.processes.tool_ancestry import started_by_tool
from callboard.core.decoding import read_value
from callboard.core.keys import request_key
from callboard.core.trust.claims import printable
from callboard.engine.hooks.registry import HookRegistry
from callboard.ports.store import Store
from callboard.ports.store_reading import row_of
from callboard.sessions.answer_links import make_link
from callboard.sessions.prepare import PreparedSession
from callboard.sessions.running_page import page_address
from callboard.types.errors import UsageError
from callboard.types.hook_answers import HandlerResult
from callboard.types.lazy_dataclass import dataclass
from callboard.types.personal_settings import NotifySettings, NotifyTarget, WebSettings
from callboard.types.records import Json, Request

_SECONDS = 15.0
"""Seconds for all targets together."""
_LONGEST = 300
"""Most characters of a message."""
_DESKTOP_VARIABLES = (
    *("PATH", "HOME", "LANG", "DISPLAY", "WAYLAND_DISPLAY", "DBUS_SESSION_BUS_ADDRESS", "XDG_RUNTIME_DIR"),
    "XAUTHORITY",
)
_OSASCRIPT = "on run argv\ndisplay notification (item 2 of argv) with title (item 1 of argv)\nend run"

LinkFor = Callable[[str, str, str], Awaitable[str]]
"""Function that returns the link of a kind (`answer`, `page`) for a session and a request; empty if there is none."""


@dataclass(frozen=True, slots=True)
class PersonNotification:
    """One notification, ready to send."""

    title: str
    message: str
    kind: str
    session: str
    request: str
    link: str = ""


@dataclass(frozen=True, slots=True)
class NotificationSender:
    """A `HookHandler` that sends notifications to all targets at once."""

    settings: NotifySettings
    project: str
    """The workspace: no program of it is run."""
    link_for: LinkFor

    @property
    def name(self) -> str:
        """See `HookHandler.name`."""
        return "notify"

    @property
    def timeout(self) -> float | None:
        """See `HookHandler.timeout`."""
        return _SECONDS

    async def run(self, event_json: Json, timeout: float) -> HandlerResult:
        """Send one notification. See `HookHandler.run`. A failed target keeps no other one from its own."""
        kind = str(event_json.get("notification_type", ""))
        if kind not in self.settings.events:
            return HandlerResult()
        faults: list[str] = []
        async with anyio.create_task_group() as group:
            for target in self.settings.targets:
                group.start_soon(self._send, target, _notice_of(event_json, kind), timeout - 1, faults)
        return HandlerResult(fault="; ".join(sorted(faults)))

    async def _send(self, target: NotifyTarget, notice: PersonNotification, timeout: float, faults: list[str]) -> None:
        where = f"{target.kind} {urlsplit(target.url).hostname or ''}".strip()
        try:
            with anyio.fail_after(timeout):
                if notice.request and target.link != "none":
                    notice = replace(notice, link=await self.link_for(target.link, notice.session, notice.request))
                desktop = target.kind == "desktop"
                problem = await (_show(notice, self.project) if desktop else _post(target, notice, timeout))
        except TimeoutError:
            problem = f"no answer within {timeout:g} s"
        except (OSError, ValueError) as failed:
            problem = str(failed.strerror if isinstance(failed, OSError) else "") or type(failed).__name__
        if problem:
            faults.append(f"{where}: {problem}")


def _notice_of(event_json: Mapping[str, object], kind: str) -> PersonNotification:
    def text(name: str) -> str:
        value = printable(str(event_json.get(name) or ""))
        return value if len(value) <= _LONGEST else f"{value[: _LONGEST - 1]}…"

    return PersonNotification(
        text("title") or "Callboard", text("message"), kind, text("session_id"), text("request_id")
    )


async def _post(target: NotifyTarget, notice: PersonNotification, timeout: float) -> str:
    """Send a notification, and return the problem; empty if it arrived."""
    from callboard.adapters.system.json_post import post_json  # noqa: PLC0415 - few sessions notify, and it is slow to import

    status, _ = await post_json(_address(target), body_for(target, notice), target.headers, timeout)
    if 200 <= status < 300:
        return ""
    return f"status {status}, and no redirect is followed" if 300 <= status < 400 else f"status {status}"


def _address(target: NotifyTarget) -> str:
    """Return the address to send to. A topic of ntfy is in the body, so that no text has to be a header."""
    return target.url.rpartition("/")[0] + "/" if target.kind == "ntfy" else target.url


def body_for(target: NotifyTarget, notice: PersonNotification) -> Json:
    """Return a notification in the form of a target."""
    if target.kind == "ntfy":
        topic = target.url.rpartition("/")[2]
        click = {"click": notice.link} if notice.link else {}
        return {"topic": topic, "title": notice.title, "message": notice.message, **click}
    if target.kind == "slack":
        link = f"\n<{notice.link}|Open the request>" if notice.link else ""
        text = f"*{_for_slack(notice.title)}*\n{_for_slack(notice.message)}{link}"
        return {"text": text, "unfurl_links": False, "unfurl_media": False}
    names = ("title", "message", "kind", "session", "request", "link")
    return {name: getattr(notice, name) for name in names}


def _for_slack(text: str) -> str:
    """Return a text without links, mentions, and marks of Slack."""
    escaped = text.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")
    return escaped.replace("*", "∗").replace("`", "ˋ").replace("http", "http\u2060")


def desktop_command(project: str) -> Sequence[str] | None:
    """Return the program that shows notifications on this desktop; None if there is none."""
    if sys.platform == "darwin" and (program := find_program("osascript", Path(project))):
        return (program, "-e", _OSASCRIPT, "--")
    program = find_program("notify-send", Path(project))
    return (program, "--app-name=Callboard", "--") if program else None


async def _show(notice: PersonNotification, project: str) -> str:
    """Show a notification on the desktop, and return the problem. Its text is visible in `ps`: no secret is in it."""
    command = desktop_command(project)
    if command is None:
        return "there is no notify-send or osascript"
    marks = command[0].endswith("notify-send")
    body = notice.message.replace("&", "&amp;").replace("<", "&lt;") if marks else notice.message
    text = f"{body}\n{notice.link}" if notice.link else body
    environment = {name: os.environ[name] for name in _DESKTOP_VARIABLES if name in os.environ}
    done = await anyio.run_process([*command, notice.title, text], check=False, env=environment)
    return "" if done.returncode == 0 else f"exit code {done.returncode}"


def add_notifications(registry: HookRegistry, prepared: PreparedSession) -> None:
    """Register the hook if the settings name a target. Not in a replay, and not in a process that a tool started."""
    settings = prepared.loaded.settings
    off = any(fnmatchcase("notify", pattern) for pattern in settings.hooks_off)
    if not settings.notify.targets or off or not prepared.runs_tools or started_by_tool(service=True):
        return
    link_for = RequestLinks(settings.web, prepared.places.state, prepared.store)
    sender = NotificationSender(settings.notify, str(prepared.places.workspace), link_for)
    registry.add("Notification", sender, source="builtin", fail_open=True)


@dataclass(frozen=True, slots=True)
class RequestLinks:
    """Maker of links for notifications (`LinkFor`)."""

    web: WebSettings
    state: Path
    store: Store

    async def __call__(self, kind: str, session: str, request_id: str) -> str:
        """Return a link to a request; empty if no page runs, or the request does not wait for a person any more."""
        try:
            base = page_address(self.state, self.web.address)
            if kind == "page":
                return f"{base}/waiting#request-{request_id}"
            row = await row_of(self.store, request_key(session, request_id))
            if row is None or row.value is None:
                return ""
            request = read_value(Request, row.value, row.key)
            return (await make_link(self.store, session, request, seconds=self.web.link_seconds)).address(base)
        except UsageError:
            return ""
