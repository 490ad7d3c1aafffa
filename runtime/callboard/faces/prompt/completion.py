"""What Tab offers on the prompt line: commands and the words they take, agents, files of the workspace.

What is offered is a function of the text and of what is there. Files are looked for in a thread of its own, among those
that git does not ignore, up to a number; a key that is pressed meanwhile ends the search.
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

from callboard.adapters.tools.walking import Gone, Walk
from callboard.app import OpenSession
from callboard.faces.lines import first_line, shorten
from callboard.faces.terminal import plain

MOST_SHOWN = 50
"""Files that are offered at once."""
FRESH = 5.0
"""Seconds for which a listing of the files is used again."""
_META = 50


@dataclass(frozen=True, slots=True)
class Offer:
    """One word that fits, and what it is."""

    word: str
    meta: str = ""


@dataclass(frozen=True, slots=True)
class Around:
    """What there is to be named. Agents and requests: a name each, with what it is."""

    commands: Mapping[str, tuple[str, str]]
    """Their argument words and their help."""
    agents: Sequence[Offer] = ()
    requests: Sequence[Offer] = ()
    resources: Sequence[Offer] = ()
    """Of MCP servers: `server:uri`."""


def around(session: OpenSession, commands: Mapping[str, tuple[str, str]]) -> Around:
    """What there is in a session now."""
    agents = [Offer(row.name, row.life) for row in session.team() if row.life != "stopped"]
    requests = [Offer(row.id, f"{row.kind} of {row.asked_by}: {row.subject}") for row in session.requests()]
    resources = [
        Offer(f"{one.server}:{one.uri}", one.description or one.name)
        for now in session.servers_now()
        for one in now.resources
        if not set(one.uri) & set(" \t\n")
    ]
    return Around(commands, agents, requests, resources)


def offers(before: str, there: Around) -> tuple[str, list[Offer]]:
    """The piece of the text before the cursor that is completed, and what may stand in its place. Files are not here:
    for a piece that begins with `@` they follow these."""
    last = before[max(before.rfind(" "), before.rfind("\n")) + 1 :]
    if before.startswith("/") and "\n" not in before:
        name, space, rest = before[1:].partition(" ")
        if not space:
            found = [Offer(f"/{one}", help) for one, (_, help) in there.commands.items()]
            return before, _fitting(before, found)
        return last, _fitting(last, _words(rest, there.commands.get(name, ("", ""))[0], there))
    if last.startswith("@"):
        named = (*there.agents, *there.resources)
        return last, _fitting(last, [Offer(f"@{one.word}", one.meta) for one in named])
    return last, []


def files_for(piece: str, files: Sequence[str]) -> list[Offer]:
    """Those files that `@piece` may mean: where a path or a name begins so first, then where it stands anywhere."""
    wanted = piece.removeprefix("@").lower()
    begins, holds = list[Offer](), list[Offer]()
    for path in files:
        low = path.lower()
        if low.startswith(wanted) or low.rpartition("/")[2].startswith(wanted):
            begins.append(Offer(f"@{path}"))
        elif wanted in low and len(holds) < MOST_SHOWN:
            holds.append(Offer(f"@{path}"))
        if len(begins) >= MOST_SHOWN:
            break
    return [*begins, *holds][:MOST_SHOWN]


class Files:
    """The files beneath a workspace, newest first, as a listing that is a few seconds old at most."""

    def __init__(self, workspace: Path) -> None:
        self._workspace = workspace
        self._found: Sequence[str] = ()
        self._at = float("-inf")

    async def listed(self) -> Sequence[str]:
        """Their paths; none where the workspace cannot be read. Cancelled, the search ends."""
        if anyio.current_time() - self._at > FRESH:
            stop = threading.Event()
            try:
                self._found = await anyio.to_thread.run_sync(_walk, self._workspace, stop, abandon_on_cancel=True)
            finally:
                stop.set()
            self._at = anyio.current_time()
        return self._found


class LineCompleter(Completer):
    """Completes the line, from what there is when a key asks for it."""

    def __init__(self, there: Callable[[], Around], files: Files) -> None:
        self._there, self._files = there, files

    def get_completions(self, document: Document, complete_event: CompleteEvent) -> Sequence[Completion]:
        """All but files, which take a while."""
        piece, found = offers(document.text_before_cursor, self._there())
        return [_completion(one, piece) for one in found]

    async def get_completions_async(
        self, document: Document, complete_event: CompleteEvent
    ) -> AsyncGenerator[Completion, None]:
        """Everything: files come last."""
        piece, found = offers(document.text_before_cursor, self._there())
        for one in found:
            yield _completion(one, piece)
        if piece.startswith("@"):
            for one in files_for(piece, await self._files.listed()):
                yield _completion(one, piece)


def wants_menu(before: str) -> bool:
    """Whether completions are offered while this is typed: a command's name, and a name after `@`."""
    last = before[max(before.rfind(" "), before.rfind("\n")) + 1 :]
    return (before.startswith("/") and last == before) or (last.startswith("@") and len(last) > 1)


def _words(rest: str, words: str, there: Around) -> list[Offer]:
    """What may follow a command: by the words of its help, such as `ID [option N | always]`."""
    takes = words.split()
    if " " not in rest.lstrip():
        if takes[:1] in (["ID"], ["[ID]"]):
            return list(there.requests)
        if any(one.strip("[]") in ("AGENT", "NAME") for one in takes):
            named = [Offer(one.word, one.meta) for one in there.agents]
            return [*named, *_fixed(takes)]
    return _fixed(takes)


def _fixed(takes: Sequence[str]) -> list[Offer]:
    """The words of a help text that are typed as they stand: those in small letters, between brackets."""
    found: list[Offer] = []
    inside = False
    for one in takes:
        inside = inside or one.startswith("[")
        word = one.strip("[]|")
        if inside and word and word == word.lower() and word not in ("words", "focus"):
            found.append(Offer(word))
        inside = inside and not one.endswith("]")
    return found


def _fitting(piece: str, found: Sequence[Offer]) -> list[Offer]:
    return [one for one in found if one.word.startswith(piece)]


def _completion(one: Offer, piece: str) -> Completion:
    return Completion(plain(one.word), -len(piece), display_meta=shorten(first_line(one.meta), _META))


def _walk(workspace: Path, stop: threading.Event) -> Sequence[str]:
    def opened() -> int:
        return os.open(workspace, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)

    try:
        found = Walk(opened, stop).files("")
    except (OSError, Gone):
        return ()
    return [one.path for one in found if plain(one.path) == one.path and " " not in one.path]
