r"""Completion and meaning of a typed line: a text, an interrupt or a command, with its recipients.

Answers to questions are handled elsewhere.

  line          means
  ------------  --------------------------------------------------------------------
  `text`        text for the lead, which reads it at its next step
  `@alice text` text for alice; `@all text`: for every living agent
  `!command`    a command of the person, in their shell: the lead reads its output at its next step
  `!@alice text` alice's running turn is interrupted, and she reads the text at once; `!@lead text`: the lead's
  `!`           the lead's running turn is interrupted
  `/command`    one of the slash commands
  `\text`       the text as it is, whatever it begins with, for the lead

`read_line` is a function of the line and the team; `submit` sends the result. Nothing is guessed: text after an unknown
name is not sent to the lead.

A command after `!` runs in the person's shell, in parallel with the turn and without permission rules or a sandbox. It
cannot read the keyboard, and ends with the prompt line at the latest.

Tab completes commands and their arguments, agents, and files of the workspace. The offers are a function of the text
and of the existing names. Files are searched for in a separate thread, among those that git does not ignore, up to a
maximum number; a key press ends the search.
"""

from __future__ import annotations

import difflib
import os
import re
import threading
from collections.abc import AsyncGenerator, Callable, Iterator, Mapping, Sequence
from pathlib import Path
from subprocess import DEVNULL, PIPE, STDOUT

import anyio
import anyio.to_thread
from anyio.abc import Process
from prompt_toolkit.completion import CompleteEvent, Completer, Completion
from prompt_toolkit.document import Document

from callboard.adapters.processes.pids import kill_session
from callboard.adapters.system.open_files import give_back
from callboard.adapters.tools.walking import FolderWalk, WalkCancelled
from callboard.cli.terminal.terminal import Block, Line, block, plain, visible
from callboard.cli.views.events import first_line, shorten
from callboard.core.messaging.envelopes import tag_text
from callboard.core.permissions.modes import selectable_modes
from callboard.core.skills.substitution import first_name
from callboard.sessions.base import OpenSession
from callboard.sessions.result import AgentSummary
from callboard.types.choices import choose
from callboard.types.errors import UsageError
from callboard.types.late_pattern import late_pattern
from callboard.types.lazy_dataclass import dataclass

_TO = late_pattern(r"@([A-Za-z0-9-]+)[,:]?(?:\s+(.*))?", re.DOTALL)
"""A name before the text. A word with a dot, a slash or an underscore is a file, not a name."""
_AT_WORK = frozenset({"starting", "working", "waiting"})
_FOR_PERSON = frozenset({"plan", "permission", "question"})
"""Kinds of requests for which an agent pauses until a person answers."""
ALL = "all"


@dataclass(frozen=True, slots=True)
class Say:
    """Text for these agents, the first of the team first."""

    text: str
    to: tuple[str, ...] = ("lead",)


@dataclass(frozen=True, slots=True)
class InterruptRequest:
    """Interrupt of the running turns of these agents, with an optional text for them to read."""

    text: str
    to: tuple[str, ...] = ("lead",)


@dataclass(frozen=True, slots=True)
class Shell:
    """A command that the person runs in their own shell."""

    command: str


@dataclass(frozen=True, slots=True)
class SlashLine:
    """A slash command, with its slash."""

    line: str


@dataclass(frozen=True, slots=True)
class EmptyLine:
    """An empty line."""


@dataclass(frozen=True, slots=True)
class InvalidInput:
    """Line that cannot be used; `why`: the problem and the input to type instead. The line becomes the draft again."""

    why: str
    name: str = ""
    """Unknown name, as it was typed."""


LEAVING = frozenset({"exit", "quit", ":q", "logout"})
"""Words that end the prompt line when typed alone, as in a shell."""

Typed = Say | InterruptRequest | Shell | SlashLine | EmptyLine | InvalidInput


def read_line(line: str, team: Mapping[str, str], is_file: Callable[[str], bool] = lambda name: False) -> Typed:
    """Return the meaning of the line.

    `team`: name -> life (`AgentRow.life`) of every known agent, including the lead. `is_file`: returns True if an
    unknown name at the start of a text for the lead is a file.
    """
    typed = _read(line, team)
    if (
        isinstance(typed, InvalidInput)
        and typed.name
        and not line.strip().startswith("!")
        and typed.name.lower() not in team
        and is_file(typed.name)
    ):
        return Say(line.strip())
    return typed


def _read(line: str, team: Mapping[str, str]) -> Typed:
    text = line.strip()
    if not text:
        return EmptyLine()
    if text.lower() in LEAVING:
        return SlashLine("/quit")
    if text == "?":
        return SlashLine("/help")
    if text.startswith("\\/") and first_name(text[1:]):  # without the backslash the rest would be a command again
        return Say(text)
    if text.startswith("\\"):
        return Say(text[1:]) if text[1:].strip() else EmptyLine()
    if text.startswith("/"):
        return SlashLine(text)
    if not text.startswith("!"):
        return _addressed(text, team) or Say(text)
    remaining = text[1:].strip()
    addressed = _addressed(remaining, team, wordless=True)
    if addressed is None:
        return Shell(remaining) if remaining else InterruptRequest("")
    return InterruptRequest(addressed.text, addressed.to) if isinstance(addressed, Say) else addressed


def _addressed(line: str, team: Mapping[str, str], *, wordless: bool = False) -> Say | InvalidInput | None:
    """Return the text after a name; None if it begins with no name. `wordless`: a name alone is enough."""
    match = _TO.fullmatch(line)
    if match is None:
        return None
    name = match[1].lower()
    text = (match[2] or "").strip()
    living = tuple(member for member, life in team.items() if life != "stopped")
    to = living if name == ALL else (name,)
    if name != ALL and name not in living:
        return InvalidInput(_unknown(name, team, living), match[1])
    if not text and not wordless:
        return InvalidInput(f"add a text for {'everyone' if name == ALL else name}: @{name} TEXT")
    return Say(text, to)


def _unknown(name: str, team: Mapping[str, str], living: Sequence[str]) -> str:
    near = difflib.get_close_matches(name, living, n=1, cutoff=0.5)
    problem = f"{name} has stopped" if name in team else f"unknown agent {name!r}"
    names = [f"@{member}" for member in [*near, *(other for other in living if other not in near)]]
    return f"{problem}: {choose(names)}. To send it to the lead: \\@{name} ..."


def lives_of(team: Sequence[AgentSummary]) -> dict[str, str]:
    """Return name -> life, for `read_line`."""
    return {agent.name: agent.life for agent in team}


def is_busy(agent: AgentSummary) -> bool:
    """Return True if an agent has a turn or is about to start one. A lead without a prompt is not busy."""
    no_prompt_yet = agent.kind == "lead" and agent.life == "starting" and not agent.waiting_for
    return agent.life in _AT_WORK and not no_prompt_yet


def runs(agent: AgentSummary) -> bool:
    """Return True if an agent can continue without an answer from the person."""
    return is_busy(agent) and agent.waiting_for.partition(" ")[0] not in _FOR_PERSON


async def submit(session: OpenSession, typed: Say | InterruptRequest | InvalidInput) -> tuple[Block, bool]:
    """Send the line.

    Returns a message for the person, empty unless the text is read later, and True if nothing was sent, so that the
    line is kept.
    """
    if isinstance(typed, InvalidInput):
        return block(typed.why, "warn"), True
    try:
        return Block(await _sent(session, typed)), False
    except UsageError as refused:
        return block(str(refused), "warn"), True


async def _sent(session: OpenSession, typed: Say | InterruptRequest) -> tuple[Line, ...]:
    team = {agent.name: agent for agent in session.team()}
    lines: list[Line] = []
    for name in typed.to:
        agent = team.get(name)
        busy = agent is not None and is_busy(agent)
        if isinstance(typed, InterruptRequest) and busy:
            await session.interrupt(name)
            lines.append(Line(cut_words(name, agent.waiting_for if agent else "", spoken=bool(typed.text)), "dim"))
        elif isinstance(typed, InterruptRequest) and not typed.text:
            lines.append(Line(f"{name} has no turn to interrupt", "dim"))
        if typed.text:
            await session.say(typed.text, name)
        if agent is not None and not isinstance(typed, InterruptRequest):
            lines += _lines(queued_words(name, agent.life, agent.waiting_for))
    return tuple(lines)


def _lines(text: str) -> Iterator[Line]:
    if text:
        yield Line(text, "dim")


def queued_words(name: str, life: str, waiting_for: str = "") -> str:
    """Return when an agent in this state reads a message; empty if at once."""
    if life == "crashed":
        return f"queued: {name} is parked after crashes; it reads this when it continues (callboard team resume {name})"
    if life == "stopping":
        return f"{name} is about to stop: it may no longer read this"
    if life not in ("working", "waiting") or waiting_for.startswith("question "):
        return ""
    cut = f"; !@{name} TEXT interrupts it"
    return f"queued: {name} reads it {_when(waiting_for)}{cut}"


def cut_words(name: str, waiting_for: str = "", *, spoken: bool) -> str:
    """Return a text on the effect of an interrupt."""
    if not spoken:
        return f"interrupting {name}"
    if waiting_for.startswith("plan "):
        return f"interrupting {name}: it reads this {_when(waiting_for)}"
    return f"interrupting {name}: it reads this next"


def _when(waiting_for: str) -> str:
    kind, _, about = waiting_for.partition(" ")
    if kind in ("plan", "permission"):
        return f"when its {kind} is answered{f' ({visible(about)})' if about else ''}"
    if kind == "subagents":
        return "when its subagents have reported"
    if kind == "rate":
        return "when the service takes its calls again"
    return "at its next step"


MOST_SHOWN = 50
"""Limit of the files offered at once."""
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
    """Return the part of the text before the cursor that is completed, and its possible replacements.

    Files are not included: for a part that begins with `@` they follow these.
    """
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
    """Return the files that `@piece` can mean.

    First those with a path or name that begins with it, then those that contain it.
    """
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

    async def list_paths(self) -> Sequence[str]:
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
    """Completer of the line from the names that exist when a key requests it."""

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
            for match in files_for(piece, await self._files.list_paths()):
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
        entries = FolderWalk(opened, stop).files("")
    except (OSError, WalkCancelled):
        return ()
    return [entry.path for entry in entries if plain(entry.path) == entry.path and " " not in entry.path]


READ = 10_000
"""Limit of the characters of an output that the lead reads: its beginning and its end."""
_SHOWN = 200
"""Limit of the lines of an output that are shown: the last ones."""
_MOST_BYTES = 1_000_000
_LINGER = 0.5
"""Seconds to wait for the end of the output after the command has ended: a program in the background may keep
it open."""


@dataclass(frozen=True, slots=True)
class ShellResult:
    """Command that has ended."""

    command: str
    output: str
    exit_code: int
    """Exit code; the negative signal number if the command was killed."""

    def output_block(self) -> Block:
        """Return the output for the person."""
        lines = self.output.rstrip("\n").split("\n") if self.output.strip() else []
        cut = [Line(f"[{len(lines) - _SHOWN} lines above are not shown]", "dim")] if len(lines) > _SHOWN else []
        printed = block("\n".join(lines[-_SHOWN:])).lines if lines else ()
        code = [Line(f"exit code {self.exit_code}", "warn")] if self.exit_code else []
        return Block((*cut, *printed, *code)) if lines or code else block("(no output)", "dim")

    def message(self) -> str:
        """Return the message for the lead."""
        half = READ // 2
        cut = f"{self.output[:half]}\n[{len(self.output) - READ} characters left out]\n{self.output[-half:]}"
        text = self.output.rstrip("\n") if len(self.output) <= READ else cut
        head = "The person ran this command in their own shell. For your information:"
        return f"{head}\n" + tag_text("piped-input", text, command=self.command, exit_code=str(self.exit_code))


async def run_line(command: str, folder: Path) -> ShellResult:
    """Run a command in the person's shell.

    When cancelled, it is killed with all processes that it started. Raises `OSError`.
    """
    shell = os.environ.get("SHELL") or "/bin/sh"
    process: Process | None = None
    with anyio.CancelScope(shield=True):  # if its start were cancelled, the process would continue unnoticed
        process = await anyio.open_process(
            [shell, "-c", command], stdin=DEVNULL, stdout=PIPE, stderr=STDOUT, cwd=folder, start_new_session=True
        )
    assert process is not None
    give_back(process.pid)
    output = bytearray()
    try:
        code = await _followed(process, output)
    except BaseException:
        kill_session(process.pid)
        raise
    finally:
        with anyio.CancelScope(shield=True):
            await process.aclose()
    return ShellResult(command, output.decode("utf-8", "replace"), code)


async def _followed(process: Process, output: bytearray) -> int:
    """Read the output until the command has ended; return its exit code."""
    code: list[int] = []
    async with anyio.create_task_group() as group:

        async def read() -> None:
            assert process.stdout is not None
            async for piece in process.stdout:
                output.extend(piece[: _MOST_BYTES - len(output)])
            ended.set()

        ended = anyio.Event()
        group.start_soon(read)
        code.append(await process.wait())
        with anyio.move_on_after(_LINGER):
            await ended.wait()
        group.cancel_scope.cancel()
    return code[0]
