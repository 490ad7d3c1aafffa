"""The page on flows tells the truth: its functions exist, are called in its order, and are in few files."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from tests.flow_figures import MOST, files_of, flows

TESTS = Path(__file__).resolve().parent


def trace(folder: Path) -> list[tuple[str, str]]:
    """Run a session through all flows, with its own home, and return the calls of their stations in order."""
    home = {name: str(folder / name) for name in ("HOME", "XDG_STATE_HOME", "XDG_DATA_HOME", "XDG_CONFIG_HOME")}
    workspace = folder / "workspace"
    workspace.mkdir()
    ran = subprocess.run(
        [sys.executable, str(TESTS / "flow_trace.py"), str(workspace)],
        env={**os.environ, **home},
        capture_output=True,
        text=True,
        check=False,
    )
    assert ran.returncode == 0, ran.stderr
    return [(file, function) for file, function in json.loads(ran.stdout)]


@pytest.mark.slow
def test_the_stations_of_each_flow_are_called_in_the_order_of_the_page(tmp_path: Path) -> None:
    calls = trace(tmp_path)
    for title, stations in flows().items():
        place = 0
        for station in stations:
            assert station in calls[place:], f"{title}: {station} is not called after the stations before it"
            place = calls.index(station, place) + 1


@pytest.mark.parametrize(("title", "most"), MOST.items())
def test_a_flow_needs_few_files(title: str, most: int) -> None:
    assert 5 < files_of(flows()[title]) <= most
