"""When a live or resumed session enters plan mode, the next request offers `submit_plan` and explains it."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from pathlib import Path

import anyio
import pytest
from tests.cli.commands.command import Command
from tests.cli.repl.screen import Screen

from callboard.adapters.models.rehearsal.emulator import serve
from callboard.adapters.models.rehearsal.replies import SimulatedReply, SimulatedRequest, call, say
from callboard.adapters.models.rehearsal.scenario import Scenario

pytestmark = [pytest.mark.anyio, pytest.mark.parametrize("anyio_backend", ["asyncio"])]
ON, OVER = "You are in plan mode", "You are no longer in plan mode"


@dataclass
class Service:
    """A model behind HTTP that submits a plan if possible and requested, and the lead's requests."""

    command: Command
    requests: list[SimulatedRequest] = field(default_factory=list[SimulatedRequest])

    def model(self, request: SimulatedRequest) -> SimulatedReply:
        if request.purpose != "turn":
            return say("A summary.")
        self.requests.append(request)
        newest = json.dumps(request.messages[-1])
        if "Submit it" in newest and "submit_plan" in request.tools:
            return call("submit_plan", {"plan": "Thatch the roof."})
        return say("Refused." if "you are not in plan mode" in newest else "Done.")

    @property
    def offers(self) -> list[bool]:
        return ["submit_plan" in request.tools for request in self.requests]

    def newest(self, text: str) -> bool:
        """Return whether the newest request contains this in its newest message."""
        return text in json.dumps(self.requests[-1].messages[-1])

    async def run(self, *args: str) -> str:
        ran = await anyio.to_thread.run_sync(lambda: self.command.run("run", *args))
        assert ran.code == 0, ran.err
        return ran.out


@pytest.fixture
async def service(tmp_path: Path) -> AsyncIterator[Service]:
    service = Service(Command(tmp_path))
    emulator = await serve(Scenario.from_callable(service.model))
    key = {"ANTHROPIC_BASE_URL": emulator.url, "ANTHROPIC_API_KEY": "any"}
    service.command.env |= {"MODEL_ID": "claude-sonnet-4-5", **key}
    try:
        yield service
    finally:
        await emulator.aclose()


@pytest.mark.slow
async def test_a_resume_in_plan_mode_offers_the_tool_with_its_first_request(service: Service) -> None:
    await service.run("Look.")
    assert service.offers == [False]
    await service.run("--continue", "--permission-mode", "plan", "--yes", "Submit it.")
    assert service.offers == [False, True, True]
    assert ON in json.dumps(service.requests[1].messages)
    assert ON not in json.dumps(service.requests[0].body)
    assert not service.newest(OVER), "the decision on the plan names the mode"


@pytest.mark.slow
async def test_the_tool_stays_listed_after_plan_mode_and_is_refused(service: Service) -> None:
    await service.run("--permission-mode", "plan", "Look.")
    assert service.newest(ON)
    await service.run("--continue", "--permission-mode", "acceptEdits", "Go on.")
    assert service.newest(OVER)
    assert service.newest("the mode acceptEdits")
    assert await service.run("--continue", "Submit it.") == "Refused.\n"
    await service.run("--continue", "--permission-mode", "plan", "Look again.")
    assert service.newest(ON)
    assert len({json.dumps([one.body["tools"], one.body["system"]]) for one in service.requests}) == 1, (
        "every request has the same beginning, so it is read from the cache"
    )


@pytest.mark.slow
@pytest.mark.parametrize("way", ["command", "keys"])
async def test_plan_mode_at_the_prompt_offers_the_tool_with_the_next_request(service: Service, way: str) -> None:
    def play() -> None:
        screen = Screen(service.command)
        try:
            screen.wait(r"^> ?$")
            screen.type("Look.", "Enter")
            screen.wait(r"^lead Done\.$")
            screen.wait(r"mode default \|")
            if way == "keys":  # through plan mode and back: the model sees no change
                for mode in ("acceptEdits", "plan", "default"):
                    screen.type("BTab")
                    screen.wait(rf"mode {mode} \|")
                screen.type("Look again.", "Enter")
                screen.wait(r"^lead Done\.$(.|\n)*^lead Done\.$")
                screen.type("BTab")
                screen.wait(r"mode acceptEdits \|")
                screen.type("BTab")
            else:
                screen.type("/mode plan", "Enter")
            screen.wait(r"mode plan \|")
            screen.type("Submit it.", "Enter")
            screen.wait(r"approve this plan\?")
        finally:
            screen.close()

    await anyio.to_thread.run_sync(play)
    looks = 2 if way == "keys" else 1
    assert service.offers[: looks + 1] == [False] * looks + [True]
    assert ON in json.dumps(service.requests[looks].messages)
    assert ON not in json.dumps(service.requests[looks - 1].messages)
