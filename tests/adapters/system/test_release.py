"""A process whose files were replaced by an upgrade reports it, and its children do not use the new files."""

from __future__ import annotations

import subprocess
import sys
from functools import partial
from pathlib import Path

import anyio
import pytest

from callboard.adapters.processes.launcher import ShellLauncher
from callboard.adapters.system import release
from callboard.adapters.system.release import InstalledRelease
from callboard.types.errors import ToolRefused

ADAPTERS = Path(release.__file__).parents[1]
UPGRADED = "Callboard was upgraded from 0.1.0 to 0.2.0 while this process runs: restart it"


def install(file: Path, version: str) -> None:
    """Replace the file by another, as an installer does."""
    new = file.with_name("new")
    new.write_text(f'"""A package."""\n\n__version__ = "{version}"\n')
    new.replace(file)


@pytest.fixture
def file(tmp_path: Path) -> Path:
    install(tmp_path / "__init__.py", "0.1.0")
    return tmp_path / "__init__.py"


def test_an_upgrade_names_both_versions(file: Path) -> None:
    began = InstalledRelease(str(file))
    assert began.replaced_by() == ""
    install(file, "0.2.0")
    assert began.replaced_by() == UPGRADED


def test_the_same_version_that_is_installed_anew_counts_too(file: Path) -> None:
    began = InstalledRelease(str(file))
    install(file, "0.1.0")
    assert began.replaced_by().startswith("Callboard 0.1.0 was reinstalled")


def test_an_upgrade_that_is_under_way_has_no_version_yet(file: Path) -> None:
    began = InstalledRelease(str(file))
    file.unlink()
    assert (began.is_installed(), began.replaced_by()[:34]) == (False, "Callboard 0.1.0 is being replaced ")


CHILDREN = {
    "processes/launch_child.py": ["OUTPUT", "1000", "hold", "/", "/bin/sh", "true"],
    "mcp/server_child.py": ["OUTPUT", "1000", "/", "/bin/true", "true"],
    "processes/confined_child.py": ["abi=1", "filter=00", "--", "/bin/true"],
    "tools/search_child.py": ["/", "x", "1", "0"],
}


@pytest.mark.parametrize("script", CHILDREN)
def test_a_child_of_another_version_refuses_in_plain_words_and_runs_nothing(script: str, tmp_path: Path) -> None:
    output = tmp_path / "output"
    words = [str(output) if word == "OUTPUT" else word for word in CHILDREN[script]]
    mark = ["-X", "callboard=1.2.3/0.0.9"]
    argv = [sys.executable, "-I", "-S", *mark, str(ADAPTERS / script), *words]
    ran = subprocess.run(argv, stdin=subprocess.DEVNULL, capture_output=True, timeout=180, check=False)
    files = [one.read_text() for one in (output, Path(f"{output}.failed")) if one.exists()]
    assert ran.returncode not in (0, 1)
    assert "Callboard was upgraded from 0.0.9 to " in "".join([ran.stderr.decode(), *files])


def test_no_command_is_started_after_an_upgrade(file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(release, "OURS", InstalledRelease(str(file)))
    launcher = ShellLauncher(tmp_path, {"PATH": "/usr/bin:/bin"})
    install(file, "0.2.0")
    with pytest.raises(ToolRefused, match="upgraded from"):
        anyio.run(partial(launcher.run, "touch ran", tmp_path, timeout=5.0, keep=tmp_path / "out"))
    assert not (tmp_path / "ran").exists()
