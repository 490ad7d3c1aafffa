"""Models by the names that people type: which model the service is asked, over real HTTP."""

from __future__ import annotations

import json
from collections.abc import AsyncGenerator
from functools import partial
from pathlib import Path

import anyio.to_thread
import pytest
from tests.cli.commands.command import Command, Ran

from callboard.adapters.models.rehearsal.api import CATALOGUE, ModelSpec
from callboard.adapters.models.rehearsal.emulator import serve
from callboard.adapters.models.rehearsal.replies import SimulatedReply, SimulatedRequest, say
from callboard.adapters.models.rehearsal.scenario import Scenario

pytestmark = [pytest.mark.anyio, pytest.mark.parametrize("anyio_backend", ["asyncio"])]
TOMORROW = "claude-opus-9"
"""A model of the service that nothing here lists."""


class Service:
    """The command at an emulator that answers every model with `done`."""

    def __init__(self, command: Command) -> None:
        self.command, self.models = command, list[str]()
        self.environ: dict[str, str] = {"ANTHROPIC_API_KEY": "any"}

    def answer(self, request: SimulatedRequest) -> SimulatedReply:
        """Note the model that is asked."""
        self.models.append(request.model)
        return say("done")

    async def run(self, *line: str, stdin: str | None = None, **environ: str) -> Ran:
        """Run the command; `models` are those of this run."""
        self.models.clear()
        run = partial(self.command.run, *line, stdin=stdin, **self.environ, **environ)
        return await anyio.to_thread.run_sync(run)


@pytest.fixture
async def service(tmp_path: Path) -> AsyncGenerator[Service]:
    service = Service(Command(tmp_path))
    models = {**CATALOGUE, TOMORROW: ModelSpec(TOMORROW, 1_000_000, 128_000)}
    emulator = await serve(Scenario.from_callable(service.answer, models=models))
    service.environ["ANTHROPIC_BASE_URL"] = emulator.url
    yield service
    await emulator.aclose()


@pytest.mark.parametrize(
    ("line", "environ", "settings", "model"),
    [
        (("--model", "opus"), {}, {}, "claude-opus-5-5"),
        (("--model", "sonnet[1m]"), {}, {}, "claude-sonnet-5-5"),
        (("--model", "claude-sonnet-4-5[1m]"), {}, {}, "claude-sonnet-4-5"),
        ((), {"ANTHROPIC_MODEL": "haiku"}, {}, "claude-haiku-5-5"),
        ((), {}, {"model": "opus"}, "claude-opus-5-5"),
        (("--settings", '{"model": "haiku"}'), {}, {"model": "opus"}, "claude-haiku-5-5"),
        (("--model", TOMORROW), {}, {}, TOMORROW),
    ],
)
async def test_the_model_that_is_asked(
    service: Service, line: tuple[str, ...], environ: dict[str, str], settings: dict[str, str], model: str
) -> None:
    if settings:
        file = service.command.workspace.parent / ".claude" / "settings.json"
        file.parent.mkdir()
        file.write_text(json.dumps(settings))
    ran = await service.run("-p", "go", *line, **environ)
    assert (ran.code, ran.out, service.models) == (0, "done\n", [model]), ran.err
    assert ("is not listed: assuming" in ran.err) is (model == TOMORROW)
    assert ("cost unknown" in ran.err) is (model == TOMORROW)


async def test_a_client_and_a_resumed_session_may_name_models_by_alias(service: Service) -> None:
    def control(number: int, model: str | None) -> str:
        request = {"subtype": "set_model", "model": model}
        return json.dumps({"type": "control_request", "request_id": f"r{number}", "request": request})

    prompt = json.dumps({"type": "user", "message": {"role": "user", "content": "go"}})
    driven = ("--output-format", "stream-json", "--input-format", "stream-json", "--model", "opus")
    lines = (prompt, control(1, "haiku"), prompt, control(2, None), prompt, control(3, TOMORROW), prompt)
    ran = await service.run(*driven, stdin="".join(f"{line}\n" for line in lines))
    answers = [message["response"] for message in ran.messages if message["type"] == "control_response"]
    assert [answer["subtype"] for answer in answers] == ["success"] * 3, answers
    assert set(service.models) <= {"claude-opus-5-5", "claude-haiku-5-5", TOMORROW}
    assert (await service.run("-p", "-c", "--model", "sonnet", "go")).code == 0
    assert service.models == ["claude-sonnet-5-5"]
