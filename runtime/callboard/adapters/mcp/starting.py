"""Safe start of the programs of MCP servers: no file that an agent wrote into the workspace becomes one of them.

Servers run with the user's rights, and keep the workspace as their folder. So programs and Python modules are not
searched for there, package runners do not prefer packages installed there, and a file of the workspace that an entry
names runs only while it is unchanged since it was trusted.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path

from callboard.adapters.processes.programs import environment_outside, is_within
from callboard.adapters.system.regular_files import read_regular
from callboard.core.trust.claims import WorkspaceClaims, hash_of, named_files, recipe_files
from callboard.types.errors import ToolRefused
from callboard.types.late_pattern import late_pattern
from callboard.types.mcp import ServerEntry

RunsWorkspaceCode = Callable[[str, Path, Path], bool]
"""Function (command, folder, workspace) that returns True if files of the workspace determine the code that the command
runs there.
"""
LARGEST_SCRIPT = 16_000_000
_CODE = late_pattern(r".*\.(?:py|pyz|js|mjs|cjs|ts|mts|cts|sh|bash|rb|pl|php|jar|lua|wasm)")
_ELSEWHERE = frozenset({"pnpx", "pnpm", "bunx", "bun", "yarn"})
"""Package runners that prefer packages of their working folder and have no option against that."""


def digests_of(
    entries: Iterable[ServerEntry], workspace: Path, workspace_claims: WorkspaceClaims | None
) -> Mapping[str, str]:
    """Return the digest of each code file in the workspace that an entry names.

    A digest is the trusted one, or otherwise the present one; empty for a recipe file that does not exist. Reads the
    disk.
    """
    digests: dict[str, str] = {}
    for entry in entries:
        names = (*code_of(entry, workspace), *recipe_files(_command_text(entry)))
        digests |= {name: _digest(workspace, name) for name in names}
    return digests | (dict(workspace_claims.hashes) if workspace_claims is not None else {})


def check_code(entry: ServerEntry, workspace: Path, digests: Mapping[str, str]) -> None:
    """Raise `ToolRefused` if a code file that the entry names is not the trusted one. Reads the disk."""
    for name in code_of(entry, workspace):
        if digests.get(name) and _digest(workspace, name) == digests[name]:
            continue
        if name in digests or entry.scope == "workspace":
            raise ToolRefused(
                f"{workspace / name} has changed since it was trusted: the server was not started; look at the file, "
                "then `callboard trust` decides on it again, and the next session starts the server"
            )


def code_of(entry: ServerEntry, workspace: Path) -> Sequence[str]:
    """Return the files of the workspace that the entry runs, relative to it.

    The files exist and look like programs, or contain the recipes of the entry's program.
    """
    text = _command_text(entry)
    named = [name for name in named_files(text, str(workspace)) if _is_code(workspace / name)]
    return [*named, *(name for name in recipe_files(text) if (workspace / name).exists())]


def _command_text(entry: ServerEntry) -> str:
    return " ".join((entry.command, *entry.args, entry.headers_helper))


def _is_code(path: Path) -> bool:
    return path.is_file() and (os.access(path, os.X_OK) or bool(_CODE.fullmatch(path.name.lower())))


def _digest(workspace: Path, name: str) -> str:
    try:
        return hash_of(read_regular(workspace / name, LARGEST_SCRIPT))
    except OSError:
        return ""


def environment_away(environment: Mapping[str, str], entry: ServerEntry, workspace: Path) -> dict[str, str]:
    """Return the environment without the workspace on any path.

    Python keeps the folder of a script that the entry names, because a server may consist of several files.
    """
    outside = environment_outside(environment, workspace)
    scripts = [word for word in entry.args if word.endswith(".py")]
    real = os.path.realpath(workspace)
    if any(is_within(os.path.realpath(workspace / Path(word).expanduser()), real) for word in scripts):
        # Python would not find the other files of the server (test_a_server_of_several_files_finds_them_all).
        del outside["PYTHONSAFEPATH"]
    elif scripts:
        folders = dict.fromkeys(str((workspace / Path(word).expanduser()).parent) for word in scripts)
        outside["PYTHONPATH"] = os.pathsep.join(folders)
    return outside


def words_away(entry: ServerEntry, empty: Path) -> list[str]:
    """Return the argv of a server. `empty`: a folder of Callboard without packages."""
    argv = [entry.command, *entry.args]
    program = Path(entry.command).name
    if program == "npx" or (program == "npm" and argv[1:2] in (["exec"], ["x"])):
        # npx prefers packages in its folder, to which an agent can write
        # (test_runners_of_packages_look_in_a_folder_of_ours).
        argv[1:1] = ["--prefix", str(empty)]
    return argv


def folder_of(entry: ServerEntry, workspace: Path, empty: Path, *, runs_workspace_code: RunsWorkspaceCode) -> Path:
    """Return the folder in which a server, or its `headersHelper`, starts.

    The folder is the workspace, unless the program needs nothing there and would prefer packages from there.
    """
    if entry.headers_helper:
        prefers = runs_workspace_code(entry.headers_helper, workspace, workspace) and not code_of(entry, workspace)
        return empty if prefers else workspace
    return empty if Path(entry.command).name in _ELSEWHERE else workspace
