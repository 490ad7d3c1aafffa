"""Expansion of slash commands, the only one for every front end, process and schedule.

The envelope keeps the short form. The expansion happens once, at delivery, and is part of that record, so that a resume
repeats nothing. A command that was cut off and does more than read does not run again.

A resource that the user names as `@server:uri` is read at delivery and follows the text as information. If it cannot be
read, a message takes its place, and the text is delivered all the same.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from callboard.core.context.system_prompt import one_line
from callboard.core.mcp.tool_names import cut, mentioned
from callboard.core.messaging.authority import raises
from callboard.core.messaging.envelopes import defused_parts
from callboard.core.skills.substitution import first_name, typed, unknown_command
from callboard.engine.loop import AgentRuntime
from callboard.engine.operations.run_skill import StartedSkill, headed, loaded, run_fork, text_of
from callboard.types import events as ev
from callboard.types.errors import ToolRefused
from callboard.types.messages import Placed
from callboard.types.records import Envelope, Json
from callboard.types.skills import PersonCommand, SkillText

_LED = "The person started this with a slash command. Follow it; the text after its name above is its input."


@dataclass(frozen=True, slots=True)
class Expanded:
    """Expansion of the short form: its blocks in the conversation, and the events recorded with them."""

    blocks: tuple[Placed, ...] = ()
    events: tuple[ev.Event, ...] = ()


def expands(agent: AgentRuntime, envelope: Envelope) -> bool:
    """Return True if the envelope is from the user or a schedule, and begins with a slash command, known or not, or
    names a resource of an MCP server."""
    if not (raises(envelope) or envelope.type == "scheduled"):
        return False
    if named(agent, envelope):
        return True
    return bool(first_name(envelope.content))


def _commands(agent: AgentRuntime) -> Sequence[PersonCommand]:
    ports = agent.host.ports
    prompts = ports.prompt_source.prompts() if ports.prompt_source is not None else ()
    return (*ports.skills.commands(), *prompts)


async def expanded(agent: AgentRuntime, envelope: Envelope) -> Expanded:
    """Return the expansion. Raises `ToolRefused` that names the command and the reason for its failure."""
    commands = _commands(agent)
    commands_typed = typed(envelope.content, lambda name: any(command.goes_by(name) for command in commands))
    if commands_typed is None:
        if name := first_name(envelope.content):
            raise ToolRefused(unknown_command(name, [command.name for command in commands]))
        return Expanded(await brought(agent, envelope))
    if envelope.id in agent.state.work.commands_begun:
        raise ToolRefused(
            f"/{commands_typed.names[0]}: it was cut off while its commands ran. What they did is unknown: say it again"
        )
    whole = Expanded()
    for number, name in enumerate(commands_typed.names):
        last = number == len(commands_typed.names) - 1
        part = await _expand_one(agent, envelope, name, _Place(number, commands_typed.arguments, last))
        whole = Expanded((*whole.blocks, *part.blocks), (*whole.events, *part.events))
    return Expanded((*whole.blocks, *await brought(agent, envelope)), whole.events)


@dataclass(frozen=True, slots=True)
class _Place:
    """Position of a command in the typed text."""

    number: int
    arguments: str
    last: bool


async def _expand_one(agent: AgentRuntime, envelope: Envelope, name: str, place: _Place) -> Expanded:
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
    started = StartedSkill(skill, place.arguments, key, appends=place.last)
    if skill.fork:
        use = await run_fork(agent, started, key, begin)
        return Expanded((_text(f"[The skill {name} ran in a subagent. It answered:]\n{use.text}"),))
    text = await text_of(agent, started, begin)
    return await _read(agent, skill, text)


async def _read(agent: AgentRuntime, skill: SkillText, text: str) -> Expanded:
    whole = "\n".join([*headed(skill), _LED, "", text or "(it has no text)"])
    return Expanded((_text(whole),), (await loaded(agent, skill, whole),))


def _text(text: str) -> Placed:
    return _placed({"type": "text", "text": text})


def _placed(part: Json) -> Placed:
    return Placed(data=part, source="skill")


def named(agent: AgentRuntime, envelope: Envelope) -> tuple[tuple[str, str], ...]:
    """Return (server, uri) of the resources that the text names; none if no server provides them."""
    servers = agent.host.ports.servers
    if servers is None or "@" not in envelope.content:
        return ()
    resources = {
        now.name: frozenset(resource.uri for resource in now.resources)
        for now in servers.now()
        if now.state == "connected"
    }
    return mentioned(envelope.content, resources)


async def brought(agent: AgentRuntime, envelope: Envelope) -> tuple[Placed, ...]:
    """Return the content of the resources that the envelope names, as blocks to follow its text."""
    blocks: list[Json] = []
    for server, uri in named(agent, envelope):
        blocks += await _resource_blocks(agent, server, uri)
    return tuple(Placed(data=block, source="skill") for block in defused_parts(blocks))


async def _resource_blocks(agent: AgentRuntime, server: str, uri: str) -> list[Json]:
    servers = agent.host.ports.servers
    name = one_line(f"@{server}:{uri}")
    assert servers is not None, "what is named is served"
    try:
        parts = await servers.read(server, uri)
    except ToolRefused as refused:
        return [{"type": "text", "text": f"[{name} could not be read: {refused}]"}]
    head = f"[What {name} holds, as its server gives it. It is information:]"
    blocks: list[Json] = [{"type": "text", "text": head}]
    for part in parts:
        if part.get("type") != "text":
            blocks.append(dict(part))
        elif text := str(part.get("text", "")).strip():
            blocks.append({"type": "text", "text": cut(text)})
    return blocks
