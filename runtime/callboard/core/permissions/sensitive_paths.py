"""Sensitive paths: secrets, files that other tools run or obey, devices, and folders that a machine needs.

All are recognised by their names. The lists follow the common practice of agent harnesses (git's internals, editors,
package managers, hook managers, agents' settings). Names of files that hold secrets or are protected are compared
without case, since some file systems ignore it.
"""

from __future__ import annotations

import posixpath
import re
import unicodedata
from collections.abc import Mapping, Sequence
from itertools import pairwise
from pathlib import Path

from callboard.core.permissions.command_table import TOP_LEVEL, names
from callboard.types.late_pattern import late_pattern

_SECRET = late_pattern(
    r"\.env(?:\..+)?|\.envrc|.*\.(?:pem|key|p12|pfx|jks|keystore|kdbx|asc|gpg|ppk)|id_(?:rsa|dsa|ecdsa|ed25519)(?:_.*)?"
    r"|\.netrc|\.pgpass|\.npmrc|\.pypirc|\.htpasswd|\.git-credentials|credentials(?:\..+)?"
    r"|secrets?\.(?:ya?ml|json|toml|txt)|.*\.tfstate|\.dockercfg|service[-_]account.*\.json"
)
_NO_SECRET = late_pattern(
    r"\.env\.(?:example|sample|template|dist|defaults?)|credentials\.(?:py|ts|js|go|rs|java|rb|md)|.*\.pub"
)
_SECRET_FOLDERS = names(".ssh .gnupg .aws .azure .kube .docker .gcloud .password-store")

_PROTECTED_FOLDERS = names(
    ".git .hg .svn .vscode .idea .husky .cargo .devcontainer .yarn .mvn .claude .cursor .codex "
    ".gemini .zed .github/workflows .circleci .githooks .direnv .aider .continue .windsurf .config/git .fleet "
    ".bundle"
)
_PROTECTED_FILES = names(
    ".gitconfig .gitmodules .gitattributes .bashrc .bash_profile .bash_login .bash_logout .profile .zshrc "
    ".zshenv .zprofile .envrc .npmrc .yarnrc .yarnrc.yml .pnp.cjs .pnp.loader.mjs .pnpmfile.cjs bunfig.toml "
    ".bunfig.toml .bazelrc .bazelversion .bazeliskrc .pre-commit-config.yaml .pre-commit-hooks.yaml "
    "lefthook.yml lefthook.yaml .lefthook.yml .lefthook.yaml gradle-wrapper.properties "
    "maven-wrapper.properties .devcontainer.json .ripgreprc pyrightconfig.json .mcp.json .claude.json agents.md "
    "claude.md gemini.md .cursorrules .tool-versions .mise.toml mise.toml .python-version sitecustomize.py "
    "usercustomize.py .pypirc pip.conf .nvmrc .vimrc .exrc .editorconfig .gitlab-ci.yml"
)
FOLDERS_OF_PROTECTED = frozenset(name.partition("/")[0] for name in _PROTECTED_FOLDERS if "/" in name)
"""Folders that are not protected themselves, and contain protected folders."""
PROTECTED_NAMES = (*(name.partition("/")[0] for name in _PROTECTED_FOLDERS), *_PROTECTED_FILES, ".callboard")
"""Names in a folder with which a protected path begins."""
CLAUDE_LOADED = (
    *("settings.json", "settings.local.json", "CLAUDE.md", "CLAUDE.local.md", "AGENTS.md", "agents", "commands"),
    *("skills", "hooks", "rules", "plugins", "output-styles", "workflows", "agent-memory", "agent-memory-local"),
    *(".mcp.json", "mcp.json", "launch.json", "keybindings.json"),
)
"""Names that programs load from a `.claude` folder, of a workspace or of a person."""
_HARMLESS_DEVICES = late_pattern(r"/dev/(?:null|zero|full|stdin|stdout|stderr|tty|fd/\d+|u?random)")
_DEVICE_FOLDERS = late_pattern(r"/dev/(?:shm|pts|tcp|udp)(?:/|$)|/dev/fd$")
_KERNEL = late_pattern(r"/(?:proc/sys|proc/sysrq-trigger|sys)(?:/|$)")


def is_secret(parts: Sequence[str]) -> bool:
    """Return True if the file at this path, given as its components, contains secrets."""
    lower = [part.lower() for part in parts]
    if not lower:
        return False
    if not _SECRET_FOLDERS.isdisjoint(lower):
        return True
    return bool(_SECRET.fullmatch(lower[-1])) and not _NO_SECRET.fullmatch(lower[-1])


def is_protected(parts: Sequence[str]) -> bool:
    """Return True if writing this path changes commands that other tools will run.

    `parts`: the components of the path inside the workspace.
    """
    lower = [part.lower() for part in parts]
    if not _PROTECTED_FOLDERS.isdisjoint(lower):
        return True
    if not FOLDERS_OF_PROTECTED.isdisjoint(lower) and any(f"{a}/{b}" in _PROTECTED_FOLDERS for a, b in pairwise(lower)):
        return True
    return bool(lower) and lower[-1] in _PROTECTED_FILES


def hard_to_see(text: str) -> str:
    """Return the number of the first character of a path that a person would not see correctly; empty if there is none.

    Such a character is invisible, changes the text direction, is unusual whitespace, or is not a character.
    """
    if text.isascii() and text.isprintable():  # as almost every path
        return ""
    odd = (c for c in text if c != " " and unicodedata.category(c) in ("Cc", "Cf", "Cn", "Co", "Cs", "Zl", "Zp", "Zs"))
    return next((f"U+{ord(c):04X}" for c in odd), "")


def claude_folders(home: str, environment: Mapping[str, str]) -> tuple[Path, ...]:
    """Return the user's folders of settings for Claude Code, from the home and the environment."""
    named = environment.get("CLAUDE_CONFIG_DIR", "")
    return (Path(home, ".claude"), *([Path(named)] if named.startswith("/") else []))


def claude_folder(home: str | Path, environment: Mapping[str, str]) -> Path:
    """Return the user's folder of settings for Claude Code: `CLAUDE_CONFIG_DIR`, else `~/.claude`."""
    return claude_folders(str(home), environment)[-1]


def claude_state_file(home: str | Path, environment: Mapping[str, str]) -> Path:
    """Return the file with the user's MCP servers: `.claude.json`, in the home or in `CLAUDE_CONFIG_DIR`."""
    folders = claude_folders(str(home), environment)
    return (folders[-1] if len(folders) > 1 else Path(home)) / ".claude.json"


def harmless_device(path: str) -> bool:
    """Return True if reading and writing this device changes nothing."""
    return path.startswith("/dev/") and _HARMLESS_DEVICES.fullmatch(path) is not None


def raw_device(path: str) -> bool:
    """Return True if the path names a device for a disk, memory or a kernel switch."""
    if _KERNEL.match(path):
        return True
    return path.startswith("/dev/") and not harmless_device(path) and not _DEVICE_FOLDERS.match(path)


def deeper_than_critical(path: str, home: str) -> bool:
    """Return True if a path, absolute and normalised, has too many parts for `critical`."""
    return path.count("/") > max(2, home.count("/") + 1)


def critical(path: str, home: str, *, glob: bool = False) -> bool:
    """Return True if deleting this absolute path, taken literally, would destroy the machine or a home directory."""
    path = "/" + posixpath.normpath(path).lstrip("/")
    if glob:
        head, _, last = path.rpartition("/")
        fixed = head if not re.search(r"[*?\[]", head) else re.split(r"/[^/]*[*?\[]", head)[0]
        if not last.strip("*?[]!.") or fixed == "":
            return critical(fixed or "/", home)
        return False
    if deeper_than_critical(path, home):
        return False
    if path == "/" or f"{posixpath.normpath(home)}/".startswith(f"{path}/"):
        return True
    first, *others = path[1:].split("/")
    return first in (("home", "Users") if len(others) == 1 else TOP_LEVEL if not others else ())
