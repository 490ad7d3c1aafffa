"""Reader of a workspace's content that needs trust: configuration files, scripts, and git's settings.

The scripts are those that commands in the configuration files name.

The content is read once. Every file is opened beneath a descriptor of the workspace: no link leads out of it, no pipe
is waited for, and sizes and numbers are limited. A file that cannot be read this way is not used, and is reported.
Later readers use the content read here (`WorkspaceClaims.text`), so that the used content is the trusted one.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from pathlib import Path

from callboard.adapters.extensions.discovery import body_after_front_matter, folders_above
from callboard.adapters.extensions.plugins import MANIFEST
from callboard.adapters.extensions.yaml import Address, load_document, load_front_matter
from callboard.adapters.system.regular_files import open_beneath
from callboard.core.trust.claims import (
    Claim,
    WorkspaceClaims,
    agent_claims,
    claude_claims,
    hash_of,
    hook_claims,
    named_files,
    recipe_files,
    schedule_claims,
    server_claims,
    settings_claims,
    skill_claims,
)
from callboard.core.trust.git_config import Setting, git_claims, git_settings
from callboard.core.trust.yaml_nodes import YamlNode, json_node, node_of
from callboard.types.errors import SettingsError
from callboard.types.skills import Plugin

SETTINGS = ".callboard/settings.yaml"
CLAUDE = (".claude/settings.json", ".claude/settings.local.json")
SERVERS = ".mcp.json"
HOOKS = ".callboard/hooks/hooks.json"

LARGEST_FILE = 1_000_000
"""Most bytes of a configuration file. A larger one is not used."""
LARGEST_SCRIPT = 16_000_000
MOST_FILES = 2_000
MOST_BYTES = 64_000_000
"""Most files (`MOST_FILES`) and most bytes in total. Further ones are not used."""
_DEPTH = 8
_RUNS = frozenset({"hook", "command", "server", "git"})
"""Claims whose text may name a script."""
_SCRIPT_FOLDERS = (".callboard/hooks", ".claude/hooks")

Reader = Callable[[str, str], list[Claim]]


def read_claims(workspace: Path) -> WorkspaceClaims:
    """Read the workspace's present content.

    Raises nothing because of the content; a path that is not a folder has no content.
    """
    root = os.path.realpath(workspace)
    try:
        descriptor = os.open(root, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    except OSError:
        return WorkspaceClaims(root)
    try:
        return _Reading(root, descriptor).read()
    finally:
        os.close(descriptor)


def scripts_as_trusted(workspace_claims: WorkspaceClaims) -> str:
    """Return the difference between the scripts and those that were read; empty if they are the same.

    Call this before running a script.
    """
    if not workspace_claims.scripts:
        return ""
    try:
        descriptor = os.open(workspace_claims.workspace, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    except OSError as error:
        return f"{workspace_claims.workspace} cannot be read: {error.strerror}"
    try:
        for path in sorted(workspace_claims.scripts):
            try:
                same = hash_of(_bytes(descriptor, path, LARGEST_SCRIPT)) == workspace_claims.hashes[path]
            except OSError:
                same = False
            if not same:
                return f"{path} has changed since it was trusted"
    finally:
        os.close(descriptor)
    return ""


def plugin_claims(plugin: Plugin, agents: Iterable[Path], skills: Iterable[Path]) -> Iterator[Claim]:
    """Yield everything in a plugin that would run something or extend rights, with paths relative to its folder.

    `agents`, `skills`: its files of agents, and of skills and commands.
    """
    readers = [
        *((path, _hooks) for path in plugin.hooks),
        *((path, _plugin_servers) for path in plugin.mcp),
        *((path, _agent) for path in agents),
        *((path, _skill) for path in skills),
    ]
    for path, reader in readers:
        name = os.path.relpath(path, plugin.root)
        try:
            yield from reader(name, _bytes(None, str(path), LARGEST_FILE).decode("utf-8-sig"))
        except (OSError, ValueError, RecursionError, SettingsError) as error:
            yield Claim(name, "unread", f"is not used: {error}")
    if plugin.hooks_inline is not None:
        yield from hook_claims(MANIFEST, node_of(plugin.hooks_inline.get("hooks", plugin.hooks_inline), {}))
    if plugin.mcp_inline is not None:
        yield from server_claims(MANIFEST, node_of(plugin.mcp_inline.get("mcpServers", plugin.mcp_inline), {}))


def git_as_trusted(workspace_claims: WorkspaceClaims, folder: str) -> bool:
    """Return True if the repository at a folder has git settings, and they and their scripts are all trusted.

    In a worktree the settings would lead to other files, so only the workspace itself can be trusted.
    """
    claims = set(workspace_claims.claims)
    if os.path.realpath(folder) != workspace_claims.workspace or not any(claim.kind == "git" for claim in claims):
        return False
    now = read_claims(Path(folder)).claims
    return {claim for claim in now if claim.kind in ("git", "script", "unread")} <= claims


class _Reading:
    """One pass over a workspace, open at `descriptor`."""

    def __init__(self, root: str, descriptor: int) -> None:
        self._root = root
        self._descriptor = descriptor
        self._claims: list[Claim] = []
        self._hashes: dict[str, str] = {}
        self._content: dict[str, bytes] = {}
        self._scripts: set[str] = set()
        self._bytes = 0

    def read(self) -> WorkspaceClaims:
        self._configuration(SETTINGS, _settings)
        for path in CLAUDE:
            self._configuration(path, _claude)
        self._configuration(SERVERS, _servers)
        self._configuration(HOOKS, _hooks)
        self._definitions()
        for number, folder in enumerate(folders_above(Path(self._root), Path.home()), 1):
            self._read_folder_above(folder, "../" * number)
        for path in self._files_beneath(".callboard/schedules", ".md"):
            self._configuration(path, _schedule)
        for folder in _SCRIPT_FOLDERS:
            for path in self._files_beneath(folder, ""):
                self._script(path)
        self._git()
        self._named_scripts()
        return WorkspaceClaims(
            self._root, tuple(sorted(self._claims)), self._hashes, self._content, frozenset(self._scripts)
        )

    def _definitions(self) -> None:
        for folder in (".callboard", ".claude"):
            for path in self._files_beneath(f"{folder}/agents", ".md"):
                self._configuration(path, _agent)
            for path in self._skills(f"{folder}/skills"):
                self._configuration(path, _skill)
            for path in self._files_beneath(f"{folder}/commands", ".md"):
                self._configuration(path, _skill)
            for path in self._files_beneath(f"{folder}/output-styles", ".md"):
                self._configuration(path, _style)

    def _read_folder_above(self, folder: Path, prefix: str) -> None:
        """Read agents and skills of a folder above the workspace, up to the root of the repository.

        The paths of these files begin with `../`.
        """
        try:
            descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        except OSError:
            return
        above = _Reading(str(folder), descriptor)
        try:
            above._definitions()
        finally:
            os.close(descriptor)
        self._claims += [replace(claim, path=prefix + claim.path) for claim in above._claims]
        self._hashes |= {prefix + path: value for path, value in above._hashes.items()}
        self._content |= {prefix + path: value for path, value in above._content.items()}

    def _configuration(self, path: str, reader: Reader) -> None:
        raw = self._bytes_of(path, LARGEST_FILE)
        if raw is None:
            return
        self._hashes[path] = hash_of(raw)
        self._content[path] = raw
        try:
            self._claims += reader(path, raw.decode("utf-8-sig"))
        except SettingsError as error:
            self._unread(path, str(error).removeprefix(f"{path}:"))
        except (ValueError, RecursionError) as error:
            self._unread(path, f"cannot be understood: {error}")

    def _script(self, path: str) -> None:
        if path in self._hashes:
            return
        real = os.path.realpath(os.path.join(self._root, path))  # noqa: PTH118 - a path that the kernel joins
        if not real.startswith(self._root.rstrip("/") + "/"):
            self._claims.append(Claim(path, "script", f"a link out of the workspace, to {real}: not looked into"))
            return
        raw = self._bytes_of(path, LARGEST_SCRIPT)
        if raw is not None:
            self._hashes[path] = hash_of(raw)
            self._scripts.add(path)
            self._claims.append(Claim(path, "script", f"{len(raw):,} bytes, SHA-256 {self._hashes[path]}"))

    def _bytes_of(self, path: str, most: int) -> bytes | None:
        """Return the bytes of a file.

        None, with a claim that has the reason, if the file exists but cannot be read; None alone if it does not exist.
        """
        if len(self._hashes) >= MOST_FILES or self._bytes > MOST_BYTES:
            self._unread(path, "is one file too many")
            return None
        try:
            raw = _bytes(self._descriptor, path, most)
        except (FileNotFoundError, NotADirectoryError):
            return None
        except (OSError, ValueError) as error:
            self._unread(path, str(getattr(error, "strerror", None) or error))
            return None
        self._bytes += len(raw)
        return raw

    def _unread(self, path: str, reason: str) -> None:
        self._claims.append(Claim(path, "unread", f"not used: {reason.strip()}"))

    def _skills(self, folder: str) -> list[str]:
        """Return the `SKILL.md` of each subfolder; a subfolder may be a link inside the workspace."""
        try:
            names = sorted(os.listdir(os.path.join(self._root, folder)))[:MOST_FILES]  # noqa: PTH118, PTH208 - names only; a path that the kernel joins
        except OSError:  # a missing folder is no error
            return []
        return [f"{folder}/{name}/SKILL.md" for name in names]

    def _files_beneath(self, folder: str, ending: str) -> Iterator[str]:
        """Yield the files beneath a folder with this ending, sorted, without following links to folders."""
        paths: list[str] = []
        top = os.path.join(self._root, folder)  # noqa: PTH118 - a path that the kernel joins
        real = os.path.realpath(top)
        if real != top and not real.startswith(self._root.rstrip("/") + "/"):
            self._unread(folder, "a link leads out of the workspace")
            return
        for parent, folders, names in os.walk(top):
            folders.sort()
            inside = os.path.relpath(parent, self._root)
            if inside.count("/") > _DEPTH or len(paths) > MOST_FILES:
                self._unread(inside, "too deep, or too many files before it")
                folders.clear()
                continue
            paths += [f"{inside}/{name}" for name in names if f"/{name}".endswith(ending)]
        yield from sorted(paths)[:MOST_FILES]

    def _named_scripts(self) -> None:
        """Read files that a command names, recipes that a server runs, and files of git's hooks folders."""
        for claim in [claim for claim in self._claims if claim.kind in _RUNS]:
            for path in named_files(claim.text, self._root):
                self._named(path, folders=claim.kind == "git")
            for path in recipe_files(claim.text) if claim.kind == "server" else ():
                self._named(path, folders=False)

    def _named(self, path: str, *, folders: bool) -> None:
        full = os.path.join(self._root, path)  # noqa: PTH118 - a path that the kernel joins
        if not os.path.isdir(full):  # noqa: PTH112 - the same text is passed to lexists
            if os.path.lexists(full):
                self._script(path)
        elif folders:
            for inner in self._files_beneath(path, ""):
                self._script(inner)

    def _git(self) -> None:
        for path in _git_configurations(Path(self._root)):
            self._git_file(path, set())

    def _git_file(self, path: Path, seen: set[str]) -> None:
        real = os.path.realpath(path)
        if real in seen or len(seen) > 20:
            return
        seen.add(real)
        label = os.path.relpath(path, self._root) if path.is_relative_to(self._root) else str(path)
        try:
            raw = _bytes(None, real, LARGEST_FILE)
        except FileNotFoundError:
            return
        except (OSError, ValueError) as error:
            self._unread(label, str(getattr(error, "strerror", None) or error))
            return
        settings = git_settings(raw.decode("utf-8", errors="surrogateescape"))
        self._claims += git_claims(label, settings)
        for setting in settings:
            if setting.includes:
                self._git_file(_included(path, setting), seen)


def _included(path: Path, setting: Setting) -> Path:
    """Return the path of an include; a relative one is relative to the file that contains it."""
    return path.parent / Path(setting.value).expanduser()


def _git_configurations(root: Path) -> list[Path]:
    """Return the repository's configuration files: its own, a worktree's, those of its submodules."""
    folder = root / ".git"
    own: list[Path] = []
    try:
        if folder.is_file():
            folder = root / _bytes(None, str(folder), 10_000).decode().partition("gitdir:")[2].strip()
            own.append(folder / "config.worktree")
            common = folder / "commondir"
            if common.is_file():
                folder = folder / _bytes(None, str(common), 10_000).decode().strip()
        modules = sorted(path for deep in ("*", "*/*", "*/*/*") for path in (folder / "modules").glob(f"{deep}/config"))
    except (OSError, ValueError):
        modules = []
    bare = [root / "config"] if (root / "HEAD").exists() else []
    return [folder / "config", folder / "config.worktree", *own, *bare, *modules]


def _bytes(descriptor: int | None, path: str, most: int) -> bytes:
    """Return a regular file's bytes; beneath the folder `descriptor`, or anywhere. Raises OSError, ValueError."""
    if descriptor is None:
        opened = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK | os.O_NOCTTY)
    else:
        opened = open_beneath(descriptor, path, os.O_RDONLY)
    with os.fdopen(opened, "rb") as file:
        if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
            raise ValueError("is not a regular file")
        raw = file.read(most + 1)
    if len(raw) > most:
        raise ValueError(f"is larger than {most:,} bytes")
    return raw


# Readers of the kinds of files: text -> claims


def _settings(path: str, text: str) -> list[Claim]:
    document = load_document(text, path)
    return settings_claims(path, node_of(document.data, document.lines))


def _claude(path: str, text: str) -> list[Claim]:
    return claude_claims(path, json_node(text))


def _servers(path: str, text: str) -> list[Claim]:
    document = json_node(text)
    members = dict(document.members or ())
    return server_claims(path, members["mcpServers"]) if "mcpServers" in members else []


def _plugin_servers(path: str, text: str) -> list[Claim]:
    """Return the claims of a plugin's `.mcp.json`, in which `mcpServers` may be left out."""
    document = json_node(text)
    return server_claims(path, dict(document.members or ()).get("mcpServers", document))


def _hooks(path: str, text: str) -> list[Claim]:
    members = dict(json_node(text).members or ())
    return hook_claims(path, members["hooks"]) if "hooks" in members else []


def _agent(path: str, text: str) -> list[Claim]:
    return agent_claims(path, _front_matter(path, text)[0])


def _style(path: str, text: str) -> list[Claim]:
    lines = text.count("\n") + 1
    return [Claim(path, "setting", f"instructions for the lead, {lines} line{'s' if lines > 1 else ''}")]


def _skill(path: str, text: str) -> list[Claim]:
    try:
        document, body = _front_matter(path, text)
    except SettingsError:  # the body is still used
        document = YamlNode(None, members=())
        body = body_after_front_matter(text)
    return skill_claims(path, document, body, text.count("\n") - body.count("\n") + 1)


def _schedule(path: str, text: str) -> list[Claim]:
    return schedule_claims(path, *_front_matter(path, text))


def _front_matter(path: str, text: str) -> tuple[YamlNode, str]:
    fields, body = load_front_matter(text, path)
    lines: dict[Address, int] = {(name,): _line(text, name) for name in fields}
    return node_of(fields, lines), body


def _line(text: str, name: str) -> int:
    """Return the line of a top-level field of front matter."""
    for number, line in enumerate(text.splitlines(), 1):
        if line.startswith(f"{name}:"):
            return number
    return 1
