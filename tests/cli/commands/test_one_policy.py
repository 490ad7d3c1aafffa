"""One policy for every kind of agent.

In one real session each kind of agent makes the same calls. For each kind, the hook receives the same calls, the rule
denies the same call, and the rest runs.
"""

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
from callboard.core.messaging.envelopes import envelope_write
from callboard.engine.commands import find_session
from callboard.engine.recall import events_of
from callboard.sessions.places import find_places
from callboard.sessions.stores import log_notice, open_store
from callboard.types.events import CallJudged, ModelReplied
from callboard.types.records import AgentRow, Envelope, Json
from callboard.types.settings import Settings

HOOK = """\
#!/bin/sh
given=$(cat)
printf '%s\\n' "$given" >> '{log}'
case "$given" in *hookdenied*) echo "the hook says no" >&2; exit 2;; esac
"""


def calls(who: str, **more: object) -> list[Json]:
    """Return each agent's calls: denied by a rule, denied by a hook, allowed by a mode, and asking."""
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
    """A kind of agent, or of a turn, with the word that its commands end with."""

    name: str
    agent_type: str
    """Agent type in the hook's input."""
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
class SessionLog:
    """Results of the session."""

    hook_events: Sequence[Json]
    """Input of the hook, call by call."""
    verdicts: dict[str, tuple[str, str]]
    """Decider and reason by command."""
    files: frozenset[str]


@pytest.fixture(scope="module")
def session_log(tmp_path_factory: pytest.TempPathFactory) -> SessionLog:
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
    ran = command.run_inline("run", "--model", model, "begin")
    assert ran.code == 4, ran.err  # a call that asks finds no person
    with mock.patch.dict(os.environ, command.env, clear=True):
        anyio.run(fire, command.workspace)
    assert command.run_inline("resume").code == 4
    assert command.run_inline("run", "--continue", "once more").code == 4
    with mock.patch.dict(os.environ, command.env, clear=True):
        verdicts = anyio.run(decisions_of, command.workspace)
    heard = [json.loads(line) for line in (folder / "heard").read_text().splitlines()]
    return SessionLog(heard, verdicts, frozenset(path.name for path in command.workspace.iterdir()))


async def fire(workspace: Path) -> None:
    """Fire a schedule, as its process would."""
    store = await open_store(find_places(workspace), Settings(durability="process"), log_notice)
    row = await find_session(store, None)
    fired = Envelope(
        id="schedule:cron_1:1", sender="schedule", recipient="lead", type="scheduled", content="tidy", cause="schedule"
    )
    await store.commit(envelope_write(row.id, fired))
    await store.aclose()


async def decisions_of(workspace: Path) -> dict[str, tuple[str, str]]:
    """Return the decider and the reason of each command, from the journals of all agents."""
    store = await open_store(find_places(workspace), Settings(durability="process"), log_notice)
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
def test_the_same_hook_hears_of_every_call_of_every_kind_of_agent(kind: Kind, session_log: SessionLog) -> None:
    told: dict[str, Json] = {event["tool_input"]["command"]: event for event in session_log.hook_events}
    for what in ("forbidden", "hookdenied", "fine", "asks"):
        mine = of_kind(kind, what, iter(told))
        assert len(mine) == kind.count, (what, list(told))
        for command in mine:
            event: dict[str, Any] = told[command]
            assert event["hook_event_name"] == "PreToolUse"
            assert event["permission_mode"] == "acceptEdits"
            assert event.get("agent_type", "lead") == kind.agent_type


@pytest.mark.parametrize("kind", KINDS, ids=[kind.name for kind in KINDS])
def test_the_same_rule_and_the_same_hook_refuse_every_kind_of_agent(kind: Kind, session_log: SessionLog) -> None:
    by_rule = of_kind(kind, "forbidden", iter(session_log.verdicts))
    by_hook = of_kind(kind, "hookdenied", iter(session_log.verdicts))
    assert (len(by_rule), len(by_hook)) == (kind.count, kind.count)
    assert {session_log.verdicts[command][0] for command in by_rule} == {"rule Bash(touch forbidden*)"}
    for command in by_hook:
        by, why = session_log.verdicts[command]
        assert by.startswith("hook ")
        assert "the hook says no" in why
    assert of_kind(kind, "forbidden", iter(session_log.files)) == []


@pytest.mark.parametrize("kind", KINDS, ids=[kind.name for kind in KINDS])
def test_every_kind_of_agent_may_do_what_its_mode_allows_and_what_asks_is_no_without_a_person(
    kind: Kind, session_log: SessionLog
) -> None:
    assert len(of_kind(kind, "fine", iter(session_log.files))) == kind.count
    asked = of_kind(kind, "asks", iter(session_log.verdicts))
    assert asked == [], "the call's request reached its deadline, so it was not decided by a rule"
    assert of_kind(kind, "asks", iter(session_log.files)) == []
