"""The set-up of the test environment: settings of registries, and what happens without uv."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from tests import set_up

LISTED = """\
global.index-url='https://registry.example/simple'
global.timeout='60'
install.find-links='/wheels /more'
:env:.index-url='https://user:word@other.example/simple'
:env:.trusted-host='other.example one.example'
"""


def test_settings_of_pip_reach_uv() -> None:
    variables = set_up.uv_variables(set_up.pip_settings(LISTED), {})
    assert variables == {
        "UV_DEFAULT_INDEX": "https://user:word@other.example/simple",
        "UV_FIND_LINKS": "/wheels,/more",
        "UV_HTTP_TIMEOUT": "60",
        "UV_INDEX_STRATEGY": "unsafe-best-match",
        "UV_INSECURE_HOST": "other.example one.example",
    }


def test_what_the_environment_sets_for_uv_stays() -> None:
    variables = set_up.uv_variables(set_up.pip_settings(LISTED), {"UV_DEFAULT_INDEX": "https://mine.example"})
    assert "UV_DEFAULT_INDEX" not in variables


def test_lines_that_are_no_settings_are_left_out() -> None:
    assert set_up.pip_settings("") == {}
    assert set_up.pip_settings("WARNING: nothing found\n") == {}


BACKEND = """\
import pathlib, zipfile

def build_editable(folder, config_settings=None, metadata_directory=None):
    info = "tiny-1.dist-info"
    with zipfile.ZipFile(pathlib.Path(folder, "tiny-1-py3-none-any.whl"), "w") as wheel:
        wheel.writestr("tiny.py", "")
        wheel.writestr(f"{info}/METADATA", "Metadata-Version: 2.1\\nName: tiny\\nVersion: 1\\n")
        wheel.writestr(f"{info}/WHEEL", "Wheel-Version: 1.0\\nRoot-Is-Purelib: true\\nTag: py3-none-any\\n")
        wheel.writestr(f"{info}/RECORD", "")
    return "tiny-1-py3-none-any.whl"
"""
PROJECT = """\
[build-system]
requires = []
build-backend = "backend"
backend-path = ["."]
[project]
name = "tiny"
version = "1"
"""


def run_set_up(folder: Path, path: str, variables: dict[str, str]) -> subprocess.CompletedProcess[str]:
    """Set up a venv for a project that needs no other package, and nothing from a registry to be built."""
    (folder / "backend.py").write_text(BACKEND, "utf-8")
    (folder / "pyproject.toml").write_text(PROJECT, "utf-8")
    return subprocess.run(
        [sys.executable, set_up.__file__, "env", "."],
        cwd=folder,
        env={**os.environ, "PATH": path, **variables},
        capture_output=True,
        text=True,
        check=False,
    )


def is_installed(folder: Path) -> bool:
    return subprocess.run([folder / "env/bin/python", "-c", "import tiny"], check=False).returncode == 0


@pytest.mark.slow
def test_without_uv_and_without_a_registry_that_has_it_pip_installs(tmp_path: Path) -> None:
    done = run_set_up(tmp_path, "/usr/bin:/bin", {"PIP_NO_INDEX": "1", "PIP_FIND_LINKS": ""})
    assert (done.returncode, is_installed(tmp_path)) == (0, True), done.stderr
    assert done.stderr.splitlines() == [
        "Setting up env, once.",
        "uv cannot install the packages here: pip does, which takes about a minute.",
    ]


@pytest.mark.slow
def test_a_failure_of_pip_is_the_exit_code(tmp_path: Path) -> None:
    (tmp_path / "project").mkdir()
    done = run_set_up(tmp_path / "project", "/usr/bin:/bin", {"PIP_NO_INDEX": "1", "PIP_CONSTRAINT": "/no/such/file"})
    assert done.returncode != 0
    assert "/no/such/file" in done.stderr


@pytest.mark.slow
@pytest.mark.skipif(shutil.which("uv") is None, reason="uv is not installed")
def test_uv_on_the_path_installs(tmp_path: Path) -> None:
    done = run_set_up(tmp_path, os.environ["PATH"], {})
    assert (done.returncode, is_installed(tmp_path), done.stderr) == (0, True, "Setting up env, once.\n")


@pytest.mark.slow
def test_all_tests_are_collected_without_the_packages_that_make_may_leave_out() -> None:
    """`make` installs `playwright` only beside Chromium. Without it the tests in a browser are skipped."""
    hidden = "import sys\nsys.modules['playwright'] = None\nimport pytest\n"
    program = (
        hidden + "sys.exit(pytest.main(['--collect-only', '-q', '-n', '0', '-p', 'no:cacheprovider', 'tests/web']))"
    )
    root = Path(set_up.__file__).parents[1]
    done = subprocess.run([sys.executable, "-c", program], cwd=root, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout
