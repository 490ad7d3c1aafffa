"""What a person typed with a slash, as an agent hears it: the one place for every face, process and schedule.

The envelope keeps the short form. What it becomes is made once, when it is delivered, and stands in the record of that:
a resume repeats nothing. A command that was cut while it ran, and that does more than read, is not run again.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from callboard.core.bus.authority import raises
from callboard.core.bus.mail import defused_parts
from callboard.core.skills.typed import begins_with_one, typed
from callboard.engine.loop import Agent
from callboard.engine.skills.filling import Started, text_of
from callboard.engine.skills.mentions import brought, named
from callboard.engine.skills.using import headed, loaded, run_fork
from callboard.words import events as ev
from callboard.words.context import Placed
from callboard.words.errors import ToolRefused
from callboard.words.skills import SkillText
from callboard.words.values import Envelope, Json

_LED = "The person started this with a slash command. Do what it says, with what stands beside its name above."


@dataclass(frozen=True, slots=True)
class Expanded:
    """What stands behind the short form in the conversation, and what is recorded with it."""

    blocks: tuple[Placed, ...] = ()
    events: tuple[ev.Event, ...] = ()


def expands(agent: Agent, envelope: Envelope) -> bool:
    """Whether it is a person's or a schedule's, and begins with a command that there is, or names a resource of an MCP
    server."""
    if not (raises(envelope) or envelope.type == "scheduled"):
        return False
    if named(agent, envelope):
        return True
    return begins_with_one(envelope.content) and typed(envelope.content, lambda name: _known(agent, name)) is not None


def _known(agent: Agent, name: str) -> bool:
    ports = agent.host.ports
    prompts = ports.prompt_source.prompts() if ports.prompt_source is not None else ()
    return any(one.name == name for one in (*ports.skills.commands(), *prompts))


async def expanded(agent: Agent, envelope: Envelope) -> Expanded:
    """What became of it. Raises `ToolRefused` that names the command and says why it does nothing."""
    found = typed(envelope.content, lambda name: _known(agent, name))
    if found is None:
        return Expanded(await brought(agent, envelope))
    if envelope.id in agent.state.commands_begun:
        raise ToolRefused(
            f"/{found.names[0]}: it was cut off while its commands ran. What they did is unknown: say it again"
        )
    whole = Expanded()
    for number, name in enumerate(found.names):
        last = number == len(found.names) - 1
        one = await _one(agent, envelope, name, _Place(number, found.arguments, last))
        whole = Expanded((*whole.blocks, *one.blocks), (*whole.events, *one.events))
    return Expanded((*whole.blocks, *await brought(agent, envelope)), whole.events)


@dataclass(frozen=True, slots=True)
class _Place:
    """Where a command stands in what was typed."""

    number: int
    arguments: str
    last: bool


async def _one(agent: Agent, envelope: Envelope, name: str, place: _Place) -> Expanded:
    ports = agent.host.ports
    skill = ports.skills.command(name)
    if skill is None:
        assert ports.prompt_source is not None, "a name that is no skill's is a prompt's"
        parts = await ports.prompt_source.prompt(name, place.arguments)
        return Expanded(tuple(_placed(part) for part in defused_parts(parts)))
    if envelope.type == "scheduled" and not skill.for_model:
        raise ToolRefused(f"/{name}: it is for a person to start (disable-model-invocation), not for a schedule")

    async def begin(commands: Sequence[str]) -> None:
        now = agent.host.clock.now()
        await agent.record(ev.SkillCommandsBegan(at=now, envelope=envelope.id, commands=tuple(commands)))

    key = f"{envelope.id}.{place.number}"
    started = Started(skill, place.arguments, key, appends=place.last)
    if skill.fork:
        use = await run_fork(agent, started, key, begin)
        return Expanded((_text(f"[The skill {name} ran in a subagent. It answered:]\n{use.text}"),))
    text = await text_of(agent, started, begin)
    return await _read(agent, skill, text)


async def _read(agent: Agent, skill: SkillText, text: str) -> Expanded:
    whole = "\n".join([*headed(skill), _LED, "", text or "(it has no text)"])
    return Expanded((_text(whole),), (await loaded(agent, skill, whole),))


def _text(text: str) -> Placed:
    return _placed({"type": "text", "text": text})


def _placed(part: Json) -> Placed:
    return Placed(data=part, source="skill")
