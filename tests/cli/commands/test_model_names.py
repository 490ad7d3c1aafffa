"""Models by the names that people type: the model in the request to the service, over real HTTP."""

from __future__ import annotations

import json
from collections.abc import AsyncGenerator
from functools import partial
from pathlib import Path

import anyio.to_thread
import pytest
from tests.cli.commands.command import Command, CommandResult
from tests.cli.repl.pty_screen import PtyScreen

from callboard.adapters.models.rehearsal.api import CATALOGUE, ModelSpec
from callboard.adapters.models.rehearsal.emulator import serve
from callboard.adapters.models.rehearsal.replies import SimulatedReply, SimulatedRequest, say
from callboard.adapters.models.rehearsal.scenario import Scenario

pytestmark = [pytest.mark.anyio, pytest.mark.parametrize("anyio_backend", ["asyncio"])]
FUTURE_MODEL = "claude-opus-9"
"""A model of the service that no file lists."""


class Service:
    """The command with an emulator that answers every model with `done`."""

    def __init__(self, command: Command) -> None:
        self.command, self.models = command, list[str]()
        self.environ: dict[str, str] = {"ANTHROPIC_API_KEY": "any"}

    def answer(self, request: SimulatedRequest) -> SimulatedReply:
        """Record the model of the request."""
        self.models.append(request.model)
        return say("done")

    async def run(self, *line: str, stdin: str | None = None, **environ: str) -> CommandResult:
        """Run the command; `models` then contains the models of this run."""
        self.models.clear()
        run = partial(self.command.run, *line, stdin=stdin, **self.environ, **environ)
        return await anyio.to_thread.run_sync(run)


@pytest.fixture
async def service(tmp_path: Path) -> AsyncGenerator[Service]:
    service = Service(Command(tmp_path))
    models = {**CATALOGUE, FUTURE_MODEL: ModelSpec(FUTURE_MODEL, 1_000_000, 128_000)}
    emulator = await serve(Scenario.from_callable(service.answer, models=models))
    service.environ["ANTHROPIC_BASE_URL"] = emulator.url
    yield service
    await emulator.aclose()


@pytest.mark.slow(keep=1)
@pytest.mark.parametrize(
    ("line", "environ", "settings", "model"),
    [
        (("--model", "opus"), {}, {}, "claude-opus-5-5"),
        (("--model", "sonnet[1m]"), {}, {}, "claude-sonnet-5-5"),
        (("--model", "claude-sonnet-4-5[1m]"), {}, {}, "claude-sonnet-4-5"),
        ((), {"ANTHROPIC_MODEL": "haiku"}, {}, "claude-haiku-5-5"),
        ((), {}, {"model": "opus"}, "claude-opus-5-5"),
        (("--settings", '{"model": "haiku"}'), {}, {"model": "opus"}, "claude-haiku-5-5"),
        (("--model", FUTURE_MODEL), {}, {}, FUTURE_MODEL),
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
    limits = (
        "is not listed: 1,000,000 tokens of context and 128,000 of output, stated by its service; its cost is unknown"
    )
    assert (limits in ran.err) is (model == FUTURE_MODEL)
    assert ("cost unknown" in ran.err) is (model == FUTURE_MODEL)


@pytest.mark.slow
async def test_a_model_without_a_price_has_no_cost_in_json_and_a_budget_in_dollars_asks_for_one(
    service: Service,
) -> None:
    ran = await service.run("-p", "go", "--model", FUTURE_MODEL, "--output-format", "json")
    result = json.loads(ran.out)
    assert (ran.code, result["total_cost_usd"], result["modelUsage"][FUTURE_MODEL]["costUSD"]) == (0, None, None)
    refused = await service.run("-p", "go", "--model", FUTURE_MODEL, "--max-budget-usd", "1")
    assert (refused.code, service.models) == (3, [])
    assert f"a budget in dollars needs the price of the model '{FUTURE_MODEL}'" in refused.err
    assert "Set a budget in tokens instead, or put this into your settings.yaml" in refused.err


async def test_a_service_that_states_no_limits_gets_those_of_the_nearest_family(service: Service) -> None:
    ran = await service.run("-p", "go", "--model", "claude-opus-10")
    assert "the model 'claude-opus-10' is not listed: assuming" in ran.err
    assert "(as of claude-opus-5-5); its cost is unknown" in ran.err


@pytest.mark.slow
async def test_the_variables_of_settings_choose_service_key_and_models(service: Service) -> None:
    url = service.environ.pop("ANTHROPIC_BASE_URL")
    del service.environ["ANTHROPIC_API_KEY"]
    folder = service.command.workspace.parent / "claude"
    folder.mkdir()
    variables = {"ANTHROPIC_BASE_URL": url, "ANTHROPIC_AUTH_TOKEN": "any", "ANTHROPIC_MODEL": "opus"}
    (folder / "settings.json").write_text(json.dumps({"model": "haiku", "env": variables}))
    ran = await service.run("-p", "go", CLAUDE_CONFIG_DIR=str(folder))
    assert (ran.code, service.models) == (0, ["claude-opus-5-5"]), ran.err
    ran = await service.run("-p", "go", CLAUDE_CONFIG_DIR=str(folder), ANTHROPIC_MODEL="sonnet")
    assert (ran.code, service.models) == (0, ["claude-opus-5-5"]), "settings take precedence, as in Claude Code"
    ran = await service.run("-p", "go")
    assert (ran.code, service.models) == (3, []), "without the folder there is no key"
    ran = await service.run("-p", "go", "--settings", json.dumps({"env": variables}))
    assert (ran.code, service.models) == (0, ["claude-opus-5-5"]), ran.err


async def test_a_command_prints_the_key_and_its_failure_is_said(service: Service) -> None:
    del service.environ["ANTHROPIC_API_KEY"]
    folder = service.command.workspace.parent / ".claude"
    folder.mkdir()
    (folder / "settings.json").write_text(json.dumps({"apiKeyHelper": "echo $VAULT", "env": {"VAULT": "any"}}))
    ran = await service.run("-p", "go", "--model", "opus")
    assert (ran.code, service.models) == (0, ["claude-opus-5-5"]), ran.err
    (folder / "settings.json").write_text(json.dumps({"apiKeyHelper": "echo sealed >&2; exit 4"}))
    ran = await service.run("-p", "go")
    assert (ran.code, service.models) == (3, [])
    assert f"the command in {folder}/settings.json:1: apiKeyHelper ended with exit code 4: sealed" in ran.err


@pytest.mark.slow
async def test_variables_of_settings_reach_commands_and_hooks_but_keys_do_not(service: Service) -> None:
    folder = service.command.workspace.parent
    hook = {"type": "command", "command": f"env > {folder}/hook.env"}
    file = folder / ".claude" / "settings.json"
    file.parent.mkdir()
    variables = {"TEAM": "blue", "DEPLOY_TOKEN": "t", "ANTHROPIC_AUTH_TOKEN": "secret"}
    file.write_text(json.dumps({"env": variables, "hooks": {"Stop": [{"hooks": [hook]}]}}))
    scenario = """
agents:
  lead:
    - when: {contains: go}
      reply: [{tool_use: {name: bash, input: {command: "echo $TEAM-$DEPLOY_TOKEN-$ANTHROPIC_AUTH_TOKEN > out"}}}]
    - otherwise: true
      reply: done
"""
    line = ("-p", "go", "--model", service.command.scenario(scenario), "--permission-mode", "acceptEdits")
    ran = await service.run(*line, "--allowedTools", "Bash", CALLBOARD_SANDBOX__UNATTENDED="any")
    assert ran.code == 0, ran.err
    assert (service.command.workspace / "out").read_text() == "blue-t-\n"
    seen = (folder / "hook.env").read_text().splitlines()
    assert {"TEAM=blue", "DEPLOY_TOKEN=t"} <= set(seen)
    assert not [entry for entry in seen if "ANTHROPIC" in entry]


@pytest.mark.slow
async def test_opusplan_is_opus_in_plan_mode_and_sonnet_after_it(service: Service) -> None:
    opus, sonnet, haiku = "claude-opus-5-5", "claude-sonnet-5-5", "claude-haiku-5-5"

    async def models_of(*line: str, stdin: str | None = None) -> set[str]:
        ran = await service.run("-p", *line, stdin=stdin)
        assert ran.code == 0, ran.err
        return set(service.models)

    assert await models_of("--model", "opusplan", "--permission-mode", "plan", "go") == {opus}
    assert await models_of("-c", "--permission-mode", "default", "go") == {sonnet}
    assert await models_of("-c", "--permission-mode", "plan", "go") == {opus}
    assert await models_of("-c", "--model", "haiku", "go") == {haiku}
    request = {"subtype": "set_model", "model": "opusplan"}
    control = json.dumps({"type": "control_request", "request_id": "r1", "request": request})
    prompt = json.dumps({"type": "user", "message": {"role": "user", "content": "go"}})
    driven = ("-c", "--output-format", "stream-json", "--input-format", "stream-json", "--permission-mode", "plan")
    assert await models_of(*driven, stdin=f"{control}\n{prompt}\n") == {opus}


@pytest.mark.slow
async def test_a_model_that_is_chosen_at_the_prompt_line_states_its_id_and_its_assumed_limits(
    service: Service, tmp_path: Path
) -> None:
    def look() -> None:
        screen = PtyScreen(service.command, "--model", "opus", columns=200, rows=30, **service.environ)
        try:
            screen.wait(r"^> ?$")
            screen.type("/model haiku\r")
            screen.wait(r"the lead uses claude-haiku-5-5 from its next call on")
            screen.type(f"/model {FUTURE_MODEL}\r")
            screen.wait(rf"the lead uses {FUTURE_MODEL} from its next call on")
            screen.wait(rf"the model '{FUTURE_MODEL}' is not listed: .*\. State them under")
        finally:
            screen.close()

    await anyio.to_thread.run_sync(look)


@pytest.mark.slow
async def test_a_client_and_a_resumed_session_may_name_models_by_alias(service: Service) -> None:
    def control(number: int, model: str | None) -> str:
        request = {"subtype": "set_model", "model": model}
        return json.dumps({"type": "control_request", "request_id": f"r{number}", "request": request})

    prompt = json.dumps({"type": "user", "message": {"role": "user", "content": "go"}})
    driven = ("--output-format", "stream-json", "--input-format", "stream-json", "--model", "opus")
    lines = (prompt, control(1, "haiku"), prompt, control(2, None), prompt, control(3, FUTURE_MODEL), prompt)
    ran = await service.run(*driven, stdin="".join(f"{line}\n" for line in lines))
    answers = [message["response"] for message in ran.messages if message["type"] == "control_response"]
    assert [answer["subtype"] for answer in answers] == ["success"] * 3, answers
    assert set(service.models) <= {"claude-opus-5-5", "claude-haiku-5-5", FUTURE_MODEL}
    assert (await service.run("-p", "-c", "--model", "sonnet", "go")).code == 0
    assert service.models == ["claude-sonnet-5-5"]
