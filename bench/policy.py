"""Measure a permission decision on a shell command, for every command in the case tables of the tests.

A decision includes parsing, path lookups on disk, judging, and the thread that it runs in. It is measured for new
commands (with a new parser for each pass) and for repeated ones. For comparison, on the same bytes: `shlex.split` with
a table lookup (the cost of a list of allowed words), a JSON round trip, and the check for hooks, which is the whole
cost of hooks if there are none. The best of `PASSES` counts for each command, so that other processes do not disturb
the result. Exit with 1 if the median is over `MEDIAN_MS`, or the check for hooks is over `HOOKS_SHARE` of it.
"""

from __future__ import annotations

import json
import shlex
import statistics
import sys
import tempfile
import time
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path

import anyio
import child

from callboard.adapters.shell.policy_judge import PolicyJudge
from callboard.core.permissions.command_table import names
from callboard.engine.hooks.registry import HookRegistry
from callboard.ports.environment import PermissionQuery
from callboard.ports.tool import Folders, ToolSpec
from callboard.types.agent_spec import AgentSpec
from callboard.types.records import ToolCall

MEDIAN_MS = 1.0
"""Maximum median of a decision, in ms."""

HOOKS_SHARE = 0.01
"""Maximum cost of the check for hooks without any hooks, relative to the median decision."""

PASSES = 3
CASES = Path(__file__).parents[1] / "tests/core/permissions/permission_cases"
SPEC = AgentSpec(name="lead", kind="lead", agent_type="lead", model="none")
BASH = ToolSpec("bash", "", {}, "unknown")
WORDS = names("ls cat head tail wc grep rg find sort uniq cut diff stat file du git echo test true pwd")


def workspace(base: Path) -> Folders:
    """Make a small workspace like that of the tests."""
    root = base / "workspace"
    (root / "src").mkdir(parents=True)
    (root / ".git").mkdir()
    (root / ".git/config").write_text("[core]\n\tbare = false\n")
    for name in ("src/a.py", "README.md", ".env", "package.json"):
        (root / name).write_text("x\n")
    return Folders(root, base / "results", base / "transcripts", (base / "state",))


async def best(commands: Sequence[str], decide: Callable[[str], Awaitable[object]], into: dict[str, float]) -> None:
    """Time each command once, in ms, and keep the best time of all passes."""
    for command in commands:
        start = time.perf_counter()
        await decide(command)
        into[command] = min(into.get(command, 1e9), (time.perf_counter() - start) * 1_000)


async def decisions(commands: Sequence[str], folders: Folders) -> tuple[dict[str, float], dict[str, float]]:
    """Return the cost of each decision, for new commands and for repeated ones."""
    new, seen = dict[str, float](), dict[str, float]()
    for _ in range(PASSES):
        judge = PolicyJudge((), (), ())

        async def decide(command: str, judge: PolicyJudge = judge) -> object:
            call = ToolCall(id="1", use_id="1", name="bash", input={"command": command})
            query = PermissionQuery(call=call, tool=BASH, spec=SPEC, folders=folders, authority="person")
            return await judge.judge(query)

        await best(commands, decide, new)
        for command in commands:
            await decide(command)  # the cache may have dropped it
            await best([command], decide, seen)
    return new, seen


async def by_words(command: str) -> object:
    """Look the words up in a list of allowed first words, as many harnesses do."""
    try:
        return shlex.split(command)[0] in WORDS
    except (ValueError, IndexError):
        return False


async def by_json(command: str) -> object:
    """Encode and decode the same bytes as JSON."""
    return json.loads(json.dumps({"command": command}))


def hooks_ms() -> float:
    """Return the cost of the check for hooks per call if there are none, in ms."""
    registry, rounds = HookRegistry(), 20_000
    start = time.perf_counter()
    for _ in range(rounds):
        _ = registry.has("PreToolUse") or registry.has("PermissionRequest")
    return (time.perf_counter() - start) / rounds * 1_000


def row(name: str, costs: dict[str, float]) -> list[str]:
    times = sorted(costs.values())
    p99 = times[int(len(times) * 0.99)]
    a_second = len(times) / sum(times) * 1_000
    return [name, f"{statistics.median(times):.4f}", f"{p99:.3f}", f"{a_second:,.0f}"]


async def measured() -> int:
    cases = [CASES / f"{decision}.txt" for decision in ("allow", "ask", "deny")]
    commands = [line for path in cases for line in path.read_text().split("\n") if line]
    with tempfile.TemporaryDirectory() as temporary:
        new, seen = await decisions(commands, workspace(Path(temporary)))
    words, plain = dict[str, float](), dict[str, float]()
    for _ in range(PASSES):
        await best(commands, by_words, words)
        await best(commands, by_json, plain)
    head = [f"{len(commands):,} commands", "median, ms", "p99, ms", "a second"]
    rows = [
        row("a decision, new", new),
        row("a decision, repeated", seen),
        row("shlex and table lookup", words),
        row("json", plain),
    ]
    print(child.table(head, rows))
    median = statistics.median(new.values())
    hooks = hooks_ms()
    print(
        f"median of a new decision: {median:.2f} ms (bound {MEDIAN_MS:.1f}): {'ok' if median <= MEDIAN_MS else 'OVER'}"
    )
    share = hooks / median
    print(
        f"check for hooks: {hooks * 1e6:.0f} ns a call, {share:.2%} of a decision (bound {HOOKS_SHARE:.0%}): "
        f"{'ok' if share <= HOOKS_SHARE else 'OVER'}"
    )
    return 0 if median <= MEDIAN_MS and share <= HOOKS_SHARE else 1


if __name__ == "__main__":
    sys.exit(anyio.run(measured))
