"""One policy for every kind of agent. In one real session each kind makes the same calls, and of each the same
hook hears, the same rule refuses the same, and the rest runs."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from unittest import mock

import anyio
import pytest
from tests.cli.commands.command import Command

from callboard.core.keys import journal, rows_prefix
from callboard.core.messaging.envelopes import sending
from callboard.engine.commands import find_session
from callboard.engine.recall import events_of
from callboard.sessions.compose import find_places, log_notice, open_store
from callboard.types.events import CallJudged, ModelReplied
from callboard.types.records import AgentRow, Envelope, Json

HOOK = """\
#!/bin/sh
given=$(cat)
printf '%s\\n' "$given" >> '{log}'
case "$given" in *hookdenied*) echo "the hook says no" >&2; exit 2;; esac
"""


def calls(who: str, **more: object) -> list[Json]:
    """What each agent does: what a rule denies, what a hook denies, what a mode allows, and what asks."""
    commands = (f"touch forbidden-{who}", f"cat hookdenied-{who}", f"touch fine-{who}", f"make asks-{who}")
    return [{"tool_use": {"name": "bash", "input": {"command": command, **more}}} for command in commands]


def use(tool: str, **given: object) -> Json:
    return {"tool_use": {"name": tool, "input": given}}


SUB = {"description": "look", "prompt": "look", "agent_type": "general"}
SCENARIO: Json = {
    "agents": {
        "lead": [
            {
                "when": {"contains": "begin"},
                "reply": [
                    *calls("lead"),
                    *calls("background", run_in_background=True),
                    use("task", **SUB),
                    use("spawn_teammate", name="alice", role="mate", prompt="work"),
                ],
            },
            {"when": {"contains": "tidy"}, "reply": [*calls("scheduled"), use("task", **SUB)]},
            {"when": {"contains": "once more"}, "reply": calls("resumed")},
            {"otherwise": True, "reply": "So it is."},
        ],
        "alice": [
            {"reply": [*calls("teammate"), use("task", **SUB)]},
            {"when": {"result_of": "task"}, "reply": [use("report", status="done", result="ready")]},
            {"otherwise": True, "reply": "Well."},
        ],
        "*": [{"reply": calls("${agent}")}, {"otherwise": True, "reply": "Looked."}],
    }
}


@dataclass(frozen=True)
class Kind:
    """An agent, or a turn of one, by the word that its commands end with."""

    name: str
    agent_type: str
    """As hooks are told it."""
    count: int = 1


KINDS = (
    Kind("lead", "lead"),
    Kind("background", "lead"),
    Kind("teammate", "teammate"),
    Kind("general-", "general", count=3),  # of the lead, of the teammate, of the schedule's turn
    Kind("scheduled", "lead"),
    Kind("resumed", "lead"),
)


@dataclass(frozen=True)
class Seen:
    """What the session left behind."""

    heard: Sequence[Json]
    """What the hook was told, call by call."""
    verdicts: dict[str, tuple[str, str]]
    """Command -> who decided, and why."""
    files: frozenset[str]


@pytest.fixture(scope="module")
def seen(tmp_path_factory: pytest.TempPathFactory) -> Seen:
    command = Command(tmp_path_factory.mktemp("policy"))
    folder = command.workspace.parent
    hook = folder / "hook.sh"
    hook.write_text(HOOK.format(log=folder / "heard"))
    hook.chmod(0o755)
    settings = {
        "permission": {"mode": "acceptEdits", "deny": ["Bash(touch forbidden*)"]},
        "hooks": {"PreToolUse": [{"matcher": "Bash", "hooks": [{"type": "command", "command": str(hook)}]}]},
    }
    config = folder / "config" / "callboard"
    config.mkdir(parents=True)
    (config / "settings.yaml").write_text(json.dumps(settings))
    model = command.scenario(json.dumps(SCENARIO))
    ran = command.here("run", "--model", model, "begin")
    assert ran.code == 4, ran.err  # what asks has nobody to answer it
    with mock.patch.dict(os.environ, command.env, clear=True):
        anyio.run(fire, command.workspace)
    assert command.here("resume").code == 4
    assert command.here("run", "--continue", "once more").code == 4
    with mock.patch.dict(os.environ, command.env, clear=True):
        verdicts = anyio.run(judged, command.workspace)
    heard = [json.loads(line) for line in (folder / "heard").read_text().splitlines()]
    return Seen(heard, verdicts, frozenset(path.name for path in command.workspace.iterdir()))


async def fire(workspace: Path) -> None:
    """A schedule's fire, as its process would write it."""
    store = await open_store(find_places(workspace), "process", log_notice)
    row = await find_session(store, None)
    fired = Envelope(
        id="schedule:cron_1:1", sender="schedule", recipient="lead", type="scheduled", content="tidy", cause="schedule"
    )
    await store.commit(sending(row.id, fired))
    await store.aclose()


async def judged(workspace: Path) -> dict[str, tuple[str, str]]:
    """By the journals of all agents: of each command who decided, and why."""
    store = await open_store(find_places(workspace), "process", log_notice)
    row = await find_session(store, None)
    found: dict[str, tuple[str, str]] = {}
    for one in await store.keys(f"{rows_prefix(row.id)}agent/"):
        agent = AgentRow.model_validate_json(one.value or b"")
        events = await events_of(store, journal(row.id, agent.name, agent.incarnation))
        commands = {c.id: c.input.get("command") for e in events if isinstance(e, ModelReplied) for c in e.calls}
        verdicts = [event for event in events if isinstance(event, CallJudged)]
        found |= {str(commands[event.call]): (event.by, event.why) for event in verdicts if commands[event.call]}
    await store.aclose()
    return found


def of_kind(kind: Kind, what: str, texts: Iterator[str]) -> list[str]:
    return [text for text in texts if text.partition(f"{what}-")[2].startswith(kind.name)]


@pytest.mark.parametrize("kind", KINDS, ids=[kind.name for kind in KINDS])
def test_the_same_hook_hears_of_every_call_of_every_kind_of_agent(kind: Kind, seen: Seen) -> None:
    told: dict[str, Json] = {event["tool_input"]["command"]: event for event in seen.heard}
    for what in ("forbidden", "hookdenied", "fine", "asks"):
        mine = of_kind(kind, what, iter(told))
        assert len(mine) == kind.count, (what, list(told))
        for command in mine:
            event: dict[str, Any] = told[command]
            assert event["hook_event_name"] == "PreToolUse"
            assert event["permission_mode"] == "acceptEdits"
            assert event.get("agent_type", "lead") == kind.agent_type


@pytest.mark.parametrize("kind", KINDS, ids=[kind.name for kind in KINDS])
def test_the_same_rule_and_the_same_hook_refuse_every_kind_of_agent(kind: Kind, seen: Seen) -> None:
    by_rule = of_kind(kind, "forbidden", iter(seen.verdicts))
    by_hook = of_kind(kind, "hookdenied", iter(seen.verdicts))
    assert (len(by_rule), len(by_hook)) == (kind.count, kind.count)
    assert {seen.verdicts[command][0] for command in by_rule} == {"rule Bash(touch forbidden*)"}
    for command in by_hook:
        by, why = seen.verdicts[command]
        assert by.startswith("hook ")
        assert "the hook says no" in why
    assert of_kind(kind, "forbidden", iter(seen.files)) == []


@pytest.mark.parametrize("kind", KINDS, ids=[kind.name for kind in KINDS])
def test_every_kind_of_agent_may_do_what_its_mode_allows_and_what_asks_is_no_without_a_person(
    kind: Kind, seen: Seen
) -> None:
    assert len(of_kind(kind, "fine", iter(seen.files))) == kind.count
    asked = of_kind(kind, "asks", iter(seen.verdicts))
    assert asked == [], "it was asked, not judged: its request ran into its deadline"
    assert of_kind(kind, "asks", iter(seen.files)) == []
