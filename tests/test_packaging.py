"""What is built is what runs: sdist, wheel from the sdist, a new environment outside the checkout, the demo from it."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import sysconfig
import tarfile
import tomllib
import zipfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from importlib.metadata import packages_distributions
from importlib.util import find_spec
from pathlib import Path

import pytest
from tests.test_architecture import FORBIDDEN, LOCKS, RUNTIME, imported, index_hosts

ROOT = Path(__file__).resolve().parent.parent
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]
VERSION = PROJECT["version"]
NAMED_BY_OTHERS = {"httpx2", "pydantic_core"}
"""What anthropic and pydantic bring, and show in their own interfaces."""


@dataclass(frozen=True)
class Made:
    """What `python -m build` left: an sdist, and the wheel that was built from it."""

    sdist: Path
    wheel: Path

    def sdist_files(self) -> dict[str, bytes]:
        with tarfile.open(self.sdist) as archive:
            files = [(one.name.split("/", 1)[1], archive.extractfile(one)) for one in archive if one.isfile()]
            return {name: file.read() for name, file in files if file is not None}

    def wheel_files(self) -> dict[str, bytes]:
        with zipfile.ZipFile(self.wheel) as archive:
            return {name: archive.read(name) for name in archive.namelist()}


def ran(command: Sequence[str | Path], **more: object) -> subprocess.CompletedProcess[str]:
    text = [str(word) for word in command]
    return subprocess.run(text, capture_output=True, text=True, check=False, stdin=subprocess.DEVNULL, **more)


@pytest.fixture(scope="module")
def outside(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A folder that is not below the checkout, and goes when the tests are done: environments are large."""
    folder = tmp_path_factory.mktemp("outside")
    yield folder
    shutil.rmtree(folder, ignore_errors=True)


@pytest.fixture(scope="module")
def made(outside: Path) -> Made:
    how = ["--no-isolation"] if find_spec("hatchling") else []  # else an environment is made for each of the two
    built = ran([sys.executable, "-m", "build", *how, "--outdir", outside / "dist", ROOT], timeout=300)
    if built.returncode and _no_index(built.stdout + built.stderr):
        pytest.skip("the package index cannot be reached, and building needs hatchling from it")
    assert built.returncode == 0, built.stdout[-2_000:] + built.stderr[-2_000:]
    (sdist,), (wheel,) = (outside / "dist").glob("*.tar.gz"), (outside / "dist").glob("*.whl")
    return Made(sdist, wheel)


@pytest.fixture(scope="module")
def installed(made: Made, outside: Path) -> Path:
    """The `bin` of a new environment that holds the wheel and nothing of the checkout. What it depends on is that of
    the environment in which the tests run (`test_the_wheel_brings_all_that_it_needs` installs it anew)."""
    bin_ = environment(outside / "venv", made.wheel, "--no-deps")
    (place,) = (outside / "venv/lib").glob("python*/site-packages")
    (place / "others.pth").write_text(f"{sysconfig.get_path('purelib')}\n")  # after the wheel's own, .pth files unread
    return bin_


def environment(folder: Path, wheel: Path, *more: str) -> Path:
    """The `bin` of a new environment with the wheel installed."""
    pip_here = find_spec("pip") is not None  # it installs into other environments too, and takes long to install
    subprocess.run([sys.executable, "-m", "venv", *(["--without-pip"] if pip_here else []), folder], check=True)
    python = folder / "bin/python"
    installer = [sys.executable, "-m", "pip", "--python", python] if pip_here else [python, "-m", "pip"]
    pip = ran([*installer, "install", "-q", "--no-compile", *more, wheel], timeout=300, cwd=folder)
    if pip.returncode and _no_index(pip.stderr):
        pytest.skip("the package index cannot be reached, and the wheel's dependencies come from it")
    assert pip.returncode == 0, pip.stderr
    return folder / "bin"


def _no_index(told: str) -> bool:
    signs = ("No matching distribution", "Could not find a version", "connection broken", "Temporary failure in name")
    return any(sign in told for sign in signs)


def callboard(installed: Path, home: Path, *words: str) -> subprocess.CompletedProcess[str]:
    """The installed command as a person with an empty home runs it: none of our environment, no key."""
    home.mkdir(exist_ok=True)
    environ = {"PATH": f"{installed}:{os.environ['PATH']}", "HOME": str(home), "LANG": "C.UTF-8"}
    return ran([installed / "callboard", *words], cwd=home, env=environ, timeout=180)


def test_both_hold_the_data_that_the_package_needs(made: Made) -> None:
    sdist, wheel = made.sdist_files(), made.wheel_files()
    for name in ("agents/lead.md", "skills/run-a-team/SKILL.md", "hooks/hooks.json"):
        assert sdist[name] == wheel[f"callboard/_builtin/{name}"] == (ROOT / name).read_bytes()
    for name in ("data/demo.yaml", "data/sample/README.md", "py.typed"):
        assert sdist[f"runtime/callboard/{name}"] == wheel[f"callboard/{name}"]
    assert {"README.md", "CHANGELOG.md", "LICENSE", "Makefile", ".importlinter", "tests/test_packaging.py"} <= set(
        sdist
    )


def test_the_wheel_holds_the_package_and_nothing_else(made: Made) -> None:
    assert {name.split("/")[0] for name in made.wheel_files()} == {"callboard", f"callboard-{VERSION}.dist-info"}


@pytest.mark.slow
def test_neither_holds_a_lock_file_a_cache_or_the_name_of_a_machine(made: Made) -> None:
    hosts = [host.encode() for host in index_hosts()]
    for name, content in {**made.sdist_files(), **made.wheel_files()}.items():
        assert Path(name).name not in LOCKS
        assert not {"__pycache__", ".venv", ".git"} & set(Path(name).parts), name
        assert not [host for host in hosts if host in content], name
        if not name.endswith("test_architecture.py"):
            assert not FORBIDDEN.search(content.decode("utf-8", "replace")), name


def test_the_installed_command_tells_its_version(installed: Path, tmp_path: Path) -> None:
    told = callboard(installed, tmp_path / "home", "--version")
    assert (told.returncode, told.stdout) == (0, f"callboard {VERSION}\n"), told.stderr


@pytest.mark.soak
def test_the_wheel_brings_all_that_it_needs(made: Made, outside: Path, tmp_path: Path) -> None:
    fresh = environment(outside / "fresh", made.wheel)
    told = callboard(fresh, tmp_path / "home", "demo", "--yes")
    assert told.returncode == 0, told.stdout[-3_000:] + told.stderr[-3_000:]


def _plain(name: str) -> str:
    """A distribution's name as registries compare them."""
    return re.sub(r"[-_.]+", "-", name).lower()


@pytest.mark.slow
def test_all_that_is_imported_is_declared() -> None:
    """The packages that the code names are those that pyproject.toml asks for, whatever else is installed here."""
    extras = [one for extra, ones in PROJECT["optional-dependencies"].items() if extra != "dev" for one in ones]
    declared = {_plain(re.split(r"[\[<>=~!; ]", one)[0]) for one in [*PROJECT["dependencies"], *extras]}
    tops = {name.partition(".")[0] for path in RUNTIME for name in imported(path)}
    others = {top for top in tops if top and top not in sys.stdlib_module_names and top != "callboard"}
    homes = packages_distributions()
    undeclared = {top for top in others if not set(map(_plain, homes.get(top, ["?"]))) & declared}
    assert undeclared - NAMED_BY_OTHERS == set()


def test_the_installed_package_is_the_wheels(installed: Path, tmp_path: Path) -> None:
    where = ran([installed / "python", "-c", "import callboard; print(callboard.__file__)"], cwd=tmp_path).stdout
    assert Path(where.strip()).is_relative_to(installed.parent)


@pytest.mark.slow
def test_the_installed_doctor_says_what_is_found_and_missing(installed: Path, tmp_path: Path) -> None:
    told = callboard(installed, tmp_path / "home", "doctor")
    assert told.returncode == 0, told.stderr
    assert "ANTHROPIC_API_KEY" in told.stdout
    assert re.search(r"^\w+ +sandbox +level [0-3]", told.stdout, re.MULTILINE)


@pytest.mark.slow
def test_the_installed_demo_mends_its_sample(installed: Path, tmp_path: Path) -> None:
    told = callboard(installed, tmp_path / "home", "demo", "--yes")
    assert told.returncode == 0, told.stdout[-3_000:] + told.stderr[-3_000:]
    assert "The sample's tests pass now" in told.stdout + told.stderr
