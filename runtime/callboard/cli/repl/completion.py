"""Tab completion on the prompt line: commands and their arguments, agents, files of the workspace.

The offers are a function of the text and of the existing names. Files are searched for in a separate thread, among
those that git does not ignore, up to a maximum number; a key press ends the search.
"""

from __future__ import annotations

import os
import threading
from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import anyio
import anyio.to_thread
from prompt_toolkit.completion import CompleteEvent, Completer, Completion
from prompt_toolkit.document import Document

from callboard.adapters.tools.walking import Walk, WalkCancelled
from callboard.cli.terminal.terminal import plain
from callboard.cli.views.events import first_line, shorten
from callboard.core.permissions.modes import selectable_modes
from callboard.sessions.base import OpenSession

MOST_SHOWN = 50
"""Most files offered at once."""
FRESH = 5.0
"""Seconds for which a file listing is reused."""
_META = 50


@dataclass(frozen=True, slots=True)
class CompletionChoice:
    """A word that matches, and its description."""

    word: str
    meta: str = ""


@dataclass(frozen=True, slots=True)
class CompletionNames:
    """Names that can be completed. Agents and requests each have a name and a description."""

    commands: Mapping[str, tuple[str, str]]
    """Arguments and help text of each command."""
    agents: Sequence[CompletionChoice] = ()
    requests: Sequence[CompletionChoice] = ()
    resources: Sequence[CompletionChoice] = ()
    """Resources of MCP servers: `server:uri`."""
    modes: Sequence[CompletionChoice] = ()
    """Permission modes that a person may choose."""


def around(session: OpenSession, commands: Mapping[str, tuple[str, str]]) -> CompletionNames:
    """Return the names in a session now."""
    agents = [CompletionChoice(row.name, row.life) for row in session.team() if row.life != "stopped"]
    requests = [CompletionChoice(row.id, f"{row.kind} of {row.asked_by}: {row.subject}") for row in session.requests()]
    resources = [
        CompletionChoice(f"{resource.server}:{resource.uri}", resource.description or resource.name)
        for now in session.servers_now()
        for resource in now.resources
        if not set(resource.uri) & set(" \t\n")
    ]
    modes = [
        CompletionChoice(mode, "now" if mode == session.mode_of() else "")
        for mode in selectable_modes(may_bypass=session.may_bypass)
    ]
    return CompletionNames(commands, agents, requests, resources, modes)


def offers(before: str, around: CompletionNames) -> tuple[str, list[CompletionChoice]]:
    """Return the part of the text before the cursor that is completed, and its possible replacements. Files are not
    included: for a part that begins with `@` they follow these."""
    last = before[max(before.rfind(" "), before.rfind("\n")) + 1 :]
    if before.startswith("/") and "\n" not in before:
        name, space, typed = before[1:].partition(" ")
        if not space:
            commands = [CompletionChoice(f"/{name}", help) for name, (_, help) in around.commands.items()]
            return before, _fitting(before, commands)
        return last, _fitting(last, _argument_offers(typed, around.commands.get(name, ("", ""))[0], around))
    if last.startswith("@"):
        named = (*around.agents, *around.resources)
        return last, _fitting(last, [CompletionChoice(f"@{entry.word}", entry.meta) for entry in named])
    return last, []


def files_for(piece: str, files: Sequence[str]) -> list[CompletionChoice]:
    """Return the files that `@piece` can mean: first those with a path or name that begins with it, then those that
    contain it."""
    fragment = piece.removeprefix("@").lower()
    begins = list[CompletionChoice]()
    holds = list[CompletionChoice]()
    for path in files:
        low = path.lower()
        if low.startswith(fragment) or low.rpartition("/")[2].startswith(fragment):
            begins.append(CompletionChoice(f"@{path}"))
        elif fragment in low and len(holds) < MOST_SHOWN:
            holds.append(CompletionChoice(f"@{path}"))
        if len(begins) >= MOST_SHOWN:
            break
    return [*begins, *holds][:MOST_SHOWN]


class Files:
    """Files below a workspace, newest first; the listing is at most a few seconds old."""

    def __init__(self, workspace: Path) -> None:
        self._workspace = workspace
        self._found: Sequence[str] = ()
        self._at = float("-inf")

    async def listed(self) -> Sequence[str]:
        """Return the paths; none if the workspace cannot be read. Cancelling ends the search."""
        if anyio.current_time() - self._at > FRESH:
            stop = threading.Event()
            try:
                self._found = await anyio.to_thread.run_sync(_walk, self._workspace, stop, abandon_on_cancel=True)
            finally:
                stop.set()
            self._at = anyio.current_time()
        return self._found


class LineCompleter(Completer):
    """Completes the line from the names that exist when a key requests it."""

    def __init__(self, around: Callable[[], CompletionNames], files: Files) -> None:
        self._there = around
        self._files = files

    def get_completions(self, document: Document, complete_event: CompleteEvent) -> Sequence[Completion]:
        """Return all completions except files, which take longer."""
        piece, matches = offers(document.text_before_cursor, self._there())
        return [_completion(match, piece) for match in matches]

    async def get_completions_async(
        self, document: Document, complete_event: CompleteEvent
    ) -> AsyncGenerator[Completion, None]:
        """Yield all completions; files are last."""
        piece, matches = offers(document.text_before_cursor, self._there())
        for match in matches:
            yield _completion(match, piece)
        if piece.startswith("@"):
            for match in files_for(piece, await self._files.listed()):
                yield _completion(match, piece)


def _argument_offers(typed: str, usage: str, around: CompletionNames) -> list[CompletionChoice]:
    """Return the arguments that may follow a command, from its usage text, such as `ID [option N | always]`."""
    takes = usage.split()
    if " " not in typed.lstrip():
        if takes[:1] in (["ID"], ["[ID]"]):
            return list(around.requests)
        if takes[:1] == ["[MODE]"]:
            return list(around.modes)
        if any(item.strip("[]") in ("AGENT", "NAME") for item in takes):
            named = [CompletionChoice(agent.word, agent.meta) for agent in around.agents]
            return [*named, *_fixed(takes)]
    return _fixed(takes)


def _fixed(takes: Sequence[str]) -> list[CompletionChoice]:
    """Return the words of a usage text that are typed literally: those in lower case, between brackets."""
    matches: list[CompletionChoice] = []
    inside = False
    for item in takes:
        inside = inside or item.startswith("[")
        word = item.strip("[]|")
        if inside and word and word == word.lower() and word not in ("words", "focus"):
            matches.append(CompletionChoice(word))
        inside = inside and not item.endswith("]")
    return matches


def _fitting(piece: str, candidates: Sequence[CompletionChoice]) -> list[CompletionChoice]:
    return [offer for offer in candidates if offer.word.startswith(piece)]


def _completion(offer: CompletionChoice, piece: str) -> Completion:
    return Completion(plain(offer.word), -len(piece), display_meta=shorten(first_line(offer.meta), _META))


def _walk(workspace: Path, stop: threading.Event) -> Sequence[str]:
    def opened() -> int:
        return os.open(workspace, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)

    try:
        entries = Walk(opened, stop).files("")
    except (OSError, WalkCancelled):
        return ()
    return [entry.path for entry in entries if plain(entry.path) == entry.path and " " not in entry.path]
