"""Count what a session writes: bytes and syncs of a step and of a subagent's life, and the size of its database.

A step is one model call and one `read_file` of 2 KB, another file in each step, with default settings and a window of
`WINDOW` tokens, so that the long session is compacted. A run of one step is subtracted, which removes the start. A life
is that of a subagent that answers at once: a session with `AGENTS` of them, minus a session with one.

strace counts the bytes that the process hands to the kernel, by file. /proc/PID/io cannot tell files from sockets
(`wchar`), or counts pages of the file system, and nothing on tmpfs (`write_bytes`). Not counted: the index of the
write-ahead log (`-shm`), which is shared memory and never synced, and byte code. The load of the machine changes no
count. The database is measured after the session, when its log has been copied into it.

Exit with 1 if a number exceeds its bound in `BOUNDS`.
"""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
import sysconfig
import tempfile
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import child
from bare import MODEL
from server import FILES
from step import RESULT_BYTES, NotComparable, Server, serving

LENGTHS = (200, 2_000)
WINDOW = 200_000
AGENTS = 100
BOUNDS = {"KB per step": 16.0, "syncs per step": 1.1, "KB of database per step": 4.5, "KB per life": 40.0}
FOLDED = 10_000
HERE = Path(__file__).parent
WRITES = "write,pwrite64,writev,pwritev,pwritev2,sendfile,copy_file_range"
SYNCS = "fsync,fdatasync"
STORE = ("write-ahead log", "database", "blobs")
PARTS = {
    "write-ahead log": r"callboard\.db(\.new)?-(wal|journal)$",
    "database": r"callboard\.db(\.new)?$",
    "blobs": r"/blobs(/|$)",
    "transcript": r"/transcripts/",
    "its copy for other programs": r"/\.claude/projects/",
    "log file": r"/callboard/[^/]+/log/",
    "other files": r"/\.local/(state|share)/callboard/|/\.cache/",
}
"""Kinds of files of a session with their paths; the first that matches counts."""
CALL = re.compile(r"(?P<thread>\d+) +(?P<call>\w+)\((?P<arguments>.*)")
RESUMED = re.compile(r"(?P<thread>\d+) +<\.\.\. \w+ resumed>(?P<arguments>.*)")
PATH = re.compile(r"\d+<([^>]*)>")
RESULT = re.compile(r"\) += (\d+)$")
"""Result of a call that did not fail. strace aligns the results of short lines."""


@dataclass(frozen=True)
class Written:
    """Bytes and syncs by kind of file, and the bytes of the database after the end; of a run, or for each unit."""

    bytes: Mapping[str, float]
    syncs: Mapping[str, float]
    database: float

    def beyond(self, other: Written, units: int) -> Written:
        """Return the difference to a run with this many units less, for each unit."""
        return Written(
            {part: (self.bytes[part] - other.bytes[part]) / units for part in PARTS},
            {part: (self.syncs[part] - other.syncs[part]) / units for part in PARTS},
            (self.database - other.database) / units,
        )

    @property
    def kb(self) -> float:
        return sum(self.bytes.values()) / 1_024


@cache
def source_text() -> str:
    """Return real text in which the parts differ: source code of the standard library, without line ends."""
    files = sorted(Path(sysconfig.get_path("stdlib")).glob("*.py"))
    return " ".join("".join(file.read_text("utf-8", "replace") for file in files).split())


def part_text(number: int) -> str:
    """Return `RESULT_BYTES` of text in four lines."""
    begin = number * RESULT_BYTES
    text = source_text()[begin : begin + RESULT_BYTES].encode("ascii", "replace").decode()
    quarter = RESULT_BYTES // 4
    return "".join(text[at : at + quarter - 1] + "\n" for at in range(0, RESULT_BYTES, quarter))


def run(command: list[str], url: str, place: Path, steps: int) -> Written:
    """Return what a command writes in its own folder. Raises `child.ChildFailed`."""
    home, folder, trace = place / "home", place / "workspace", place / "trace"
    home.mkdir(parents=True)
    folder.mkdir()
    for number in range(steps):
        (folder / FILES.format(number)).write_text(part_text(number))
    tracing = ["strace", "-f", "-qq", "-y", "-s", "0", "--seccomp-bpf", "-o", str(trace), "-e", f"{WRITES},{SYNCS}"]
    env = child.environment(
        home, ANTHROPIC_BASE_URL=url, ANTHROPIC_API_KEY="not-a-key", CALLBOARD_LIMITS__STUCK_AFTER="1000000"
    )
    child.run([*tracing, *command], env, folder)
    databases = home.glob(".local/state/callboard/*/callboard.db*")
    size = sum(file.stat().st_size for file in databases if not file.name.endswith("-shm"))
    return counted(trace, size)


def counted(trace: Path, database: int) -> Written:
    """Add up the output of strace. A call that another thread interrupts is in two lines."""
    sizes = Counter[str]()
    syncs = Counter[str]()
    pending: dict[str, tuple[str, str]] = {}
    with trace.open(errors="replace") as lines:
        for line in lines:
            if begun := CALL.match(line):
                thread, call, arguments = begun["thread"], begun["call"], begun["arguments"]
                if "<unfinished ...>" in arguments:
                    pending[thread] = (call, arguments)
                    continue
            elif (resumed := RESUMED.match(line)) and resumed["thread"] in pending:
                call, arguments = pending.pop(resumed["thread"])
                arguments += resumed["arguments"]
            else:
                continue
            paths = PATH.findall(arguments)
            result = RESULT.search(arguments)
            part = part_of(paths[-1 if call == "copy_file_range" else 0]) if paths else None
            if part is None or result is None:
                continue
            if call in SYNCS:
                syncs[part] += 1
            else:
                sizes[part] += int(result[1])
    return Written(sizes, syncs, database)


def part_of(path: str) -> str | None:
    return next((part for part, pattern in PARTS.items() if re.search(pattern, path)), None)


def session(server: Server, place: Path, steps: int) -> Written:
    """Return what a session of one agent writes."""
    command = [sys.executable, "-m", "callboard", "run", "Read the notes, part by part.", "--model", MODEL]
    command += ["--max-turns", str(steps + 10), "--output-format", "json"]
    label = f"session-{steps}+{WINDOW}window+files"
    written = run(command, server.base_url(steps, label), place, steps)
    if (replies := server.seen(label).get("replies")) != steps + 1:
        raise NotComparable(f"a session of {steps} steps made {replies} model calls")
    return written


def fan_out(server: Server, place: Path, agents: int) -> Written:
    """Return what a session with this many subagents writes, each of which answers at once."""
    command = [sys.executable, "-m", "callboard", "run", "Go.", "--model", MODEL, "--output-format", "json"]
    return run(command, server.base_url(0, f"lives-{agents}+{agents}agents"), place, 0)


def folding(place: Path) -> dict[str, float]:
    """Return the seconds to fold the journal of a session, and to decode its JSON (`resume_side.py`)."""
    env = child.environment(place / "home")
    command = [sys.executable, str(HERE / "resume_side.py")]
    ran = subprocess.run(command, env=env, cwd=place / "workspace", capture_output=True, text=True, check=False)
    if ran.returncode:
        raise child.ChildFailed(ran.stderr[-2_000:])
    return json.loads(ran.stdout)


def table(columns: Mapping[str, Written]) -> str:
    """Return the bytes and syncs by kind of file, one column for each measurement."""
    shown: Mapping[str, Callable[[Written], str]] = {
        **{part: lambda one, part=part: f"{one.bytes[part] / 1_024:.2f}" for part in PARTS},
        "all": lambda one: f"{one.kb:.2f}",
        "size of the database": lambda one: f"{one.database / 1_024:.2f}",
        "syncs of the log": lambda one: f"{one.syncs['write-ahead log']:.3f}",
        "all syncs": lambda one: f"{sum(one.syncs.values()):.3f}",
    }
    rows = [[name, *map(show, columns.values())] for name, show in shown.items()]
    return child.table(["KB written to", *columns], rows)


def main() -> int:
    if not shutil.which("strace"):
        print("no numbers: strace is not installed")
        return 1
    with serving() as server, tempfile.TemporaryDirectory() as temporary:
        place = Path(temporary)
        try:
            one = session(server, place / "1", 1)
            steps = {length: session(server, place / str(length), length).beyond(one, length - 1) for length in LENGTHS}
            lone = fan_out(server, place / "lone", 1)
            life = fan_out(server, place / "many", AGENTS).beyond(lone, AGENTS - 1)
            folded = folding(place / str(LENGTHS[-1]))
        except (NotComparable, child.ChildFailed) as failed:
            print(f"no numbers: {failed}")
            return 1
    print(table({**{f"step, {length:,}": step for length, step in steps.items()}, f"life, {AGENTS}": life}))
    print(
        f"folding {FOLDED:,} events: {folded['fold'] / folded['events'] * FOLDED:.2f} s, "
        f"{folded['fold'] / folded['json']:.1f} of json.loads alone"
    )
    measured = {
        "KB per step": max(step.kb for step in steps.values()),
        "syncs per step": max(sum(step.syncs.values()) for step in steps.values()),
        "KB of database per step": max(step.database for step in steps.values()) / 1_024,
        "KB per life": life.kb,
    }
    for name, number in measured.items():
        print(f"{name}: {number:.2f} (bound {BOUNDS[name]:g}): {'ok' if number <= BOUNDS[name] else 'OVER'}")
    return 0 if all(number <= BOUNDS[name] for name, number in measured.items()) else 1


if __name__ == "__main__":
    sys.exit(main())
