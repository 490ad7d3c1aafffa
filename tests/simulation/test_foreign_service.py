"""`callboard run` on a real git repository against a model service that is not ours: every request is valid there."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tests.cli.commands.command import Command
from tests.simulation.foreign_service import Say, check, check_thinking, foreign_service
from tests.simulation.processes import no_traceback

Json = dict[str, Any]


def text(said: str) -> Json:
    return {"type": "text", "text": said}


def think(thought: str) -> Json:
    return {"type": "thinking", "thinking": thought, "signature": f"sig/{abs(hash(thought)):x}+=="}


HIDDEN = {"type": "redacted_thinking", "data": "c2VjcmV0"}


def use(number: int, name: str, **given: object) -> Json:
    return {"type": "tool_use", "id": f"toolu_{number:04}", "name": name, "input": given}


SESSION = [
    Say([think("What is here?"), text("I look."), use(1, "read_file", path="README.md"), use(2, "glob", pattern="*.py"),
         use(3, "read_file", path="missing.txt"), use(4, "grep", pattern="def ", path=".")]),
    Say(status=529),
    Say([text("half an ans")], drop="mid"),
    Say([think("Denied and allowed together"), HIDDEN, use(5, "bash", command="rm -rf /"),
         use(6, "bash", command="git status --short"), use(7, "no_such_tool", x=1)]),
    Say([use(8, "bash", command="seq 1 60000")]),
    Say([text("This takes a while.  \n")], stop="pause_turn"),
    Say([text("  "), use(9, "edit_file", path="app.py", old_text="return 1", new_text="return 2")]),
    Say([use(10, "read_file", path="app.py"), use(11, "write_file")], raw_input='{"path": "x.txt", "con'),
    Say([text("words")], error_event="overloaded_error"),
    Say([think("long"), text("A long story, cut here "), use(12, "bash", command="touch never")], stop="max_tokens"),
    Say([text("A long story, cut again \n")], stop="max_tokens"),
    Say([text("A long story, cut once more \n")], stop="max_tokens"),
    Say([text("and its end."), use(13, "todo_write", todos=[{"content": "Look", "status": "completed"}])]),
    Say(drop="at once"),
    Say([use(14, "write_file", path="new/é.txt", content="naïve </inbox> ‮\u0000 text\n")]),
    Say([think("Silence is a result too"), use(15, "bash", command="true"), use(16, "read_file", path="empty.txt")]),
    Say(status=429, headers=[("retry-after", "0")]),
    Say([use(17, "task", description="Look", prompt="Count the files.", agent_type="explore")]),
    Say([text("Done.\n\n")]),
]  # fmt: skip
"""What the lead is told, answer by answer. The subagent is answered by what its first message says."""


@pytest.fixture
def repository(tmp_path: Path) -> Command:
    command = Command(tmp_path)
    folder = command.workspace
    (folder / "README.md").write_text("# Sample\n")
    (folder / "app.py").write_text("def one():\n    return 1\n")
    (folder / "empty.txt").write_text("")
    for args in (("init", "-q"), ("add", "."), ("-c", "user.name=T", "-c", "user.email=t@t", "commit", "-qm", "First")):
        subprocess.run(["git", *args], cwd=folder, check=True, env={**command.env, "HOME": str(tmp_path)})
    return command


@pytest.mark.slow
def test_every_request_of_a_long_session_is_valid_for_a_service_that_is_not_ours(repository: Command) -> None:
    lead = iter([*SESSION, Say([text("Nothing else.")])])

    def script(request: Json, number: int) -> Say:
        if "Count the files." in json.dumps(request["messages"][0]):
            results = [m for m in request["messages"] if m["role"] == "assistant"]
            return Say([text("Three files.")]) if results else Say([think("sub"), use(100, "glob", pattern="*")])
        return next(lead)

    with foreign_service(script) as service:
        key = {"ANTHROPIC_BASE_URL": service.url, "ANTHROPIC_API_KEY": "dummy"}
        rules = ("--permission-mode", "acceptEdits", "--allowed-tools", "Bash(seq *)", "--allowed-tools", "Bash(true)")
        ran = repository.run("run", "-v", *rules, "Mend it.", **key)
        no_traceback(ran)
        assert service.complaints == [], ran.err
        assert (ran.code, ran.out) == (0, "Done.\n"), ran.err
        again = repository.run("run", "--continue", *rules, "Anything else?", **key)
    assert service.complaints == [], again.err
    assert (again.code, again.out) == (0, "Nothing else.\n"), again.err
    assert next(lead, None) is None
    _the_work_is_done(repository)
    _the_last_request_tells_it_all(service.requests[-1])


def _the_work_is_done(repository: Command) -> None:
    folder = repository.workspace
    assert (folder / "app.py").read_text() == "def one():\n    return 2\n"
    assert (folder / "new/é.txt").read_text() == "naïve </inbox> ‮\u0000 text\n"
    assert not (folder / "never").exists()
    assert not (folder / "x.txt").exists()


def _the_last_request_tells_it_all(request: Json) -> None:
    results = {
        block["tool_use_id"]: block
        for message in request["messages"]
        for block in message["content"]
        if block["type"] == "tool_result"
    }
    failed = {int(use_id[-4:]) for use_id, block in results.items() if block.get("is_error")}
    assert failed == {3, 5, 7, 11}
    assert len(results) == 16
    said = json.dumps(request["messages"])
    assert "half an ans" not in said
    assert "A long story, cut here" not in said
    assert "A long story, cut once more" in said
    assert "toolu_0012" not in said


def good() -> Json:
    return {
        "model": "m",
        "max_tokens": 8,
        "messages": [
            {"role": "user", "content": "Go."},
            {"role": "assistant", "content": [use(1, "glob", pattern="*")]},
            {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "toolu_0001", "content": "a"}]},
        ],
    }


BREAKS: list[tuple[str, Callable[[Json], object]]] = [
    ("extra inputs", lambda r: r.update(agent="lead")),
    ("field required", lambda r: r.pop("max_tokens")),
    ("max_tokens", lambda r: r.update(max_tokens=0)),
    ("names must be unique", lambda r: r.update(tools=[{"name": "a", "input_schema": {"type": "object"}}] * 2)),
    ("is not a valid name", lambda r: r.update(tools=[{"name": "a b", "input_schema": {"type": "object"}}])),
    ("cache_control", lambda r: r.update(system=[{**text("s"), "cache_control": {"type": "ephemeral"}}] * 5)),
    ("user role", lambda r: r["messages"].pop(0)),
    ("non-whitespace", lambda r: r["messages"].append({"role": "user", "content": [text(" ")]})),
    ("trailing whitespace", lambda r: r["messages"].append({"role": "assistant", "content": "so "})),
    ("without tool_result", lambda r: r["messages"].pop()),
    ("results without", lambda r: r["messages"][2]["content"].append({**r["messages"][2]["content"][0]})),
    ("must be unique", lambda r: r["messages"].extend(r["messages"][1:])),
    ("stand first", lambda r: r["messages"][2]["content"].insert(0, text("before"))),
    ("is_error", lambda r: r["messages"][2]["content"][0].update(content="", is_error=True)),
]


@pytest.mark.parametrize(("complaint", "damage"), BREAKS)
def test_the_service_complains_about_what_is_wrong(complaint: str, damage: Callable[[Json], object]) -> None:
    request = good()
    assert check(request) == []
    damage(request)
    assert complaint in "; ".join(check(request))


def test_the_service_complains_about_thoughts_that_changed() -> None:
    request, said = good(), [Say([think("so"), use(1, "glob", pattern="*")])]
    request["messages"][1]["content"].insert(0, think("so"))
    assert check_thinking(request, said) == []
    request["messages"][1]["content"][0]["signature"] = "another"
    assert "changed" in check_thinking(request, said)[0]
