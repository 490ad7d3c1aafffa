"""A fork begins with the options of the session that it continues; its own options take precedence."""

from __future__ import annotations

from pathlib import Path

import anyio
import pytest
from tests.cli.commands.command import Command

from callboard.adapters.storage.sqlite import open_store
from callboard.core.decoding import read_event
from callboard.core.keys import journal
from callboard.engine.commands import sessions_of
from callboard.ports.store_reading import records_of
from callboard.types.agent_spec import AgentSpec
from callboard.types.events import AgentStarted, PromptSet

SCENARIO = "agents: {lead: [{reply: Done., repeat: forever}]}\n"
ROOFER = "---\nname: roofer\ndescription: Roofs.\neffort: low\n---\nYou are the roofer.\n"


@pytest.fixture
def command(tmp_path: Path) -> Command:
    return Command(tmp_path)


def begun(command: Command) -> list[tuple[AgentSpec, str]]:
    """Return the first spec and system prompt of the lead of each session, oldest first."""

    async def reading() -> list[tuple[AgentSpec, str]]:
        (state,) = (command.workspace.parent / "state/callboard").iterdir()
        store = await open_store(state)
        leads = list[tuple[AgentSpec, str]]()
        for row in reversed(await sessions_of(store)):
            stream = journal(row.id, "lead", 1)
            events = [read_event(record.data, stream, record.seq) for record in await records_of(store, stream)]
            spec = next(event.spec for event in events if isinstance(event, AgentStarted))
            prompt = next(event.system for event in events if isinstance(event, PromptSet))
            leads.append((spec, (await store.get_blob(prompt)).decode()))
        await store.aclose()
        return leads

    return anyio.run(reading)


def test_a_fork_keeps_the_options_of_its_session(command: Command) -> None:
    agents = command.workspace.parent / "config/callboard/agents"
    agents.mkdir(parents=True)
    (agents / "roofer.md").write_text(ROOFER)
    given = ("--agent", "roofer", "--effort", "high", "--append-system-prompt", "SPEAK LATIN.")
    tools = ("--disallowed-tools", "Bash", "--thinking", "disabled", "--json-schema", '{"title": "Shingle"}')
    assert command.run_inline("run", "--model", command.scenario(SCENARIO), *given, *tools, "Hi.").code in (0, 1)
    assert command.run_inline("run", "-c", "--fork-session", "And?").code == 0
    own = ("--agent", "lead", "--effort", "low", "--append-system-prompt", "SPEAK GREEK.")
    assert command.run_inline("run", "-c", "--fork-session", *own, "And?").code == 0
    (first, prompt), (fork, kept), (other, greek) = begun(command)
    assert (fork.agent_type, fork.effort, fork.instructions) == ("roofer", "high", "You are the roofer.")
    assert (fork.tools, fork.thinking) == (first.tools, first.thinking)
    assert "bash" not in fork.tools
    assert ("SPEAK LATIN." in kept, "Shingle" in prompt, "Shingle" in kept) == (True, True, False)
    assert (other.agent_type, other.effort, "bash" in other.tools) == ("lead", "low", False)
    assert ("SPEAK LATIN." in greek, "SPEAK GREEK." in greek) == (False, True)
