"""What a line that a person typed means, and to whom it goes: words, an interrupt, a command. Answers never come here.

line          means
------------  --------------------------------------------------------------------
`text`        words for the lead, which it reads at its next step
`@alice text` words for alice; `@all text`: for everybody who lives
`!text`       the lead's running turn is interrupted, and it reads the text at once; `!@alice text`: hers
`!`           the lead's running turn is interrupted
`/command`    one of the slash commands
`\\text`       the text as it stands, whatever it begins with, for the lead

`read_line` is a function of the line and the team; `heed` sends what it read. It refuses to guess: a name that nobody
has is no text for the lead.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from callboard.app import AgentSummary, OpenSession
from callboard.faces.terminal import Block, Line, block, visible
from callboard.words.errors import UsageError

_TO = re.compile(r"@([A-Za-z0-9-]+)[,:]?(?:\s+(.*))?", re.DOTALL)
"""A name before words. What holds a dot, a slash or an underscore is a file, and no name."""
AT_WORK = frozenset({"starting", "working", "waiting"})
"""Lives of agents that have a turn, or are about to."""
ALL = "all"


@dataclass(frozen=True, slots=True)
class Say:
    """Words for these agents, the first of the team first."""

    text: str
    to: tuple[str, ...] = ("lead",)


@dataclass(frozen=True, slots=True)
class Interrupt:
    """The running turns of these agents end; then they read the text, if there is one."""

    text: str
    to: tuple[str, ...] = ("lead",)


@dataclass(frozen=True, slots=True)
class Command:
    """A slash command, with its slash."""

    line: str


@dataclass(frozen=True, slots=True)
class Nothing:
    """An empty line."""


@dataclass(frozen=True, slots=True)
class Wrong:
    """Nothing is done; `why` says what to type instead, and the line goes back into the draft."""

    why: str
    name: str = ""
    """The name that nobody has, as it was typed."""


Typed = Say | Interrupt | Command | Nothing | Wrong


def read_line(line: str, team: Mapping[str, str], is_file: Callable[[str], bool] = lambda name: False) -> Typed:
    """What the line means. `team`: name -> life (`AgentRow.life`) of every agent that is known, the lead too.
    `is_file`: whether a name that no agent has is one of a file, which the words for the lead begin with."""
    found = _read(line, team)
    if isinstance(found, Wrong) and found.name and found.name.lower() not in team and is_file(found.name):
        words = line.strip()
        return Interrupt(words[1:].strip()) if words.startswith("!") else Say(words)
    return found


def _read(line: str, team: Mapping[str, str]) -> Typed:
    words = line.strip()
    if not words:
        return Nothing()
    if words.startswith("\\"):
        return Say(words[1:]) if words[1:].strip() else Nothing()
    if words.startswith("/"):
        return Command(words)
    if not words.startswith("!"):
        return _addressed(words, team) or Say(words)
    rest = words[1:].strip()
    found = _addressed(rest, team, wordless=True) or Say(rest)
    return Interrupt(found.text, found.to) if isinstance(found, Say) else found


def _addressed(words: str, team: Mapping[str, str], *, wordless: bool = False) -> Say | Wrong | None:
    """Words behind a name; None where no name stands before them. `wordless`: a name alone says enough."""
    found = _TO.fullmatch(words)
    if found is None:
        return None
    name, text = found[1].lower(), (found[2] or "").strip()
    living = tuple(one for one, life in team.items() if life != "stopped")
    to = living if name == ALL else (name,)
    if name != ALL and name not in living:
        return Wrong(_unknown(name, team, living), found[1])
    if not text and not wordless:
        return Wrong(f"what is {'everybody' if name == ALL else name} to read? @{name} TEXT")
    return Say(text, to)


def _unknown(name: str, team: Mapping[str, str], living: Sequence[str]) -> str:
    near = difflib.get_close_matches(name, living, n=1, cutoff=0.5)
    what = f"{name} has stopped" if name in team else f"there is no agent {name}"
    meant = f"Did you mean @{near[0]}? " if near else ""
    there = ", ".join(f"@{one}" for one in living) or "nobody yet"
    return f"{what}. {meant}There are: {there}. For the lead as it stands: \\@{name} ..."


def lives_of(team: Sequence[AgentSummary]) -> dict[str, str]:
    """Name -> life, for `read_line`."""
    return {one.name: one.life for one in team}


async def heed(session: OpenSession, typed: Say | Interrupt | Wrong) -> tuple[Block, bool]:
    """Send it. Returns what to tell the person - when it is read, where that is not at once; nothing else - and whether
    nothing was sent, so that the line is kept."""
    if isinstance(typed, Wrong):
        return block(typed.why, "warn"), True
    try:
        return Block(await _sent(session, typed)), False
    except UsageError as refused:
        return block(str(refused), "warn"), True


async def _sent(session: OpenSession, typed: Say | Interrupt) -> tuple[Line, ...]:
    team = {one.name: one for one in session.team()}
    told: list[Line] = []
    for name in typed.to:
        found = team.get(name)
        busy = found is not None and found.life in AT_WORK
        if isinstance(typed, Interrupt) and busy:
            await session.interrupt(name)
            told.append(Line(cut_words(name, found.waiting_for if found else "", spoken=bool(typed.text)), "dim"))
        elif isinstance(typed, Interrupt) and not typed.text:
            told.append(Line(f"{name} has no turn to interrupt", "dim"))
        if typed.text:
            await session.say(typed.text, name)
        if found is not None and not isinstance(typed, Interrupt):
            told += _lines(queued_words(name, found.life, found.waiting_for))
    return tuple(told)


def _lines(words: str) -> Iterator[Line]:
    if words:
        yield Line(words, "dim")


def queued_words(name: str, life: str, waiting_for: str = "") -> str:
    """When an agent in this state reads what it is told; empty: at once."""
    if life == "crashed":
        return f"queued: {name} is parked after crashes; it reads this when it goes on (callboard team resume {name})"
    if life == "stopping":
        return f"{name} is about to stop: it may not read this any more"
    if life not in ("working", "waiting") or waiting_for.startswith("question "):
        return ""
    cut = f"; {'!' if name == 'lead' else f'!@{name} '}TEXT interrupts it"
    return f"queued: {name} reads it {_when(waiting_for)}{cut}"


def cut_words(name: str, waiting_for: str = "", *, spoken: bool) -> str:
    """What an interrupt does."""
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
