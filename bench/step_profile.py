"""Print where the CPU of one step goes, by part of the runtime: `python bench/step_profile.py [STEPS]`.

The work is that of `step.py`. A run of one step is subtracted, which removes the start. The profiler slows every call
of a Python function, so parts with many small functions look larger than they are: compare two profiles, and measure
times with `step.py`. The time of a built-in function counts for the part that calls it.
"""

from __future__ import annotations

import json
import pstats
import re
import sys
import tempfile
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple, cast

import child
import step

STEPS = 400
WAITING = "method 'poll' of 'select.epoll'"
"""Built-in function in which the event loop waits."""

PARTS = (
    ("decide and facts", r"core/agent/(decide|rules/)|core/call_order|engine/(runtime|loop)\.py"),
    ("apply events", r"core/agent/|core/frozen|core/budgets|core/recovery|core/replies|engine/budgets"),
    ("context: view, tokens, pipeline", r"core/context/|engine/cache_watch"),
    ("permission check", r"core/permissions/|adapters/shell/|engine/operations/permission|engine/approvals"),
    ("tool call", r"adapters/tools/|adapters/system/(?!logs|clock)|engine/operations/tool|core/json_schema|pathlib"),
    ("requests and replies", r"adapters/models/|engine/operations/model_call|engine/rate_limits"),
    ("HTTP", r"aiohttp|multidict|yarl|propcache|asyncio/(selector_events|sslproto|streams)"),
    ("records: encode and commit", r"engine/agent_runtime|types/|pydantic|adapters/storage/|core/team/|core/keys"),
    ("other operations of the engine", r"engine/|core/"),
    ("screen and JSON output", r"callboard/cli/"),
    ("log", r"adapters/system/logs"),
    ("tasks and cancel scopes", r"anyio|sniffio"),
    ("event loop", r"asyncio|selectors|contextvars"),
)
"""Parts with the paths of their files; the first that matches counts."""


class Cost(NamedTuple):
    """Cost of one step, or of a run."""

    microseconds: Mapping[str, float]
    calls: Mapping[str, float]


def part_of(path: str) -> str:
    """Return the part to which a file belongs."""
    return next((name for name, pattern in PARTS if re.search(pattern, path)), "other")


def cost_of(output: Path) -> Cost:
    """Return the cost of a run from the files of `profiled.py`."""
    microseconds = Counter[str]()
    calls = Counter[str]()
    stats = cast("dict[tuple[str, int, str], tuple[Any, ...]]", vars(pstats.Stats(f"{output}.stats"))["stats"])
    for (path, _, name), (_, count, own, _, callers) in stats.items():
        if WAITING in name:
            continue
        if path != "~":
            microseconds[part_of(path)] += own * 1e6
            calls[part_of(path)] += count
            continue
        for (caller, _, _), (_, times, seconds, _) in callers.items():
            microseconds[part_of(caller)] += seconds * 1e6
            calls[part_of(caller)] += times
    unseen = json.loads(Path(f"{output}.json").read_text())
    microseconds |= {"garbage collections": unseen["collections"] * 1e6, "other threads": unseen["threads"] * 1e6}
    return Cost(microseconds, calls)


def profiled(server: step.Server, steps: int) -> Cost:
    """Return the cost of a run of so many steps."""
    with tempfile.TemporaryDirectory() as temporary:
        output = Path(temporary, "profile")

        def command(folder: Path, length: int) -> tuple[list[str], dict[str, str]]:
            words, extra = step.ours(folder, length)
            arguments = words[words.index("callboard") + 1 :]
            return [sys.executable, str(step.HERE / "profiled.py"), str(output), *arguments], extra

        step.run("ours", command, server, steps)
        return cost_of(output)


def main() -> int:
    steps = int(sys.argv[1]) if len(sys.argv) > 1 else STEPS
    with step.serving() as server:
        one, many = profiled(server, 1), profiled(server, steps)
    names = sorted(many.microseconds, key=lambda name: one.microseconds.get(name, 0) - many.microseconds[name])
    rows: list[list[str]] = []
    for name in names:
        used = (many.microseconds[name] - one.microseconds.get(name, 0)) / (steps - 1)
        count = (many.calls.get(name, 0) - one.calls.get(name, 0)) / (steps - 1)
        rows.append([name, f"{used:,.0f}", f"{count:,.0f}"])
    print(child.table(["part of a step", "us, profiled", "calls"], rows))
    return 0


if __name__ == "__main__":
    sys.exit(main())
