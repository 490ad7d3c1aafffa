"""Parser of a line that a person typed: text, an interrupt, or a command, and its recipients. Answers never come here.

  line          means
  ------------  --------------------------------------------------------------------
  `text`        text for the lead, which reads it at its next step
  `@alice text` text for alice; `@all text`: for every living agent
  `!command`    a command of the person, in their shell: the lead reads its output at its next step
  `!@alice text` alice's running turn is interrupted, and she reads the text at once; `!@lead text`: the lead's
  `!`           the lead's running turn is interrupted
  `/command`    one of the slash commands
  `\\text`       the text as it is, whatever it begins with, for the lead

`read_line` is a function of the line and the team; `submit` sends the result. It does not guess: text after an unknown
name is not sent to the lead.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from callboard.cli.terminal.terminal import Block, Line, block, visible
from callboard.core.skills.substitution import first_name
from callboard.sessions.base import OpenSession
from callboard.sessions.result import AgentSummary
from callboard.types.errors import UsageError

_TO = re.compile(r"@([A-Za-z0-9-]+)[,:]?(?:\s+(.*))?", re.DOTALL)
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
class Nothing:
    """An empty line."""


@dataclass(frozen=True, slots=True)
class InvalidInput:
    """Line that cannot be used; `why` says what to type instead, and the line becomes the draft again."""

    why: str
    name: str = ""
    """Unknown name, as it was typed."""


LEAVING = frozenset({"exit", "quit", ":q", "logout"})
"""Words that end the prompt line when typed alone, as in a shell."""

Typed = Say | InterruptRequest | Shell | SlashLine | Nothing | InvalidInput


def read_line(line: str, team: Mapping[str, str], is_file: Callable[[str], bool] = lambda name: False) -> Typed:
    """Return the meaning of the line. `team`: name -> life (`AgentRow.life`) of every known agent, including the lead.
    `is_file`: returns True if an unknown name at the start of a text for the lead is a file."""
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
        return Nothing()
    if text.lower() in LEAVING:
        return SlashLine("/quit")
    if text.startswith("\\/") and first_name(text[1:]):  # without the backslash they would be a command again
        return Say(text)
    if text.startswith("\\"):
        return Say(text[1:]) if text[1:].strip() else Nothing()
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
        return InvalidInput(f"what is {'everybody' if name == ALL else name} to read? @{name} TEXT")
    return Say(text, to)


def _unknown(name: str, team: Mapping[str, str], living: Sequence[str]) -> str:
    near = difflib.get_close_matches(name, living, n=1, cutoff=0.5)
    problem = f"{name} has stopped" if name in team else f"there is no agent {name}"
    hint = f"Did you mean @{near[0]}? " if near else ""
    names = ", ".join(f"@{member}" for member in living) or "nobody yet"
    return f"{problem}. {hint}There are: {names}. To send it to the lead: \\@{name} ..."


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
    """Send the line. Returns a message for the person, empty unless the text is read later, and True if nothing was
    sent, so that the line is kept."""
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
        return f"{name} is about to stop: it may not read this any more"
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
