"""Slash commands of the runtime in the prompt of a run or in a message of a client: `/compact`, `/context`, `/cost` ...

A command that shows something has the same text as at the prompt line. A command of the person's own files with the
same name goes first, except before `/compact` and `/clear`.
"""

from __future__ import annotations

import importlib
from collections.abc import Awaitable, Callable
from dataclasses import replace

from callboard.cli.headless.messages import CHANGING_COMMANDS, PROMPT_COMMANDS
from callboard.cli.terminal.terminal import Block, plain
from callboard.ports.environment import Interest
from callboard.ports.model import Delta
from callboard.sessions.hosted import HostedSession
from callboard.sessions.result import FAILED, RunEnd
from callboard.types.errors import CallboardError, UsageError
from callboard.types.events import ContextEdited, Event, SummaryFailed
from callboard.types.lazy_dataclass import dataclass
from callboard.types.records import Envelope, Request

_TAKING_TEXT = frozenset({"compact", "context", "cost", "inbox"})
_AT_PROMPT_LINE = {"usage": "cost"}
"""Name here -> name at the prompt line, if they differ."""


@dataclass(frozen=True, slots=True)
class PromptCommand:
    """A command of the runtime, as it was written."""

    name: str
    text: str
    """Text after the name."""

    @property
    def only_shows(self) -> bool:
        """Return True if the command only shows something."""
        return all(self.name != command.name for command in CHANGING_COMMANDS)

    def needs_conversation(self, *, resumed: bool) -> None:
        """Raise `UsageError` for a command that changes the conversation of a session that has none yet."""
        if not self.only_shows and not resumed:
            raise UsageError(f"a new session has no conversation for /{self.name}: add -c, or --resume ID")


def command_in(prompt: str) -> PromptCommand | None:
    """Return the command of the runtime that is a whole prompt; None: it is another text."""
    name, *text = prompt.strip().split(maxsplit=1) or [""]
    if not name.startswith("/") or all(name[1:] != command.name for command in PROMPT_COMMANDS):
        return None
    return PromptCommand(name[1:], text[0] if text else "")


_COMPACTED = (ContextEdited, SummaryFailed)  # a union would be made for each event


class CommandRunner:
    """Runs commands of the runtime. As an observer of the session, it sees how a compaction ended."""

    interest = Interest(frozenset(_COMPACTED), frozenset())

    def __init__(self) -> None:
        self._compaction: ContextEdited | SummaryFailed | None = None

    def on_event(self, agent: str, seq: int, event: Event) -> None:
        """Note the end of a compaction of the lead."""
        if agent == "lead" and isinstance(event, _COMPACTED):
            self._compaction = event

    def on_delta(self, agent: str, delta: Delta) -> None:
        """Do nothing: no text of a model belongs to a command."""

    def on_mail(self, envelope: Envelope) -> None:
        """Do nothing: no mail belongs to a command."""

    def takes(self, session: HostedSession, command: PromptCommand | None) -> bool:
        """Return True if the runtime runs this command, and no file of the person does."""
        if command is None:
            return False
        return not command.only_shows or not any(own.goes_by(command.name) for own in session.commands())

    async def run(
        self, session: HostedSession, command: PromptCommand, finished: Callable[[], Awaitable[RunEnd]]
    ) -> RunEnd:
        """Run a command, and return its end with its text. `finished` waits for the end of the session's work."""
        try:
            if command.text and command.name not in _TAKING_TEXT:
                raise UsageError(f"/{command.name} takes no arguments here; it was given {command.text!r}")
            if command.only_shows:
                return replace(session.end_now(0, ""), text=await command_text(session, command))
            if command.name == "clear":
                await session.renew(carry=False)
                return replace(await finished(), exit_code=0, text="", why="", limit="", advice="")
            self._compaction = None
            await session.command("compact", text=command.text)
            return self._compacted(await finished())
        except CallboardError as error:
            return session.end_now(FAILED, str(error))

    def _compacted(self, end: RunEnd) -> RunEnd:
        """Return the end of a compaction. How the last turn ended does not count."""
        done = replace(end, exit_code=0, text="", why="", limit="", advice="")
        match self._compaction:
            case ContextEdited(edits=edits) as event if edits:
                sizes = f"{event.tokens_before:,} -> {event.tokens_after:,} tokens"
                return replace(done, text=f"The conversation was compacted: {sizes}")
            case ContextEdited(why=reason):
                return replace(done, text=f"Nothing was compacted: {reason}")
            case SummaryFailed(why=reason):
                return replace(done, exit_code=FAILED, why=f"the conversation was not compacted: {reason}")
            case _:
                return replace(end, exit_code=end.exit_code or FAILED, why=end.why or "the compaction did not end")


async def command_text(session: HostedSession, command: PromptCommand) -> str:
    """Return the text of a command that shows something, as at the prompt line. Raises `CallboardError`."""
    await session.wait_begun()
    # It takes 100 ms to import, and most runs need none of it.
    registry = importlib.import_module("callboard.cli.slash.registry")
    context = importlib.import_module("callboard.cli.slash.context")
    name = _AT_PROMPT_LINE.get(command.name, command.name)
    block: Block = await registry.COMMANDS[name].act(context.SlashContext(session, _no_editor), command.text)
    return "\n".join(plain(line.text) for line in block.lines)


async def _no_editor(request: Request) -> str:
    raise UsageError(f"a run has no editor for {request.id}")
