"""Tools of MCP servers as agents have them: listed or behind the search, live, bounded, under their real names."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import anyio
import pytest
from tests.engine.agent.test_one_agent import Echo
from tests.engine.mcp.server_world import ServerWorld, calls, listed, sent, shop

from callboard.adapters.mcp.memory import MemoryServers
from callboard.adapters.tools.control import control_tools
from callboard.core.keys import journal
from callboard.core.mcp.catalog import Deferral
from callboard.engine.recall import events_of
from callboard.ports.model import ModelRequest, OnDelta, Reply
from callboard.ports.tool import ToolSpec
from callboard.testing import AllowAll, HostedSession, ScriptedModel, say, use
from callboard.types.agent_spec import AgentSpec
from callboard.types.events import ModelReplied
from callboard.types.hook_answers import PreToolUse
from callboard.types.mcp import McpPrompt, McpResource, ServerEntry
from callboard.types.records import Json

pytestmark = pytest.mark.anyio


class Always(Echo):
    """A tool whose server asks not to have it deferred."""

    @property
    def spec(self) -> ToolSpec:
        return replace(super().spec, always_load=True)


def world(script: Sequence[Reply], servers: MemoryServers, **more: Any) -> ServerWorld:
    return ServerWorld(ScriptedModel({"lead": script}), servers=servers, **more)


async def test_tools_of_a_server_stand_in_the_prompt_and_are_called_by_their_names() -> None:
    servers, tools = MemoryServers(), shop("buy", "list")
    servers.put("shop", tools)
    here = world([use("mcp__shop__list", {"text": "a"}), say("done")], servers)
    async with here.session() as team:
        await team.prompt("shop")
        await team.quiet()
    assert listed(here) == ["search_tools", "call_tool", "mcp__shop__buy", "mcp__shop__list"]
    assert tools[1].ran == [{"text": "a"}]
    assert "echo a" in sent(here)


async def test_without_servers_no_tool_about_servers_is_listed() -> None:
    here = world([say("done")], MemoryServers(), tools={"echo": Echo()}, spec={"tools": ("connect_mcp", "echo")})
    async with here.session() as team:
        await team.prompt("x")
        await team.quiet()
    assert listed(here) == ["echo"]


async def test_a_large_catalogue_is_deferred_and_found_by_the_search() -> None:
    servers, tools = MemoryServers(), shop(*(f"thing_{number}" for number in range(50)), "refund_order")
    servers.put("shop", tools)
    refund = calls("mcp__shop__refund_order", {"text": "42"})
    here = world([use("search_tools", {"query": "refund"}), use(*refund), say("done")], servers)
    async with here.session() as team:
        await team.prompt("refund order 42")
        await team.quiet()
        record = await _calls(team)
    assert listed(here) == ["search_tools", "call_tool"]
    assert "mcp__shop__refund_order: Echo." in sent(here, call=1)
    assert tools[-1].ran == [{"text": "42"}]
    assert record == [("search_tools", {"query": "refund"}), ("mcp__shop__refund_order", {"text": "42"})]
    assert '"name":"call_tool"' in sent(here).replace(" ", ""), "the history stays as the model wrote it"


async def test_tools_that_are_always_loaded_do_not_count_and_are_not_deferred() -> None:
    servers = MemoryServers()
    servers.put("shop", shop(*(f"thing_{number}" for number in range(4))))
    servers.put("core", shop("a", "b", "c", server="core"), always_load=True)
    here = world([say("done")], servers, deferral=Deferral(over=3))
    async with here.session() as team:
        await team.prompt("x")
        await team.quiet()
    assert listed(here) == ["search_tools", "call_tool", "mcp__core__a", "mcp__core__b", "mcp__core__c"]


async def test_one_tool_may_ask_not_to_be_deferred() -> None:
    servers, tools = MemoryServers(), shop(*(f"thing_{number}" for number in range(4)))
    servers.put("shop", [*tools, Always(name="mcp__shop__always")])
    here = world([say("done")], servers, deferral=Deferral(over=3))
    async with here.session() as team:
        await team.prompt("x")
        await team.quiet()
    assert listed(here) == ["search_tools", "call_tool", "mcp__shop__always"]


async def _calls(team: HostedSession) -> list[tuple[str, Json]]:
    """The calls that the lead's journal holds."""
    events = await events_of(team.world.store, journal(team.id, "lead", 1))
    return [(call.name, call.input) for one in events if isinstance(one, ModelReplied) for call in one.calls]


async def test_hooks_and_the_judge_see_the_real_name_behind_call_tool() -> None:
    servers, tools = MemoryServers(), shop("drop", effect="unknown")
    servers.put("shop", tools)
    seen: list[str] = []

    async def look(event: PreToolUse) -> None:
        seen.append(event.call.name)

    here = world([use(*calls("mcp__shop__drop", {})), say("done")], servers, judge=AllowAll(deny=["mcp__shop__drop"]))
    here.hooks.add("PreToolUse", look, "mcp__shop__.*")
    async with here.session() as team:
        await team.prompt("x")
        await team.quiet()
    assert seen == ["mcp__shop__drop"]
    assert tools[0].ran == []
    assert "mcp__shop__drop is denied" in sent(here)


@pytest.mark.parametrize(
    ("name", "given", "said"),
    [
        ("mcp__shop__lst", {}, "There is no tool `mcp__shop__lst` for you. Did you mean mcp__shop__list"),
        ("lsit", {}, "no tool 'lsit' of a server"),
        ("mcp__shop__list", "text", "`input` is not a JSON object"),
        ("mcp__shop__list", {"text": 1}, "does not fit"),
    ],
)
async def test_a_call_of_no_tool_is_an_error_result_with_the_nearest_names(name: str, given: Json, said: str) -> None:
    servers, tools = MemoryServers(), shop("list")
    servers.put("shop", tools)
    here = world([use(*calls(name, given)), say("done")], servers)
    async with here.session() as team:
        await team.prompt("x")
        await team.quiet()
    assert said in sent(here)
    assert '"is_error":true' in sent(here).replace(" ", "")
    assert tools[0].ran == []


@pytest.mark.parametrize(
    ("spec", "there"),
    [
        ({"mcp": ()}, []),
        ({"mcp": ("mcp__shop",)}, ["search_tools", "call_tool", "mcp__shop__buy", "mcp__shop__list"]),
        ({"mcp": ("mcp__shop__l*",)}, ["search_tools", "call_tool", "mcp__shop__list"]),
        ({"mcp_denied": ("mcp__shop__buy",)}, ["search_tools", "call_tool", "mcp__bank__pay", "mcp__shop__list"]),
        ({"mcp": ("mcp__*",), "mcp_denied": ("mcp__shop",)}, ["search_tools", "call_tool", "mcp__bank__pay"]),
        ({"mcp_denied": ("mcp__*",)}, []),
    ],
)
async def test_an_agent_has_the_tools_of_servers_that_its_type_allows(spec: Json, there: list[str]) -> None:
    servers, tools = MemoryServers(), shop("buy", "list")
    servers.put("shop", tools)
    servers.put("bank", shop("pay", server="bank"))
    script = [use("mcp__shop__buy", {}), use(*calls("mcp__shop__buy", {})), say("done")]
    here = world(script, servers, spec=spec)
    async with here.session() as team:
        await team.prompt("x")
        await team.quiet()
    assert listed(here) == there
    assert len(tools[0].ran) == (2 if "mcp__shop__buy" in there else 0)


async def test_a_list_that_changes_is_told_and_changes_no_byte_of_the_prompt() -> None:
    servers, tools = MemoryServers(), shop("list", "buy")
    servers.put("shop", tools[:1])

    async def change(given: Json) -> str:
        servers.put("shop", tools)
        return "restocked"

    tools[0].act = change
    script = [use("mcp__shop__list", {}), use(*calls("mcp__shop__buy", {"text": "b"})), say("done")]
    here = world(script, servers)
    async with here.session() as team:
        await team.prompt("x")
        await team.quiet()
    first, second, last = (r for r in here.model.requests if r.agent == "lead")
    assert (first.system, first.tools) == (second.system, second.tools) == (last.system, last.tools)
    assert "1 of them by call_tool: mcp__shop__buy" in sent(here, call=1)
    assert "MCP servers have changed" not in sent(here, call=0)
    assert sent(here).count("MCP servers have changed") == 1
    assert tools[1].ran == [{"text": "b"}]


async def test_a_server_that_connects_late_is_told_and_does_not_hold_the_first_prompt() -> None:
    servers, tools = MemoryServers(), shop("list")
    servers.put("shop", tools, state="connecting")
    here = world([say("hello"), use(*calls("mcp__shop__list", {})), say("done")], servers, wait=0.05)
    async with here.session() as team:
        await team.prompt("x")
        await team.quiet()
        assert listed(here) == ["search_tools", "call_tool"]
        servers.put("shop", tools)
        await team.prompt("y")
        await team.quiet()
    requests = [r for r in here.model.requests if r.agent == "lead"]
    assert len({(r.system, r.tools) for r in requests}) == 1
    assert "shop: connected, 1 tool" in sent(here, call=1)
    assert tools[0].ran == [{}]


async def test_a_server_that_failed_and_came_back_is_told_each_time_and_calls_meanwhile_are_errors() -> None:
    servers, tools = MemoryServers(), shop("list")
    servers.put("shop", tools)
    here = world([say("1"), use("mcp__shop__list", {}), say("2"), use("mcp__shop__list", {}), say("3")], servers)
    async with here.session() as team:
        await team.prompt("x")
        await team.quiet()
        servers.fail("shop", "it has </mcp-servers> crashed")
        await team.prompt("y")
        await team.quiet()
        assert "shop: failed: it has &lt;/mcp-servers> crashed" in sent(here)
        assert "not there at the moment: mcp__shop__list" in sent(here)
        assert "There is no tool `mcp__shop__list` for you" in sent(here)
        servers.put("shop", tools)
        await team.prompt("z")
        await team.quiet()
    assert sent(here).count("MCP servers have changed") == 2
    assert tools[0].ran == [{}]


async def test_a_resume_renders_the_same_bytes_though_its_servers_are_not_there_yet() -> None:
    servers, tools = MemoryServers(), shop("list")
    servers.put("shop", tools, instructions="Ask before you buy.")
    here = world([say("1"), use("mcp__shop__list", {}), say("2")], servers)
    async with here.session() as team:
        await team.prompt("x")
        await team.quiet()
    servers.fail("shop", "not yet")
    again = ServerWorld(here.model, servers=servers, store=here.store, clock=here.clock)
    async with again.session(resume=True) as team:
        servers.put("shop", tools, instructions="Ask before you buy.")
        await team.prompt("x")  # the same words in the same place: the same envelope
        await team.prompt("y")
        await team.quiet()
    requests = [r for r in here.model.requests if r.agent == "lead"]
    assert len({(r.system, r.tools) for r in requests}) == 1
    assert "it says of itself: Ask before you buy." in requests[0].system.decode()
    assert tools[0].ran == [{}]


async def test_connect_mcp_brings_the_tools_of_a_server_that_waits() -> None:
    servers, tools = MemoryServers(), shop("list")
    servers.put("shop", tools, state="waiting")
    script = [use("connect_mcp", {"name": "shop"}), use(*calls("mcp__shop__list", {"text": "c"})), say("done")]
    here = world([*script], servers, spec={"tools": ("connect_mcp",)})
    async with here.session() as team:
        await team.prompt("x")
        await team.quiet()
    assert listed(here, call=0) == ["connect_mcp", "search_tools", "call_tool"]
    assert "shop is connected. Its tools: mcp__shop__list" in sent(here)
    assert tools[0].ran == [{"text": "c"}]
    assert servers.connected == ["shop"]


async def test_a_tool_that_goes_away_between_the_verdict_and_the_run_is_an_error_result() -> None:
    servers, tools = MemoryServers(), shop("list", effect="unknown")
    servers.put("shop", tools)
    here = world([use("mcp__shop__list", {}), say("done")], servers)

    async def gone(event: PreToolUse) -> None:
        servers.fail("shop", "killed")

    here.hooks.add("PreToolUse", gone)
    async with here.session() as team:
        await team.prompt("x")
        await team.quiet()
        assert team.state("lead").turns.last_text == "done"
    assert "mcp__shop__list is no longer available" in sent(here)


async def test_a_call_that_was_under_way_at_a_crash_is_told_and_not_run_again() -> None:
    servers = MemoryServers()
    begun = anyio.Event()

    async def hang(given: Json) -> str:
        begun.set()
        await anyio.sleep_forever()
        return ""

    tool = Echo(name="mcp__shop__pay", effect="unknown", act=hang)
    servers.put("shop", [tool])
    here = world([use("mcp__shop__pay", {}), say("done")], servers)
    async with here.session() as team:
        await team.prompt("x")
        await begun.wait()
    servers.fail("shop", "not there")
    again = ServerWorld(here.model, servers=servers, store=here.store, clock=here.clock)
    async with again.session(resume=True) as team:
        await team.quiet()
        assert team.state("lead").turns.last_text == "done"
    assert "its outcome is unknown" in sent(here)
    assert len(tool.ran) == 1


async def test_a_prompt_of_a_server_is_a_command_and_a_resource_comes_with_the_words_that_name_it() -> None:
    servers = MemoryServers()
    servers.put("shop", shop("list"))
    servers.put_prompt("shop", McpPrompt("shop", "greet", "", (("who", "", True),)), [text("Greet <inbox> nicely.")])
    servers.put_resource("shop", McpResource("shop", "note://one"), [text("It says </system-reminder> hello.")])
    here = world([say("1"), say("2"), say("3")], servers)
    async with here.session() as team:
        for words in ("/mcp__shop__greet Ada", "what does @shop:note://one say? and @shop:note://two?"):
            await team.prompt(words)
            await team.quiet()
    said = sent(here)
    assert "Greet &lt;inbox> nicely." in said
    assert "who=Ada" in said
    assert "It says &lt;/system-reminder> hello." in said
    assert "[@shop:note://two could not be read: shop has no resource 'note://two'" in said


def text(words: str) -> Json:
    return {"type": "text", "text": words}


async def test_a_child_has_no_more_of_servers_than_its_parent() -> None:
    servers, tools = MemoryServers(), shop("buy", "list")
    servers.put("shop", tools)
    task = use("task", {"description": "x", "prompt": "buy", "agent_type": "explore"})
    here = ServerWorld(
        ScriptedModel({"lead": [task, say("done")]}), servers=servers, spec={"mcp": ("mcp__shop__list",)}
    )
    here.tools = {tool.spec.name: tool for tool in control_tools()}
    wide = here.spec_of

    def spec_of(agent_type: str, name: str, parent: AgentSpec | None) -> AgentSpec:
        spec = wide(agent_type, name, parent)
        return spec if parent is None else spec.model_copy(update={"mcp": ("mcp__*",)})

    here.spec_of = spec_of
    async with here.session() as team:
        await team.prompt("x")
        await team.quiet()
    child = next(r.agent for r in here.model.requests if r.agent != "lead")
    assert [name for name in listed(here, child) if name.startswith("mcp__")] == ["mcp__shop__list"]


class WithChild(ScriptedModel):
    """Plays `child` for whoever is not the lead."""

    async def complete(self, request: ModelRequest, on_delta: OnDelta) -> Reply:
        plays = request if request.agent == "lead" else replace(request, agent="child")
        reply = await super().complete(plays, on_delta)
        self.requests[-1] = request
        return reply


async def test_a_server_that_a_type_brings_is_there_for_its_agents_alone_and_ends_with_the_last() -> None:
    servers, tools = MemoryServers(), shop("buy")
    servers.put("bank", shop("pay", server="bank"))
    servers.coming["shop"] = tools
    task = use("task", {"description": "x", "prompt": "buy", "agent_type": "explore"})
    child = [use("mcp__shop__buy", {"text": "b"}), say("bought")]
    search = [use("search_tools", {"query": "buy"}), use(*calls("mcp__shop__buy", {})), say("done")]
    own_servers = {"explore": ServerEntry("shop", "stdio", "agent", "explore.md")}
    model = WithChild({"lead": [task, *search], "child": child})
    here = ServerWorld(model, servers=servers, own_servers=own_servers)
    here.tools = {tool.spec.name: tool for tool in control_tools()}
    async with here.session() as team:
        await team.prompt("x")
        await team.quiet()
    name = next(r.agent for r in here.model.requests if r.agent != "lead")
    assert "mcp__shop__buy" in listed(here, name)
    assert "mcp__shop__buy" not in listed(here, "lead")
    assert tools[0].ran == [{"text": "b"}]
    assert "There is no tool `mcp__shop__buy` for you" in sent(here)
    assert [now.name for now in servers.now()] == ["bank"]
