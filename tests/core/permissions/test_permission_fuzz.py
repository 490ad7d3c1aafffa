"""Mutated commands and paths: nothing makes the judge raise, and nothing runs or is shown that was not judged.

What a command names is told by a walk of shfmt's own tree that knows nothing of ours.
"""

from __future__ import annotations

import json
import os
import random
import re
import subprocess
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any, cast

import pytest
from tests.core.permissions.permission_mutants import every_case, mutant, mutated_path

from callboard.adapters.shell.parser import BashParser, find_shfmt
from callboard.adapters.shell.paths import PathJudge
from callboard.core.permissions.effects import CallFacts
from callboard.core.permissions.facts import find_facts
from callboard.core.permissions.judge import judge_call
from callboard.core.permissions.shell_effects import analyse
from callboard.core.permissions.values import AgentPolicy, HardRules, ProposedCall

PARSER = BashParser()
HOME = Path("/home/me")


@pytest.fixture(scope="module")
def judge(tmp_path_factory: pytest.TempPathFactory) -> PathJudge:
    root = tmp_path_factory.mktemp("fuzz") / "workspace"
    (root / "src").mkdir(parents=True)
    (root / ".git").mkdir()
    (root / ".git/config").write_text("[core]\n\tbare = false\n")
    (root.parent / "state").mkdir()
    (root.parent / "outside").mkdir()
    (root.parent / "outside/x").write_text("x")
    for name in ("src/a.py", "README.md", ".env", "../state/db", "id_rsa"):
        (root / name).write_text("x")
    (root / "link").symlink_to(root.parent / "outside")
    return PathJudge(root, own=[root.parent / "state"], home=HOME)


def named(tree: Any) -> Iterator[str]:
    """Yield the literal name of every command of shfmt's tree, wherever it stands."""
    if isinstance(tree, dict):
        node = cast("dict[str, Any]", tree)
        if node.get("Type") == "CallExpr" and node.get("Args"):
            name = spelled(node["Args"][0].get("Parts") or [])
            if name is not None:
                yield name
        for value in node.values():
            yield from named(value)
    elif isinstance(tree, list):
        for value in cast("list[Any]", tree):
            yield from named(value)


def spelled(parts: list[dict[str, Any]]) -> str | None:
    """What a word says, for words of plain text and quotes; None for the others."""
    text = ""
    for part in parts:
        inner: list[dict[str, Any]] = part.get("Parts") or []
        if part["Type"] == "Lit" and not re.search(r"[{~*?[\n]", part["Value"]):
            text += re.sub(r"\\(.)", r"\1", part["Value"])
        elif part["Type"] == "SglQuoted" and not part.get("Dollar"):
            text += part.get("Value", "")
        elif part["Type"] == "DblQuoted" and all(p["Type"] == "Lit" and "\\" not in p["Value"] for p in inner):
            text += "".join(p["Value"] for p in inner)
        else:
            return None
    return text


def names_in(command: str) -> Counter[str]:
    shfmt = find_shfmt()
    assert shfmt is not None
    done = subprocess.run([shfmt, "--to-json", "-ln", "bash"], input=command.encode(), capture_output=True, check=True)
    return Counter(named(json.loads(done.stdout)))


def unjudged(command: str, judge: PathJudge) -> Counter[str]:
    """What an allowed command names and was not judged by; nothing for one that is not allowed."""
    call = ProposedCall("bash", {"command": command}, "unknown")
    facts = find_facts(call, CallFacts(root=judge.root, home=judge.home, git_quiet=True), PARSER.parse, judge.look)
    if judge_call(call, AgentPolicy(), facts).decision != "allow":
        return Counter()
    parts = analyse(command, facts.scripts, facts.home, HardRules()).parts
    return names_in(command) - Counter(part.views[0].words[0].text for part in parts if part.views)


def fuzz_commands(seed: int, count: int, judge: PathJudge) -> None:
    draw, cases = random.Random(seed), every_case()
    for _ in range(count):
        command = mutant(draw, cases)
        assert not (missed := unjudged(command, judge)), (command, missed)


def fuzz_paths(seed: int, count: int, judge: PathJudge) -> None:
    draw, root = random.Random(seed), judge.root
    start = CallFacts(root=root, home=judge.home)
    for _ in range(count):
        path = mutated_path(draw, root)
        tool = draw.choice(["read_file", "glob", "write_file"])
        given = {"path": path, "pattern": "*"} if tool == "glob" else {"path": path, "content": "x"}
        call = ProposedCall(tool, given, "read" if tool != "write_file" else "unknown")
        decision = judge_call(call, AgentPolicy(), find_facts(call, start, PARSER.parse, judge.look)).decision
        if decision == "allow":
            real = os.path.realpath(os.path.join(root, path))
            assert tool != "write_file", path
            assert real == root or real.startswith(root + "/"), path
            assert Path(real).name.lower() not in (".env", "id_rsa"), path


def test_no_mutated_command_runs_what_was_not_judged(judge: PathJudge) -> None:
    fuzz_commands(20_261, 500, judge)


def test_no_mutated_path_leads_out_unasked(judge: PathJudge) -> None:
    fuzz_paths(20_262, 1_000, judge)


def test_every_case_of_the_tables_keeps_the_law(judge: PathJudge) -> None:
    for command in random.Random(3).sample(every_case(), 300):
        assert not unjudged(command, judge), command


@pytest.mark.soak
def test_no_mutated_command_runs_what_was_not_judged_soak(judge: PathJudge, soak: int) -> None:
    for seed in range(40 * soak):
        fuzz_commands(seed, 5_000, judge)
        fuzz_paths(seed, 5_000, judge)


def test_the_walk_of_the_law_sees_what_is_hidden() -> None:
    assert names_in("ls; echo \"$(r''m x)\" `cat y` <(sudo z)") == Counter(["ls", "echo", "rm", "cat", "sudo"])
