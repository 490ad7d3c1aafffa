"""Run pyright on the modules whose types can have changed since they last passed, in two processes.

    python tests/check_types.py [--all]

What pyright says of a module depends on its text, on that of all modules below it in the imports, on the settings, and
on the installed packages. A digest of these is kept for each module that passed, so that a check after a small change
takes seconds. `--all` ignores what is kept.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import subprocess
import sys
import tomllib
from collections.abc import Iterable, Mapping, Sequence
from importlib.metadata import distributions
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
KEPT = Path(sys.prefix) / ".checked-types.json"
IMPORT = re.compile(r"^ *(?:from ([\w.]+) import (\([^)]*\)|[^#\n]*)|import ([\w.]+))", re.MULTILINE)
NODE_OPTIONS = "--max-semi-space-size=128"
"""Megabytes for new objects of node: with its 16, a tenth of the time of pyright is garbage collection."""
FEW = 40
"""Modules that one process checks as fast as two: each has to read what they import."""


def checked_files(settings: Mapping[str, Sequence[str]]) -> list[Path]:
    """Return the files that pyright's settings name."""
    excluded = [ROOT / name for name in settings["exclude"]]
    found = [path for top in settings["include"] for path in sorted((ROOT / top).rglob("*.py"))]
    return [path for path in found if not any(path.is_relative_to(each) for each in excluded)]


def imported(text: str, known: Mapping[str, Path]) -> set[str]:
    """Return the modules of the package, and of `bench`, that a module imports."""
    names = set[str]()
    for package, taken, module in IMPORT.findall(text):
        names |= {package or module, *(f"{package}.{name}" for name in re.findall(r"\w+", taken))}
    return names & known.keys()


def below(module: str, imports: Mapping[str, Iterable[str]]) -> set[str]:
    """Return a module and all that it imports, directly or not."""
    found, left = {module}, [module]
    while left:
        new = set(imports[left.pop()]) - found
        found |= new
        left += new
    return found


def digests(texts: Mapping[Path, str], environment: str) -> dict[Path, str]:
    """Return, for each file, the digest of all that its result depends on. Modules that import the least come first."""
    names = {_module_name(path): path for path in texts}
    imports = {name: imported(texts[path], names) for name, path in names.items()}
    # It names the modules of the whole package for users. Within the package only its version is taken from it.
    imports["callboard"] = set()
    own = {name: hashlib.sha256(texts[path].encode()).hexdigest() for name, path in names.items()}
    reach = {name: below(name, imports) for name in names}
    return {
        names[name]: _digest([environment, name, *sorted(own[each] for each in reach[name])])
        for name in sorted(names, key=lambda name: (len(reach[name]), name))
    }


def _module_name(path: Path) -> str:
    parts = path.relative_to(ROOT).with_suffix("").parts[1:]  # both folders are on the path of their modules
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def _digest(parts: Iterable[str]) -> str:
    return hashlib.sha256("\n".join(parts).encode()).hexdigest()


def environment_of(settings: Mapping[str, object]) -> str:
    """Return the digest of the settings and of the versions of all installed packages, of Python and of pyright."""
    installed = sorted(f"{each.name} {each.version}" for each in distributions())
    return _digest([sys.version, json.dumps(settings, sort_keys=True), *installed])


def halves(files: Sequence[Path]) -> list[Sequence[Path]]:
    """Divide the files into parts of the same size, one for each process.

    The first part needs none of the modules that import the most.
    """
    if len(files) <= FEW:
        return [files] if files else []
    sizes = [path.stat().st_size for path in files]
    middle = next(at for at in range(len(files)) if 2 * sum(sizes[:at]) >= sum(sizes))
    return [files[:middle], files[middle:]]


def check(files: Sequence[Path]) -> subprocess.Popen[str]:
    """Start pyright for these files."""
    options = " ".join(filter(None, (os.environ.get("NODE_OPTIONS"), NODE_OPTIONS)))
    return subprocess.Popen(
        [Path(sys.executable).with_name("pyright"), "--pythonpath", sys.executable, *map(str, files)],
        cwd=ROOT,
        env={**os.environ, "NODE_OPTIONS": options},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )


def kept() -> set[str]:
    """Return the digests of the modules that passed."""
    try:
        return set(json.loads(KEPT.read_text("utf-8")))
    except (OSError, ValueError):
        return set()


def main(arguments: Sequence[str]) -> int:
    """Check what has changed, keep what passed, and return the exit code."""
    settings = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["tool"]["pyright"]
    texts = {path: path.read_text("utf-8") for path in checked_files(settings)}
    current = digests(texts, environment_of(settings))
    passed = set[str]() if "--all" in arguments else kept() & set(current.values())
    changed = [path for path, digest in current.items() if digest not in passed]
    failed = 0
    started = [(part, check(part)) for part in halves(changed)]
    for part, process in started:
        output, _ = process.communicate()
        if process.returncode:
            failed = process.returncode
            sys.stdout.write(output)
        else:
            passed |= {current[path] for path in part}
    KEPT.write_text(json.dumps(sorted(passed)), "utf-8")
    if not failed:
        sys.stdout.write(f"types: {len(changed)} of {len(current)} modules checked, the others had passed\n")
    return failed


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
