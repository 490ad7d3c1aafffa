"""`callboard policy explain --stdin` as a process: one answer to each line, whatever the line contains."""

from __future__ import annotations

import json
import os
import random
from collections.abc import Sequence
from typing import Any

import pytest
from tests.cli.commands.command import Command
from tests.warm import PIPE


@pytest.fixture(scope="module")
def command(tmp_path_factory: pytest.TempPathFactory) -> Command:
    made = Command(tmp_path_factory.mktemp("policy"))
    root = made.workspace
    (root / "src" / "deep").mkdir(parents=True)
    (root / ".git").mkdir()
    (root / ".git" / "config").write_text("[core]\n\tbare = false\n")
    (root / "a.txt").write_text("a")
    (root / ".env").write_text("KEY=1")
    (root / "src" / "out").symlink_to("/etc")
    (root / "src" / "secret.txt").symlink_to("../.env")
    os.mkfifo(root / "pipe")
    (root.parent / "workspace-2").mkdir()
    (root.parent / "workspace-2" / "b.txt").write_text("b")
    return made


def answers_to(command: Command, lines: Sequence[bytes]) -> list[dict[str, Any]]:
    """Return one process's answers to these lines."""
    answers = command.answers("policy", "explain", lines=lines)
    for answer in answers:
        assert set(answer) == {"decision", "reason", "by"}
        assert answer["decision"] in ("allow", "ask", "deny")
        assert answer["reason"]
        assert answer["by"]
    return answers


def call(tool: str, given: object = None, **more: object) -> bytes:
    return json.dumps({"tool": tool, "input": given, **more}).encode()


def bash(text: object, **more: object) -> bytes:
    return call("Bash", {"command": text}, **more)


def rules(**lists: Sequence[str]) -> dict[str, Any]:
    return {"rules": lists}


PLAIN: list[tuple[str, bytes]] = [
    ("allow", bash("git status")),
    ("allow", call("bash", {"command": "ls -la | head"}, mode="manual")),
    ("allow", bash("ls", mode="auto")),
    ("deny", bash("rm -rf /", mode="bypassPermissions")),
    ("deny", bash("sudo ls", **rules(allow=["Bash"]))),
    ("ask", bash("git push")),
    ("allow", bash("git push origin main", **rules(allow=["Bash(git push:*)"]))),
    ("ask", bash("git push && make", **rules(allow=["Bash(git push:*)"]))),
    ("deny", bash("git push", **rules(allow=["Bash(git push:*)"], deny=["Bash(git push:*)"]))),
    ("ask", bash("git status", **rules(ask=["Bash(git:*)"]))),
    ("deny", bash("git push", mode="dontAsk")),
    ("deny", bash("touch x", mode="plan")),
    ("allow", bash("touch x", mode="acceptEdits")),
    ("allow", bash("make all", mode="bypassPermissions")),
    ("ask", bash("cat .env")),
    ("ask", bash("cat src/secret.txt")),
    ("ask", bash("cat src/out/hosts")),
    ("ask", bash("cat ../workspace-2/b.txt")),
    ("ask", call("Read", {"file_path": ".env"})),
    ("ask", call("Read", {"file_path": "src/secret.txt"})),
    ("ask", call("read_file", {"path": "src/out/passwd"})),
    ("ask", call("Read", {"file_path": "../workspace-2/b.txt"})),
    ("allow", call("Read", {"file_path": "a.txt"})),
    ("allow", call("read_file", {"path": "a.txt", "offset": 3})),
    ("deny", call("Read", {"file_path": "a.txt"}, **rules(deny=["Read(a.txt)"]))),
    ("deny", bash("head a.txt", **rules(deny=["Read(a.txt)"]))),
    ("deny", call("Read", {"file_path": "pipe"})),
    ("ask", call("Write", {"file_path": "new.txt", "content": "x"})),
    ("allow", call("Write", {"file_path": "new.txt", "content": "x"}, mode="acceptEdits")),
    ("ask", call("Write", {"file_path": ".git/hooks/x", "content": "x"}, mode="acceptEdits")),
    ("ask", call("Edit", {"file_path": ".mcp.json", "old_string": "a", "new_string": "b"}, mode="acceptEdits")),
    ("ask", call("MultiEdit", {"file_path": "src/out/x", "edits": []}, mode="acceptEdits")),
    ("deny", call("write_file", {"path": ".callboard/settings.yaml", "content": ""}, mode="bypassPermissions")),
    ("ask", call("NotebookEdit", {"notebook_path": "n.ipynb", "new_source": "1"})),
    ("allow", call("Glob", {"pattern": "**/*.py"})),
    ("ask", call("Grep", {"pattern": "x", "path": "/etc"})),
    ("allow", call("Grep", {"pattern": "x"})),
    ("ask", call("mcp__memory__write", {"x": 1})),
    ("ask", call("NoSuchTool", {"x": [1, {"y": None}]})),
    ("deny", call("NoSuchTool", {}, **rules(deny=["No*"]))),
    ("allow", call("TodoWrite", {"todos": []})),
]
BROKEN: list[bytes] = [
    b"",
    b"   ",
    b"nonsense",
    b"[]",
    b"null",
    b'"text"',
    b"{}",
    b'{"tool": "Bash"',
    b'{"tool": "Bash", "tool": "Bash", "input": {"command": "ls"}}',
    b'{"tool": "Bash", "input": {"command": "ls", "command": "rm x"}}',
    b'{"tool": "Zorg", "input": {"x": NaN}}',
    b'{"tool": "Zorg", "input": {"x": ' + b"9" * 5_000 + b"}}",
    b'{"tool": "Zorg", "input": ' + b"[" * 100_000 + b"]" * 100_000 + b"}",
    b'{"tool": "Bash", "input": {"command": "\xff\xfe"}}',
    b"\x00\x00",
    call("Bash"),
    call("Bash", {}),
    call("Bash", []),
    call("Bash", "ls"),
    call("", {}),
    call("Read", {"file_path": 5}),
    call("Read", {"file_path": ["a.txt"]}),
    call("Read", {"file_path": None}),
    call("Read", {"file_path": ""}),
    call("Read", {"file_path": "a.txt", "path": "b.txt"}),
    call("Read", {"file_path": "a\0.txt"}),
    call("Read", {"file_path": "\ud800"}),
    call("Read", {"file_path": "x" * 5_000}),
    call("Glob", {"pattern": 1}),
    call("Write", {"file_path": "x", "content": {"a": 1}}),
    call("Write", {"file_path": "x", "content": "a\0"}),
    call("mcp__a__b", {"deep": [{"er": "\0"}]}),
    call("mcp__a__b", {"\0": 1}),
    bash(None),
    bash(5),
    bash(["ls"]),
    bash("ls\0"),
    bash("ls", mode="root"),
    bash("ls", mode=5),
    bash("ls", cwd=5),
    bash("ls", cwd="src\0"),
    bash("ls", cwd="\ud800"),
    bash("ls", rules=[]),
    bash("ls", rules={"allow": "Bash"}),
    bash("ls", rules={"allow": [5]}),
    bash("ls", rules={"allow": ["(("]}),
    bash("ls", rules={"alow": []}),
    bash("ls", rule={"deny": ["Bash"]}),
    json.dumps({"tool": 5, "input": {}}).encode(),
]
FOLDERS: list[tuple[str, bytes]] = [
    ("allow", bash("cat ../a.txt", cwd="src")),
    ("ask", bash("cat ../../a.txt", cwd="src")),
    ("allow", bash("cat ../../a.txt", cwd="src/deep")),
    ("allow", bash("ls", cwd=".")),
    ("ask", bash("ls", cwd="/etc")),
    ("ask", bash("true", cwd="../workspace-2")),
    ("ask", bash("cat hosts", cwd="src/out")),
    ("allow", bash("ls", cwd="src/missing")),
    ("allow", call("Read", {"file_path": "../a.txt"}, cwd="src")),
    ("ask", call("Read", {"file_path": "../a.txt"}, cwd="..")),
    ("ask", call("Glob", {"pattern": "*"}, cwd="/etc")),
    ("allow", call("Edit", {"file_path": "x.py"}, cwd="src", **rules(allow=["Edit(/src/**)"]))),
    ("ask", call("Edit", {"file_path": "x.py"}, cwd="src", **rules(allow=["Edit(/deep/**)"]))),
    ("deny", bash("cat deep/k", cwd="src", **rules(deny=["Read(/src/deep/**)"]))),
    ("ask", bash("cat *.txt", cwd="src")),
    ("allow", bash("cat *.txt", cwd="src/deep")),
]


def test_each_line_gets_the_decision_that_it_should(command: Command) -> None:
    cases = PLAIN + FOLDERS
    answers = answers_to(command, [line for _, line in cases])
    wrong = [(line, answer) for (due, line), answer in zip(cases, answers, strict=True) if answer["decision"] != due]
    assert wrong == []


def test_whatever_cannot_be_read_is_denied_with_what_is_wrong_and_nothing_stops(command: Command) -> None:
    lines = [each for broken in BROKEN for each in (broken, bash("git status"))]
    answers = answers_to(command, lines)
    assert [a for a in answers[::2] if a["decision"] != "deny"] == []
    assert [a for a in answers[::2] if a["by"] == "bug"] == []
    assert {a["decision"] for a in answers[1::2]} == {"allow"}


def test_no_personal_settings_count(command: Command) -> None:
    settings = command.workspace.parent / "config" / "callboard" / "settings.yaml"
    settings.parent.mkdir(parents=True, exist_ok=True)
    settings.write_text("permission: {allow: [Bash], deny: ['Read']}\n")
    try:
        found = [a["decision"] for a in answers_to(command, [bash("make"), call("Read", {"file_path": "a.txt"})])]
    finally:
        settings.unlink()
    assert found == ["ask", "allow"]


def test_hundreds_of_mangled_lines_get_hundreds_of_answers(command: Command) -> None:
    draw = random.Random(6)
    lines = [line for _, line in PLAIN + FOLDERS] + BROKEN
    mangled: list[bytes] = []
    for _ in range(400):
        line = bytearray(draw.choice(lines)[:2_000])
        for _ in range(draw.randint(1, 4)):
            at = draw.randrange(len(line) + 1)
            line[at : at + draw.randint(0, 3)] = draw.choice([b'"', b"{", b"\\", b"\xc3", b"\\u0000", b"$(", b"", b"}"])
        mangled.append(bytes(line).replace(b"\n", b" "))
    assert [a for a in answers_to(command, mangled) if a["by"] == "bug"] == []


def test_an_answer_comes_before_the_next_line_is_given(command: Command) -> None:
    process = command.start("policy", "explain", "--stdin", stdin=PIPE)
    assert process.stdin is not None
    assert process.stdout is not None
    for text, due in (("ls", "allow"), ("make", "ask"), ("sudo ls", "deny")):
        process.stdin.write(bash(text).decode() + "\n")
        process.stdin.flush()
        assert json.loads(process.stdout.readline())["decision"] == due
    process.stdin.write(bash("pwd").decode())  # the last line need not end with a newline
    process.stdin.close()
    assert json.loads(process.stdout.readline())["decision"] == "allow"
    assert process.wait(180) == 0


def test_a_folder_that_is_not_there_is_told(command: Command) -> None:
    ran = command.run("policy", "explain", "--stdin", "-C", "nowhere", stdin="")
    assert (ran.code, ran.out) == (3, "")
    assert "nowhere" in ran.err
