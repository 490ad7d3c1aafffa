"""Paths on a machine that commands may or may not use: homes, credentials, tools, the runtime's own folders.

They are collected once at a session's start. Reads the disk; changes nothing.
"""
# ruff: noqa: PTH110, PTH112, PTH113, PTH118, PTH119, PTH120, S108 - paths are text here: they become words of a command line, and are compared by the hundred

from __future__ import annotations

import fcntl
import os
import stat
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path

from callboard.adapters.processes.programs import is_within
from callboard.adapters.processes.sandbox.isolation import without_privileges
from callboard.adapters.system.regular_files import read_regular
from callboard.core.permissions.sensitive_paths import claude_folders
from callboard.types.lazy_dataclass import dataclass

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
"""Credentials beneath a home. Hidden even if other parts of a home are visible."""
ROOT_ONLY_FILES = (
    "/etc/shadow",
    "/etc/gshadow",
    "/etc/sudoers",
    "/etc/sudoers.d",
    "/etc/ssl/private",
    "/etc/krb5.keytab",
)
"""Files that only root can read; hidden in case the runtime runs as root."""
_TEMPORARY = ("/tmp", "/var/tmp")
SHARED_FOLDERS = (*_TEMPORARY, "/run", "/dev", "/proc")
"""Folders that all programs of the machine share. A command gets private ones, or a part of them."""
SHARED_FOLDERS_ON_MACOS = (
    "/private/tmp",
    "/private/var/tmp",
    "/private/var/folders",
    "/private/var/run",
    "/System/Volumes/Data",
)
"""The same on macOS. The last one shows all files of the disk under a second name."""
_CREDENTIALS_ON_MACOS = (
    *("Library/Keychains", "Library/Cookies", "Library/Safari", "Library/Mail", "Library/Messages"),
    *("Library/Application Support/Google/Chrome", "Library/Application Support/Firefox"),
    *("Library/Application Support/Code", "Library/Application Support/com.apple.TCC"),
)
_ROOT_ONLY_ON_MACOS = (
    "/private/etc/master.passwd",
    "/private/etc/sudoers",
    "/private/etc/sudoers.d",
    "/private/var/db/dslocal",
    "/Library/Keychains",
)

_TOOLS_OF_ENVIRONMENT = (
    *("VIRTUAL_ENV", "CONDA_PREFIX", "PYENV_ROOT", "CARGO_HOME", "RUSTUP_HOME", "GOPATH", "GOROOT", "JAVA_HOME"),
    "NVM_DIR",
)
_TOOLS_OF_HOME = (".rustup", ".local/lib", ".local/share/uv", ".local/share/mise", ".local/share/fnm", ".local/pipx")
"""Folders beneath a home that programs on PATH need besides those that PATH names."""
_SHOWN_OF_HOME = (".gitconfig", ".config/git/config", ".config/git/ignore", ".config/git/attributes")


@dataclass(frozen=True, slots=True)
class CheckoutFolders:
    """The git folders of a checkout: its own and the one shared by all its worktrees. Absolute."""

    own: str
    common: str


@dataclass(frozen=True, slots=True)
class SandboxPaths:
    """Paths on this machine, all absolute, with links resolved."""

    workspace: str
    homes: tuple[str, ...]
    """The user's home first, then folders of homes. Empty for a user without a home."""
    own: tuple[str, ...] = ()
    """The runtime's own folders, which are hidden."""
    own_readable: tuple[str, ...] = ()
    """Parts of the runtime's own folders that agents may read."""
    loaded: tuple[str, ...] = ()
    """Folders of skills and plugins, which later sessions load: no approval makes them writable."""
    scratch: str = ""
    """Folder for the session's temporary files; empty: no permanent folder."""
    locks: str = ""
    """Callboard's folder for locks."""
    tools: tuple[str, ...] = ()
    """Programs on PATH, and the folders that they need, inside a home or a temporary folder."""
    writable: tuple[str, ...] = ()
    readable: tuple[str, ...] = ()
    hidden: tuple[str, ...] = ()
    repository: CheckoutFolders | None = None
    """Repository of the workspace."""

    @property
    def closed(self) -> tuple[str, ...]:
        """Return the folders that an approved command may never write as a whole. The workspace has its own rules."""
        return (self.workspace, *self.own, *self.loaded)


def find_sandbox_paths(
    workspace: Path,
    environment: Mapping[str, str],
    *,
    own: Iterable[Path] = (),
    own_readable: Iterable[Path] = (),
    scratch: Path | None = None,
    locks: Path | None = None,
) -> SandboxPaths:
    """Find the paths for commands of this workspace. See `SandboxPaths` for the folders."""
    root = os.path.realpath(workspace)
    home = os.path.realpath(environment.get("HOME") or Path.home())
    homes = tuple(_homes(home))
    own_folders = [os.path.realpath(path) for path in own]
    credentials = list(credentials_of(home)) if homes else []
    credentials += [os.path.realpath(folder) for folder in claude_folders(home, environment)]
    return SandboxPaths(
        workspace=root,
        homes=homes,
        own=tuple(own_folders),
        own_readable=tuple(os.path.realpath(path) for path in own_readable),
        scratch=os.path.realpath(scratch) if scratch else "",
        locks=os.path.realpath(locks) if locks else "",
        tools=tuple(dict.fromkeys(_tools(homes, root, environment))),
        hidden=tuple(dict.fromkeys((*credentials, *secrets_of_machine(), *_host_keys()))),
        repository=find_repository(root),
    )


def credentials_of(home: str) -> Iterator[str]:
    """Yield the paths of credentials beneath a home."""
    for name in (*CREDENTIALS, *(_CREDENTIALS_ON_MACOS if sys.platform == "darwin" else ())):
        yield f"{home}/{name}"


def secrets_of_machine() -> tuple[str, ...]:
    """Return the files that only root can read; hidden in case the runtime runs as root."""
    return (*ROOT_ONLY_FILES, *_ROOT_ONLY_ON_MACOS) if sys.platform == "darwin" else ROOT_ONLY_FILES


def path_on_disk(path: str) -> str:
    """Return a path as the disk spells it, with links resolved, if the system can tell.

    The disks of macOS find a file by letters of either case, and by other forms of an accented letter.
    """
    real = os.path.realpath(path)
    get_path = getattr(fcntl, "F_GETPATH", None)
    if get_path is None:
        return real
    missing: list[str] = []
    while real != "/":
        try:
            descriptor = os.open(real, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
        except OSError:
            missing.insert(0, os.path.basename(real))
            real = os.path.dirname(real)
            continue
        try:
            found = os.fsdecode(fcntl.fcntl(descriptor, get_path, bytes(1024)).rstrip(b"\0"))
        finally:
            os.close(descriptor)
        return "/".join((found.rstrip("/"), *missing))
    return "/" + "/".join(missing)


def _homes(home: str) -> Iterator[str]:
    if home != "/" and os.path.isdir(home):
        yield home
    for folder in ("/home", "/root", "/Users", "/private/var/root"):
        if folder != home and os.path.isdir(folder) and os.access(folder, os.R_OK):
            yield folder


def _host_keys() -> list[str]:
    folder = Path("/etc/ssh")
    return [str(key) for key in folder.glob("ssh_host_*_key")] if os.access(folder, os.R_OK) else []


def _tools(homes: Sequence[str], workspace: str, environment: Mapping[str, str]) -> Iterator[str]:
    """Yield folders that programs on PATH need, in homes and in the temporary folders that a command has privately."""
    covered = (*homes, *_TEMPORARY)
    configured = [environment.get(name, "") for name in _TOOLS_OF_ENVIRONMENT]
    pythons = [*configured[:1], f"{workspace}/.venv", f"{workspace}/venv", sys.prefix]
    bases = [base for python in pythons if python for base in _base_of(python)]
    for folder in (*configured, *bases, sys.prefix, sys.base_prefix):
        if folder and _home_of(real := os.path.realpath(folder), covered):
            yield real
    for entry in environment.get("PATH", os.defpath).split(os.pathsep):
        real = os.path.realpath(entry)
        if entry.startswith("/") and (home := _home_of(real, covered)):
            yield _tool_of(real, home)
    for path in (f"{home}/{name}" for home in homes[:1] for name in (*_TOOLS_OF_HOME, *_SHOWN_OF_HOME)):
        if os.path.exists(path):
            yield os.path.realpath(path)


def _home_of(path: str, homes: Sequence[str]) -> str:
    """Return the home that contains a path; empty if there is none."""
    return next((home for home in homes if path != home and is_within(path, home)), "")


def _tool_of(entry: str, home: str) -> str:
    """Return the folder of the tool for a folder of PATH: `~/.pyenv` for `~/.pyenv/shims`, `~/go` for `~/go/bin`."""
    parts = entry.removeprefix(home + "/").split("/")
    if parts[0] in (".local", ".config", ".cache", "bin"):
        return entry
    if parts[0].startswith("."):
        return f"{home}/{parts[0]}"
    return os.path.dirname(entry) if len(parts) > 1 else entry


def _base_of(environment: str) -> Iterator[str]:
    """Yield the Python from which a virtual environment was created, by its `pyvenv.cfg`."""
    try:
        lines = Path(environment, "pyvenv.cfg").read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        return
    for line in lines:
        name, _, value = line.partition("=")
        if name.strip() == "home" and value.strip().startswith("/"):
            yield os.path.dirname(os.path.realpath(value.strip()))


def find_repository(checkout: str) -> CheckoutFolders | None:
    """Return the git folders of a checkout, according to its `.git`; None if there are none."""
    marker = f"{checkout}/.git"
    try:
        kind = os.lstat(marker).st_mode
        if stat.S_ISDIR(kind):  # an empty folder exists while another command runs (`restrictions.py`)
            return CheckoutFolders(marker, marker) if os.path.lexists(f"{marker}/HEAD") else None
        own = os.path.realpath(os.path.join(checkout, _text_of(marker).removeprefix("gitdir:").strip()))
        common = (
            os.path.realpath(os.path.join(own, _text_of(f"{own}/commondir")))
            if os.path.isfile(f"{own}/commondir")
            else own
        )
    except OSError:
        return None
    return CheckoutFolders(own, common) if os.path.isdir(own) and os.path.isdir(common) else None


def _text_of(path: str) -> str:
    return read_regular(path, 4096).decode("utf-8", errors="replace").strip()


def repository_of_worktree(folder: str, sandbox_paths: SandboxPaths) -> CheckoutFolders | None:
    """Return the git folders of a worktree of this workspace; None for any other folder.

    A command may have changed the files in the worktree, so only the repository's own data about it counts.
    """
    if sandbox_paths.repository is None or (repository := find_repository(folder)) is None:
        return None
    trees = f"{sandbox_paths.repository.common}/worktrees"
    if os.path.dirname(repository.own) != trees or repository.common != sandbox_paths.repository.common:
        return None
    try:
        back = os.path.realpath(_text_of(f"{repository.own}/gitdir"))
    except OSError:
        return None
    return repository if back == os.path.realpath(f"{folder}/.git") else None


def listening_sockets() -> list[str]:
    """Return file sockets on which a process of this machine listens and that a command could reach.

    Links are resolved.

    A socket in a folder that the user may not enter is out of reach for commands too, even for those of root, because
    they have no root privileges inside. bubblewrap could not cover it either.
    """
    try:
        lines = Path("/proc/net/unix").read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        return []
    paths = {fields[7] for line in lines[1:] if len(fields := line.split(None, 7)) == 8 and fields[7][0] == "/"}
    with without_privileges():
        return sorted({os.path.realpath(path) for path in paths if os.path.exists(path)})
