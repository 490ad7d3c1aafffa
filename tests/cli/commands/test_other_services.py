"""Variables that select Amazon Bedrock and other services without the Messages API: an error or a warning."""

from __future__ import annotations

import json
from functools import partial
from pathlib import Path

import anyio.to_thread
import pytest
from tests.cli.commands.command import Command

from callboard.adapters.models.rehearsal.emulator import serve
from callboard.adapters.models.rehearsal.replies import say
from callboard.adapters.models.rehearsal.scenario import Scenario
from callboard.config.other_services import other_service


@pytest.mark.parametrize(
    ("variable", "service"),
    [
        ("CLAUDE_CODE_USE_BEDROCK", "Amazon Bedrock"),
        ("CLAUDE_CODE_USE_VERTEX", "Google Vertex AI"),
        ("CLAUDE_CODE_USE_FOUNDRY", "Microsoft Foundry"),
    ],
)
def test_each_variable_names_its_service_unless_it_is_off(variable: str, service: str) -> None:
    for value in ("1", "true", " Yes "):
        selected = other_service({"HOME": "/", variable: value})
        assert selected is not None
        assert (selected.variable, selected.name) == (variable, service)
    for value in ("", "0", "false"):
        assert other_service({variable: value}) is None


def test_without_a_key_it_is_an_error_that_says_what_to_set(tmp_path: Path) -> None:
    command = Command(tmp_path)
    run = command.run("-p", "hi", CLAUDE_CODE_USE_BEDROCK="1")
    assert run.code == 3
    assert "CLAUDE_CODE_USE_BEDROCK is set, but Callboard cannot call Amazon Bedrock" in run.err
    for variable in ("ANTHROPIC_BASE_URL", "ANTHROPIC_AUTH_TOKEN", "ANTHROPIC_API_KEY"):
        assert variable in run.err


@pytest.mark.anyio
@pytest.mark.parametrize("anyio_backend", ["asyncio"])
async def test_with_a_key_a_warning_names_the_host_that_is_called(tmp_path: Path) -> None:
    command = Command(tmp_path)
    (tmp_path / ".claude").mkdir()
    (tmp_path / ".claude/settings.json").write_text(json.dumps({"env": {"CLAUDE_CODE_USE_VERTEX": "1"}}))
    emulator = await serve(Scenario.from_callable(lambda _: say("done")))
    environ = {"ANTHROPIC_API_KEY": "any", "ANTHROPIC_BASE_URL": emulator.url}
    ran = await anyio.to_thread.run_sync(partial(command.run, "-p", "hi", **environ))
    checked = await anyio.to_thread.run_sync(partial(command.run, "doctor", **environ))
    await emulator.aclose()
    assert (ran.code, ran.out) == (0, "done\n")
    warnings = [line for line in ran.err.splitlines() if "CLAUDE_CODE_USE_VERTEX" in line]
    assert len(warnings) == 1, ran.err
    assert "model calls go to 127.0.0.1" in ran.err.replace("\n", " ")
    assert "Callboard cannot call Google Vertex AI" in checked.out


def test_a_rehearsed_model_needs_no_service_and_no_warning(tmp_path: Path) -> None:
    command = Command(tmp_path)
    model = command.scenario("agents: {lead: [{otherwise: true, reply: done}]}\n")
    run = command.run("-p", "hi", "--model", model, CLAUDE_CODE_USE_FOUNDRY="1")
    assert (run.code, run.out) == (0, "done\n")
    assert "FOUNDRY" not in run.err
