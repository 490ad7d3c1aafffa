"""Count the files that a reader opens to follow one flow: `python tests/flow_figures.py` prints a table.

`docs/flows.md` lists the stations of each flow, a function of a file each. `tests/test_flows.py` runs the flows and
checks that the stations are called in this order.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

PAGE = Path(__file__).resolve().parent.parent / "docs" / "flows.md"
MOST = {"A prompt": 25, "A message": 18, "An approved plan": 16, "A fired schedule": 14, "A permission decision": 22}
"""Most files for each flow, by the title of its section."""

_STATION = re.compile(r"^\| \d+ \| `([\w/]+\.py)` \| `([\w.]+)` \|", re.MULTILINE)


def flows(page: Path = PAGE) -> Mapping[str, Sequence[tuple[str, str]]]:
    """Return the stations of each flow as (file, function), by the title of its section."""
    sections = re.split(r"^## (.+)$", page.read_text(encoding="utf-8"), flags=re.MULTILINE)
    tables = {title: _STATION.findall(body) for title, body in zip(sections[1::2], sections[2::2], strict=True)}
    return {title: stations for title, stations in tables.items() if stations}


def files_of(stations: Sequence[tuple[str, str]]) -> int:
    """Return the number of different files among the stations."""
    return len({file for file, _ in stations})


if __name__ == "__main__":
    for title, stations in flows().items():
        sys.stdout.write(f"{title:24} {files_of(stations):3} files, at most {MOST[title]}\n")
