"""Installations of Callboard, read from metadata as installers write it."""

from __future__ import annotations

import json
from importlib.metadata import Distribution
from pathlib import Path
from typing import Any

import pytest

from callboard import __version__
from callboard.adapters.system.installation import PythonEnvironment, installation_of, this_installation

PREFIX = "/home/me/.venv"
PYTHON = f"{PREFIX}/bin/python"
PIP = (PYTHON, "-P", "-m", "pip", "install", "--upgrade")
UV = ("uv", "pip", "install", "--python", PYTHON)
GIT = {"url": "https://example.org/x", "vcs_info": {"vcs": "git", "requested_revision": "main", "commit_id": "0" * 40}}


def _package(folder: Path, installer: str, source: Any = None) -> Distribution:
    files = folder / "callboard-1.2.dist-info"
    files.mkdir(parents=True)
    (files / "METADATA").write_text("Metadata-Version: 2.1\nName: callboard\nVersion: 1.2\n")
    if installer:
        (files / "INSTALLER").write_text(f"{installer}\n")
    if source is not None:
        (files / "direct_url.json").write_text(source if isinstance(source, str) else json.dumps(source))
    return Distribution.at(files)


@pytest.mark.parametrize(
    ("installer", "source", "command"),
    [
        ("pip", None, (*PIP, "callboard")),
        ("uv", None, (*UV, "--upgrade-package", "callboard", "callboard")),
        ("pip", GIT, (*PIP, "--force-reinstall", "callboard @ git+https://example.org/x@main")),
        ("uv", GIT, (*UV, "--reinstall-package", "callboard", "callboard @ git+https://example.org/x@main")),
        (
            "pip",
            {"url": "https://example.org/x", "vcs_info": {"vcs": "git"}, "subdirectory": "py"},
            (*PIP, "--force-reinstall", "callboard @ git+https://example.org/x#subdirectory=py"),
        ),
        ("pip", {"url": "file:///src/my%20x", "dir_info": {}}, (*PIP, "--force-reinstall", "/src/my x")),
        ("pip", "{broken", (*PIP, "callboard")),
        ("pip", "[]", (*PIP, "callboard")),
    ],
)
def test_pip_and_uv_update_what_they_installed(
    tmp_path: Path, installer: str, source: Any, command: tuple[str, ...]
) -> None:
    found = installation_of(_package(tmp_path, installer, source), PythonEnvironment(Path(PREFIX), PYTHON))
    assert (found.version, found.command) == ("1.2", command)
    assert found.how.startswith(f"with {installer}, in {PREFIX}")


@pytest.mark.parametrize(
    ("installer", "source", "has_pip", "advice"),
    [
        ("conda", None, True, "update it as you installed it"),
        ("", None, True, "update it as you installed it"),
        ("pip", None, False, "has no pip any more"),
        ("pip", {"url": "file:///w/callboard-1.2.whl", "archive_info": {}}, True, "install a newer file"),
        ("pip", {"url": "file:///src/x", "dir_info": {"editable": True}}, True, "`git -C /src/x pull`"),
        ("uv", {"url": "file:///src/x", "dir_info": {"editable": True}}, True, "`git -C /src/x pull`"),
    ],
)
def test_what_no_command_updates_is_explained(
    tmp_path: Path, installer: str, source: Any, has_pip: bool, advice: str
) -> None:
    environment = PythonEnvironment(Path(PREFIX), PYTHON, has_pip=has_pip)
    found = installation_of(_package(tmp_path, installer, source), environment)
    assert found.command == ()
    assert advice in found.advice


@pytest.mark.parametrize(
    ("receipt", "command"),
    [
        ("uv-receipt.toml", ("uv", "tool", "upgrade", "callboard")),
        ("pipx_metadata.json", ("pipx", "upgrade", "callboard")),
    ],
)
@pytest.mark.parametrize("source", [None, GIT])
def test_tools_are_updated_by_their_manager(
    tmp_path: Path, receipt: str, command: tuple[str, ...], source: Any
) -> None:
    prefix = tmp_path / "tools" / "callboard"
    package = _package(prefix / "lib", "uv" if "uv" in receipt else "pip", source)
    (prefix / receipt).write_text("")
    assert installation_of(package, PythonEnvironment(prefix, PYTHON)).command == command


def test_a_project_of_uv_is_updated_with_its_lock_file(tmp_path: Path) -> None:
    package = _package(tmp_path / ".venv", "uv")
    (tmp_path / "uv.lock").write_text("")
    command = ("uv", "sync", "--project", str(tmp_path), "--upgrade-package", "callboard")
    assert installation_of(package, PythonEnvironment(tmp_path / ".venv", PYTHON)).command == command


def test_an_environment_of_one_run_is_not_updated(tmp_path: Path) -> None:
    prefix = tmp_path / "uv" / "archive-v0" / "a1"
    found = installation_of(_package(prefix, "uv"), PythonEnvironment(prefix, PYTHON))
    assert found.command == ()
    assert "uvx callboard@latest" in found.advice


def test_a_package_of_the_user_is_updated_there(tmp_path: Path) -> None:
    environment = PythonEnvironment(Path("/usr"), "/usr/bin/python3", user_site=str(tmp_path))
    command = installation_of(_package(tmp_path, "pip"), environment).command
    assert command == ("/usr/bin/python3", "-P", "-m", "pip", "install", "--upgrade", "--user", "callboard")


def test_the_version_of_this_process_is_its_own() -> None:
    assert this_installation().version == __version__
