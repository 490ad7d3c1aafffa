"""Screen that starts a session: `callboard run --detach`, as a process of its own.

The page hosts nothing, so a serving host runs the session: it outlives the page, and the checks of its options are
those of the command line. The prompt is sent through stdin, so that no list of processes shows it.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import anyio.to_thread
import htpy as h
from htpy import Element
from starlette.requests import Request
from starlette.responses import RedirectResponse, Response
from starlette.routing import Route

from callboard.adapters.processes.programs import run_program
from callboard.adapters.processes.tool_ancestry import refuse_inside_tool
from callboard.cli.views.events import shorten
from callboard.cli.views.permission import spell_out
from callboard.sessions.inspect.hosts import StoreHosts, read_hosts
from callboard.sessions.inspect.policy import in_force
from callboard.types.errors import UsageError
from callboard.types.late_pattern import late_pattern
from callboard.web.guard import NEW_SESSION, UploadedFile, visit_of
from callboard.web.hosts import PATH as HOSTS
from callboard.web.html import Viewer, WebPage, chosen, field, form, path_of
from callboard.web.routes import PageServices, html_response, viewer_of

PATH = NEW_SESSION
ATTACHMENTS = "attachments"
"""Folder of the workspace that keeps uploaded files. Git ignores it."""
_MOST_FILES = 10
_LARGEST_FILE = 5_000_000
"""Most bytes of an uploaded file."""
_IMAGES = (b"\x89PNG\r\n", b"\xff\xd8\xff", b"GIF8", b"RIFF")
"""First bytes of the images that agents can see: PNG, JPEG, GIF, WebP."""
_UNUSUAL = late_pattern(r"[^\w.-]+")
_SECONDS = 120.0
"""Most seconds of the start of a session, which may connect to MCP servers."""
_SHOWN = 200
"""Most characters of a path that a message shows."""
_MODES = ("", "default", "acceptEdits", "plan", "dontAsk", "sandboxed")
"""Permission modes to choose from. That without any question is for the command line alone."""
_OPTIONS = {
    "agent_type": "--agent",
    "mode": "--permission-mode",
    "budget": "--max-budget-usd",
    "model": "--model",
    "name": "--name",
    "worktree": "--worktree",
}
"""Fields of the form, and the options that they mean."""
_ATTACHMENTS_HINT = f"text or images, kept in {ATTACHMENTS}/ of the workspace (optional)"


def _new_page(types: Sequence[str], seen: StoreHosts, workspace: Path, viewer: Viewer) -> WebPage:
    nobody = "No callboard serve runs: the session waits until one does, on any machine of the store."
    about = h.section("#about")[
        h.p(".about")["Workspace ", h.code[spell_out(str(workspace))], ". A serving host runs the session."],
        None if seen.serving else h.p(".about.warn")[nobody, " ", h.a(href=HOSTS)["Hosts"]],
    ]
    return WebPage(
        "New session", PATH, {"about": about}, _form(types, viewer), ("/sessions", "Sessions"), follows=False
    )


def _form(types: Sequence[str], viewer: Viewer) -> Element:
    agents = [("", "lead"), *((name, name) for name in types if name != "lead")]
    return form(
        viewer,
        PATH,
        field("Prompt", h.textarea(name="prompt", rows="5", required=True), "what the lead should do"),
        field("Files", h.textarea(name="files", rows="2"), "paths that the prompt refers to, one a line (optional)"),
        field("Attachments", h.input(type="file", name="attachments", multiple=True), _ATTACHMENTS_HINT),
        h.div(".row")[
            field("Agent type", chosen("agent_type", agents, "")),
            field("Permission mode", chosen("mode", [(mode, mode or "as in the settings") for mode in _MODES], "")),
        ],
        h.div(".row")[
            field("Budget in dollars", h.input(name="budget", size="8", inputmode="decimal"), "(optional)"),
            field("Model", h.input(name="model", size="18"), "(optional)"),
        ],
        h.div(".row")[
            field("Name", h.input(name="name", size="18"), "(optional)"),
            field("Worktree", h.input(name="worktree", size="18"), "a name; empty: the workspace itself"),
        ],
        h.div(".buttons")[h.button(".primary", type="submit")["Start"]],
        label="New session",
        encoding="multipart/form-data",
    )


def checked_names(files: Sequence[UploadedFile]) -> list[str]:
    """Return the names under which files are kept. Raises `UsageError` for too many, a large one, or another type."""
    if len(files) > _MOST_FILES:
        raise UsageError(f"attach at most {_MOST_FILES} files: {len(files)} were sent")
    names: list[str] = []
    for file in files:
        name = _UNUSUAL.sub("_", file.name.replace("\\", "/").rpartition("/")[2]).lstrip(".")[-100:]
        if not name:
            raise UsageError(f"{file.name}: rename the file: its name has no letter and no digit")
        if len(file.content) > _LARGEST_FILE:
            raise UsageError(f"{name}: it is too large: a file may have {_LARGEST_FILE // 1_000_000} MB")
        if not file.content.startswith(_IMAGES) and not _is_text(file.content):
            raise UsageError(f"{name}: agents cannot read it: attach text (UTF-8), or an image (PNG, JPEG, GIF, WebP)")
        names.append(name)
    return names


def _is_text(content: bytes) -> bool:
    try:
        return "\0" not in content.decode()
    except UnicodeDecodeError:
        return False


def keep_attachments(files: Sequence[UploadedFile], workspace: Path) -> list[Path]:
    """Write uploaded files to the workspace, and return their paths. Existing files are never replaced.

    An agent may have created the folder, so no link is followed. Raises `UsageError` as `checked_names` does.
    """
    names = checked_names(files)
    if not files:
        return []
    folder = workspace / ATTACHMENTS
    try:
        folder.mkdir(exist_ok=True)
        descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
        try:
            _write_new(descriptor, ".gitignore", b"*\n")
            return [
                folder / _write_free(descriptor, name, file.content) for name, file in zip(names, files, strict=True)
            ]
        finally:
            os.close(descriptor)
    except OSError as failed:
        raise UsageError(f"{folder}: {failed.strerror}: the attachments cannot be kept") from failed


def _write_free(folder: int, name: str, content: bytes) -> str:
    """Write a file under its name, or with a number if there is one of that name; return the name."""
    stem, dot, suffix = name.partition(".")
    free = name
    number = 1
    while not _write_new(folder, free, content):
        number += 1
        free = f"{stem}-{number}{dot}{suffix}"
    return free


def _write_new(folder: int, name: str, content: bytes) -> bool:
    """Write a new file in a folder. Return False if there is one, or a link."""
    try:
        descriptor = os.open(name, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600, dir_fd=folder)
    except FileExistsError:
        return False
    with os.fdopen(descriptor, "wb") as file:
        file.write(content)
    return True


def prompt_of(posted: Mapping[str, str], workspace: Path, attached: Sequence[Path] = ()) -> str:
    """Return the prompt with the files that it refers to. Raises `UsageError` for an empty one, or a missing file."""
    prompt = posted.get("prompt", "").replace("\r\n", "\n").strip()
    if not prompt:
        raise UsageError("write what the session should do")
    files = [line.strip() for line in posted.get("files", "").splitlines() if line.strip()]
    for file in files:
        if reason := _missing(workspace / file):
            raise UsageError(
                f"{shorten(file, _SHOWN)}: {reason}: write the paths of files in {workspace}, one in a line"
            )
    files += [str(path) for path in attached]
    return f"{prompt}\n\nFiles: {', '.join(files)}" if files else prompt


def _missing(path: Path) -> str:
    """Return the reason why there is no such file, or it cannot be looked up; empty if it exists."""
    try:
        return "" if path.exists() else "there is no such file"
    except OSError as error:
        return str(error.strerror)


def arguments_of(posted: Mapping[str, str]) -> list[str]:
    """Return the options of `callboard run` that a form means. Raises `UsageError` for a mode that is not offered."""
    if posted.get("mode", "") not in _MODES:
        raise UsageError(f"the page starts no session in mode {posted['mode']!r}: use the command line")
    values = {option: posted.get(name, "").strip() for name, option in _OPTIONS.items()}
    return [f"{option}={value}" for option, value in values.items() if value]


class _NewSessionRoutes:
    """Handlers of requests."""

    def __init__(self, services: PageServices) -> None:
        self._services = services

    async def show(self, request: Request) -> Response:
        """Show the form."""
        workspace = self._services.places.workspace
        force = await anyio.to_thread.run_sync(in_force, workspace)
        seen = await read_hosts(self._services.store)
        return self._services.page(request, _new_page([*force.agents], seen, workspace, viewer_of(request)))

    async def start(self, request: Request) -> Response:
        """Start a session, and lead to it."""
        refuse_inside_tool("Starting a session from the page")
        workspace = self._services.places.workspace
        posted = visit_of(request).form
        arguments = arguments_of(posted)
        await anyio.to_thread.run_sync(prompt_of, posted, workspace)  # before anything is written
        attached = await anyio.to_thread.run_sync(keep_attachments, visit_of(request).files, workspace)
        prompt = await anyio.to_thread.run_sync(prompt_of, posted, workspace, attached)
        started = await _run(workspace, arguments, prompt)
        path = path_of("sessions", str(started["session_id"]))
        if not request.headers.get("hx-request"):
            return RedirectResponse(path, 303)
        waits = f" It waits for a host: {started['waits']}." if started["waits"] else ""
        return html_response(h.p["Started: ", h.a(href=path)["show the session"], f".{spell_out(waits)}"])


async def _run(workspace: Path, arguments: Sequence[str], prompt: str) -> Mapping[str, Any]:
    """Run `callboard run --detach`, and return what it printed. Raises `UsageError` with its message."""
    command = [sys.executable, "-m", "callboard", "--cwd", str(workspace), "--quiet", "run", "--detach"]
    line = [*command, "--output-format=json", *arguments]
    ended = await run_program(line, dict(os.environ), stdin=prompt.encode(), timeout=_SECONDS)
    if ended.code != 0:
        reason = ended.err.decode(errors="replace").strip() or "it took too long"
        raise UsageError(f"no session was started: {reason.removeprefix('callboard: ')}")
    answer: Mapping[str, Any] = json.loads(ended.out)
    return answer


def new_session_routes(services: PageServices) -> list[Route]:
    """Return the routes of the screen."""
    routes = _NewSessionRoutes(services)
    return [Route(PATH, routes.show), Route(PATH, routes.start, methods=["POST"])]
