"""Programs that the runtime starts load no code from the folder in which it was started."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from callboard.adapters.processes.systemd import callboard_command, run_tool
from callboard.adapters.shell.parser import find_shfmt

SCENARIO = "agents: {lead: [{reply: hello}]}\n"


@pytest.fixture
def planted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Fill the current folder with modules and programs that leave a mark, and return the path of the mark."""
    mark, folder = tmp_path / "sprung", tmp_path / "work"
    for module in ("callboard/__init__.py", "callboard/__main__.py", "typing.py", "sitecustomize.py", "anyio.py"):
        (folder / module).parent.mkdir(parents=True, exist_ok=True)
        (folder / module).write_text(f"open({str(mark)!r}, 'a').write({module!r})\n")
    for program in ("systemctl", "shfmt"):
        (folder / program).write_text(f"#!/bin/sh\necho {program} >> {mark}\n")
        (folder / program).chmod(0o755)
    monkeypatch.chdir(folder)
    monkeypatch.setenv("PATH", f".:{folder}")
    return mark


@pytest.mark.slow
def test_a_module_of_the_current_folder_is_not_taken_for_ours(planted: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    Path("scenario.yaml").write_text(SCENARIO)
    serve = [sys.executable, "-P", "-c", "from callboard.__main__ import main; main()", "rehearse", "serve"]
    process = subprocess.Popen([*serve, "scenario.yaml"], stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    with process.stdout:
        assert process.stdout.readline().startswith("listening on ")
    process.terminate()
    process.wait()
    monkeypatch.setattr(sys, "executable", str(planted.parent / "python"))
    assert callboard_command()[1] == "-P"
    assert not planted.exists(), planted.read_text()


def test_a_program_of_the_current_folder_is_not_run(planted: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert run_tool(["systemctl", "--version"]) is None
    monkeypatch.setattr(sys, "executable", str(planted.parent / "python"))
    assert find_shfmt() is None
    assert not planted.exists()
