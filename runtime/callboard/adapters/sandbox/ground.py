"""What stands on a machine that commands may or may not touch: homes, credentials, tools, the runtime's own folders.

Found once at a session's start. Looks at the disk; changes nothing.
"""
# ruff: noqa: PTH110, PTH112, PTH113, PTH118, PTH120, PTH123, S108
# Paths are text here: they become words of a command line, and are compared by the hundred.

from __future__ import annotations

import os
import stat
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from callboard.adapters.programs import is_within

CREDENTIALS = (
    *(".ssh", ".aws", ".azure", ".gnupg", ".docker", ".kube", ".password-store", ".netrc", ".pgpass", ".my.cnf"),
    *(".config/gh", ".config/gcloud", ".config/op", ".config/hub", ".config/glab-cli", ".config/rclone"),
    *(".config/git/credentials", ".git-credentials", ".npmrc", ".yarnrc.yml", ".pypirc", ".config/pip/pip.conf"),
    *(".cargo/credentials", ".cargo/credentials.toml", ".gem/credentials", ".m2/settings.xml", ".composer/auth.json"),
    *(".gradle/gradle.properties", ".terraform.d", ".terraformrc", ".vault-token", ".boto", ".s3cfg", ".fly"),
    *(".claude", ".claude.json", ".codex", ".gemini", ".config/github-copilot", ".config/anthropic", ".huggingface"),
    *(".cache/huggingface/token", ".local/share/keyrings", ".mozilla", ".thunderbird", ".config/google-chrome"),
    *(".config/chromium", ".config/BraveSoftware", ".config/Code", ".bash_history", ".zsh_history"),
    *(".python_history", ".node_repl_history", ".psql_history", ".mysql_history"),
)
"""Beneath a home: what opens other doors. Hidden, whatever else of a home is shown."""
OF_THE_MACHINE = (
    "/etc/shadow",
    "/etc/gshadow",
    "/etc/sudoers",
    "/etc/sudoers.d",
    "/etc/ssl/private",
    "/etc/krb5.keytab",
)
"""Files that only root can read; hidden for the case that the runtime runs as root."""
_TEMPORARY = ("/tmp", "/var/tmp")
CROWDED = (*_TEMPORARY, "/run", "/dev", "/proc")
"""Folders in which everything of the machine meets: a command gets its own ones, or a part of them."""

_TOOLS_OF_ENVIRONMENT = (
    *("VIRTUAL_ENV", "CONDA_PREFIX", "PYENV_ROOT", "CARGO_HOME", "RUSTUP_HOME", "GOPATH", "GOROOT", "JAVA_HOME"),
    "NVM_DIR",
)
_TOOLS_OF_HOME = (".rustup", ".local/lib", ".local/share/uv", ".local/share/mise", ".local/share/fnm", ".local/pipx")
"""Beneath a home, beside what PATH names: where the programs that PATH leads to have their other half."""
_SHOWN_OF_HOME = (".gitconfig", ".config/git/config", ".config/git/ignore", ".config/git/attributes")


@dataclass(frozen=True, slots=True)
class Repository:
    """The git folders of a checkout: its own and the one that all its worktrees share. Absolute."""

    own: str
    common: str


@dataclass(frozen=True, slots=True)
class Ground:
    """All absolute, links followed."""

    workspace: str
    homes: tuple[str, ...]
    """The person's home first, then folders of homes. Empty for somebody who has none."""
    own: tuple[str, ...] = ()
    """The runtime's own folders: hidden."""
    shown: tuple[str, ...] = ()
    """Inside those: what agents may read."""
    scratch: str = ""
    """A folder for the session's temporary files; empty: none that lasts."""
    locks: str = ""
    """A folder of ours for locks."""
    tools: tuple[str, ...] = ()
    """Inside a home or a temporary folder: the programs that PATH leads to, with what belongs to them."""
    writable: tuple[str, ...] = ()
    readable: tuple[str, ...] = ()
    hidden: tuple[str, ...] = ()
    repository: Repository | None = None
    """Of the workspace."""


def find_ground(
    workspace: Path,
    environment: Mapping[str, str],
    *,
    own: Iterable[Path] = (),
    shown: Iterable[Path] = (),
    scratch: Path | None = None,
    locks: Path | None = None,
) -> Ground:
    """What commands of this workspace stand on. See `Ground` for the folders."""
    root = os.path.realpath(workspace)
    home = os.path.realpath(environment.get("HOME") or Path.home())
    homes = tuple(_homes(home))
    there = [os.path.realpath(one) for one in own]
    credentials = [f"{home}/{name}" for name in CREDENTIALS] if homes else []
    return Ground(
        workspace=root,
        homes=homes,
        own=tuple(there),
        shown=tuple(os.path.realpath(one) for one in shown),
        scratch=os.path.realpath(scratch) if scratch else "",
        locks=os.path.realpath(locks) if locks else "",
        tools=tuple(dict.fromkeys(_tools(homes, root, environment))),
        hidden=tuple(dict.fromkeys((*credentials, *OF_THE_MACHINE, *_host_keys()))),
        repository=find_repository(root),
    )


def _homes(home: str) -> Iterator[str]:
    if home != "/" and os.path.isdir(home):
        yield home
    for one in ("/home", "/root"):
        if one != home and os.path.isdir(one) and os.access(one, os.R_OK):
            yield one


def _host_keys() -> list[str]:
    folder = Path("/etc/ssh")
    return [str(one) for one in folder.glob("ssh_host_*_key")] if os.access(folder, os.R_OK) else []


def _tools(homes: Sequence[str], workspace: str, environment: Mapping[str, str]) -> Iterator[str]:
    """Folders in homes, and in the temporary folders that a command has its own of, without which programs on PATH do
    not run."""
    covered = (*homes, *_TEMPORARY)
    given = [environment.get(name, "") for name in _TOOLS_OF_ENVIRONMENT]
    pythons = [*given[:1], f"{workspace}/.venv", f"{workspace}/venv", sys.prefix]
    bases = [base for one in pythons if one for base in _base_of(one)]
    for one in (*given, *bases, sys.prefix, sys.base_prefix):
        if one and _home_of(real := os.path.realpath(one), covered):
            yield real
    for entry in environment.get("PATH", os.defpath).split(os.pathsep):
        real = os.path.realpath(entry)
        if entry.startswith("/") and (home := _home_of(real, covered)):
            yield _tool_of(real, home)
    for path in (f"{home}/{name}" for home in homes[:1] for name in (*_TOOLS_OF_HOME, *_SHOWN_OF_HOME)):
        if os.path.exists(path):
            yield os.path.realpath(path)


def _home_of(path: str, homes: Sequence[str]) -> str:
    """The home that a path lies in; empty: none."""
    return next((home for home in homes if path != home and is_within(path, home)), "")


def _tool_of(entry: str, home: str) -> str:
    """What a folder of PATH belongs to: `~/.pyenv/shims` to `~/.pyenv`, `~/go/bin` to `~/go`."""
    parts = entry.removeprefix(home + "/").split("/")
    if parts[0] in (".local", ".config", ".cache", "bin"):
        return entry
    if parts[0].startswith("."):
        return f"{home}/{parts[0]}"
    return os.path.dirname(entry) if len(parts) > 1 else entry


def _base_of(environment: str) -> Iterator[str]:
    """The Python that a virtual environment was made of, by its `pyvenv.cfg`."""
    try:
        lines = Path(environment, "pyvenv.cfg").read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        return
    for line in lines:
        name, _, value = line.partition("=")
        if name.strip() == "home" and value.strip().startswith("/"):
            yield os.path.dirname(os.path.realpath(value.strip()))


def find_repository(checkout: str) -> Repository | None:
    """The git folders of a checkout, as its `.git` says; None where there is none."""
    marker = f"{checkout}/.git"
    try:
        kind = os.lstat(marker).st_mode
        if stat.S_ISDIR(kind):  # an empty one stands there while another command runs (`protected.py`)
            return Repository(marker, marker) if os.path.lexists(f"{marker}/HEAD") else None
        own = os.path.realpath(os.path.join(checkout, _named(marker).removeprefix("gitdir:").strip()))
        common = (
            os.path.realpath(os.path.join(own, _named(f"{own}/commondir")))
            if os.path.isfile(f"{own}/commondir")
            else own
        )
    except OSError:
        return None
    return Repository(own, common) if os.path.isdir(own) and os.path.isdir(common) else None


def _named(path: str) -> str:
    with open(path, encoding="utf-8", errors="replace") as file:
        return file.read(4096).strip()


def repository_of_worktree(folder: str, ground: Ground) -> Repository | None:
    """The git folders of a worktree of this workspace; None for anything else. A command may have changed what stands
    in the worktree, so only what the repository itself says of it counts."""
    if ground.repository is None or (found := find_repository(folder)) is None:
        return None
    trees = f"{ground.repository.common}/worktrees"
    if os.path.dirname(found.own) != trees or found.common != ground.repository.common:
        return None
    try:
        back = os.path.realpath(_named(f"{found.own}/gitdir"))
    except OSError:
        return None
    return found if back == os.path.realpath(f"{folder}/.git") else None


def services() -> list[str]:
    """Sockets in files on which somebody on this machine listens."""
    try:
        lines = Path("/proc/net/unix").read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        return []
    return sorted({fields[7] for line in lines[1:] if len(fields := line.split(None, 7)) == 8 and fields[7][0] == "/"})
