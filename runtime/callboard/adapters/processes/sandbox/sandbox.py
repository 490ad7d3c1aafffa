"""Sandbox of a session: the level in force, chosen once, and the restrictions of each command at that level.

Level 0 has no restrictions. A session without a user on a machine without any sandbox refuses (`refusal`) to run
commands, unless level 0 was requested.

`explain` detects failures that the sandbox probably caused, and names the remedy. It reads the command's output and may
be wrong both ways, so its text describes the sandbox, not the cause of the failure.
"""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import field
from pathlib import Path

from callboard.adapters.processes.programs import is_within
from callboard.adapters.processes.sandbox.machine import Machine
from callboard.adapters.processes.sandbox.opened_paths import (
    Placeholder,
    find_openings,
    make_placeholders,
    missing_files,
)
from callboard.adapters.processes.sandbox.restrictions import (
    INNER_SHELL,
    TEMPORARY,
    InnerProcess,
    SandboxLimits,
    bubblewrap_restrictions,
    find_command_folder,
    landlock_restrictions,
    seatbelt_rules,
)
from callboard.adapters.processes.sandbox.sandbox_paths import SHARED_FOLDERS, SandboxPaths
from callboard.adapters.processes.sandbox.seatbelt import seatbelt_profile
from callboard.types.errors import ToolRefused
from callboard.types.late_pattern import late_pattern
from callboard.types.lazy_dataclass import dataclass
from callboard.types.records import Grant, HostGrant, PathGrant

EVERYTHING = "*"
"""As an allowed host: opens the machine's own network."""
SOCKET = "/run/callboard-network"
"""Path of the proxy's socket inside, at level 3."""
PORT = 3128
"""Port of the proxy for programs inside, at level 3."""
_NO_NETWORK = late_pattern(
    r"could not resolve|couldn't resolve|temporary failure in name resolution|name or service not known|"
    r"nodename nor servname|name resolution|failed to lookup address|no such host|unknown host|dns error|"
    r"\b(?:ENOTFOUND|EAI_AGAIN|ENETUNREACH|ENETDOWN)\b|network is (?:unreachable|down)|no route to host|"
    r"unable to resolve|getaddrinfo|ECONNREFUSED|connection refused|couldn't connect to server|failed to connect to|"
    r"(?:tunnel|proxy)[^\n]*403|statusCode=403|not in sandbox\.network\.allow|"
    r"address family not supported|(?:network|socket)[^\n]*permission denied|PermissionError[^\n]*(?:connect|socket)",
    re.IGNORECASE,
)
_READ_ONLY = late_pattern(r"read-only file ?system|\bEROFS\b", re.IGNORECASE)
_MISSING = late_pattern(
    r"no such file|not found|permission denied|cannot (?:open|access|stat)|\bENOENT\b|\bEACCES\b|"
    r"does not appear to be a git repository",
    re.IGNORECASE,
)
_REFUSED = late_pattern(
    r"permission denied|operation not permitted|\b(?:EACCES|EPERM)\b|unable to create temporary object directory",
    re.IGNORECASE,
)
_PATH = late_pattern(r"(?<![\w.:/])/[^\s'\"`:,;()<>|]+")
_ASK = "a person is then asked"


@dataclass(frozen=True, slots=True)
class SandboxLevel:
    """Level, and its notices."""

    level: int
    network: bool = False
    """True if the machine's own network is open."""
    refusal: str = ""
    """Reason why no command is run at all."""
    notice: str = ""
    """Text that is shown once at a session's start; empty for none."""
    sealed: bool = False
    """True if no user is present and this level can open only all of the network or none: no approval opens it."""


def choose(
    requested: int | None,
    machine: Machine,
    hosts: tuple[str, ...],
    *,
    attended: bool,
    any_level: bool,
    required: bool = False,
) -> SandboxLevel:
    """Return the level in force.

    `requested` None: the best available. `any_level`: also level 0 without a user. `required`: never level 0.
    Raises ValueError, with the remedy, for a level that this machine does not support.
    """
    everything = EVERYTHING in hosts
    level = (3 if hosts and not everything else 2) if machine.best >= 2 else machine.best
    if requested is not None:
        if requested > machine.best:
            raise ValueError(f"this machine cannot do level {requested}: {machine.reason(requested)}")
        return _chosen(requested, hosts)
    if level == 0 and (required or not (attended or any_level)):
        return SandboxLevel(
            0, True, refusal=_refusal(machine, "a sandbox is required" if required else "no user is present")
        )
    if level == 1 and not attended and everything:
        return SandboxLevel(
            1, notice="sandbox: level 1; its network stays off, because no user can be asked", sealed=True
        )
    chosen = _chosen(level, hosts)
    if level >= 2:
        return chosen
    notice = f"sandbox: level {level} only. {machine.reason(2)} (callboard doctor)"
    return SandboxLevel(level, chosen.network, notice=notice, sealed=level == 1 and not attended)


def _chosen(level: int, hosts: tuple[str, ...]) -> SandboxLevel:
    """Return the choice for a level that the machine supports."""
    if level == 0:
        return SandboxLevel(0, True, notice="sandbox: level 0, commands run with your rights")
    if EVERYTHING in hosts:
        return SandboxLevel(level, True)
    unheard = bool(hosts) and level < 3
    notice = f"sandbox: level {level} cannot allow single hosts, so the network is off; level 3 can"
    return SandboxLevel(level, notice=notice if unheard else "")


def _refusal(machine: Machine, cause: str) -> str:
    return (
        f"bash: no command was run, because {cause} and this machine has no sandbox for it. "
        f"{machine.reason(2)}; or {machine.reason(1)}; or a person sets `sandbox.level: 0`, with which commands run "
        "with all rights of this user."
    )


_PROXY_NAMES = ("HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY")


def _port_of(socket: str) -> int:
    """Return the port of a proxy: its own if it listens on one (macOS), else the one forwarded to its socket."""
    port = socket.rpartition(":")[2]
    return int(port) if port.isdecimal() else PORT


def _proxied(socket: str) -> dict[str, str]:
    """Return the variables that name the proxy for programs inside."""
    place = f"http://{LOOPBACK}:{_port_of(socket)}"
    return {
        **{name: place for variable in _PROXY_NAMES for name in (variable, variable.lower())},
        **dict.fromkeys(("NO_PROXY", "no_proxy"), "localhost,127.0.0.1,::1"),
    }


def _text_inside() -> str:
    """Return the program of Callboard's process inside, as text, so that no file is needed inside."""
    return Path(__file__).with_name("proxy_bridge.py").read_text(encoding="utf-8")


@dataclass(frozen=True, slots=True)
class NetworkReach:
    """Part of the network that one command reaches."""

    open: bool = False
    """True if all of the machine's network is reachable."""
    hosts: tuple[str, ...] = ()
    """Otherwise, the only reachable hosts, through a proxy."""
    socket: str = ""
    """Socket of that proxy; empty: no proxy, so nothing is reachable."""

    @property
    def ports(self) -> tuple[str, ...]:
        """Return the ports of this machine among the hosts, which are also available on the loopback inside."""
        pairs = (host.rpartition(":") for host in self.hosts)
        return tuple(port for name, _, port in pairs if name == LOOPBACK)


LOOPBACK = "127.0.0.1"
_LOOPBACKS = ("localhost:", "[::1]:", "127.0.0.1:")


def _of_this_machine(host: str) -> str:
    """Return the address of a host that is this machine, and any other host unchanged."""
    return f"{LOOPBACK}:{host.rpartition(':')[2]}" if host.startswith(_LOOPBACKS) else host


@dataclass(frozen=True, slots=True)
class Sandbox:
    """Sandbox of a session's commands. Without arguments: none (level 0)."""

    choice: SandboxLevel = field(default_factory=lambda: SandboxLevel(0, True))
    machine: Machine = field(default_factory=Machine)
    paths: SandboxPaths | None = None
    limits: SandboxLimits = field(default_factory=SandboxLimits)
    hosts: tuple[str, ...] = ()
    """Hosts that level 3 allows for every command."""

    @property
    def level(self) -> int:
        return self.choice.level

    @property
    def network(self) -> bool:
        """Return True if commands can reach any network."""
        return self.choice.network or (self.level == 3 and bool(self.hosts))

    def reach(self, grants: Sequence[Grant] = ()) -> NetworkReach:
        """Return the network access of a command that was approved with these grants."""
        granted = () if self.choice.sealed else tuple(grant.host for grant in grants if isinstance(grant, HostGrant))
        if self.choice.network or EVERYTHING in granted or (self.level == 1 and granted):
            return NetworkReach(open=True)
        hosts = (*(self.hosts if self.level == 3 else ()), *map(_of_this_machine, granted))
        return NetworkReach(hosts=tuple(dict.fromkeys(hosts)) if self.level >= 2 else ())

    def description(self) -> tuple[str, ...]:
        """Return the sandbox's description for an agent, so that it does not retry actions that the sandbox prevents.

        Empty at level 0.
        """
        if not self.level or self.refusal:
            return ()
        if self.choice.network:
            reach = "have the machine's network"
        elif self.network:
            reach = (
                f"reach {', '.join(self.hosts)}; a command that was approved with other hosts reaches those too "
                "(`npm install`, `git push`, `hosts`)"
            )
        elif self.choice.sealed:
            reach = "have no network"
        else:
            reach = (
                "have no network unless the command itself was approved with it (`npm install`, `git push`, `hosts`)"
            )
        return (f"Commands run in a sandbox: they change files of your folder and temporary files alone, and {reach}.",)

    @property
    def kind(self) -> int:
        """Return the level whose messages a command sees: Seatbelt refuses as level 1 does, at every level."""
        return 1 if self.machine.seatbelt and self.level else self.level

    @property
    def refusal(self) -> str:
        return self.choice.refusal

    def placeholders(self, grants: Sequence[Grant], folder: str) -> list[Placeholder]:
        """Create the files that must exist to be opened to a command. Files in its own folder need not exist."""
        if self.paths is None or not self.level:
            return []
        real = os.path.realpath(folder)
        own = self.paths.workspace if is_within(real, self.paths.workspace) else real
        outside = [grant for grant in _paths(grants) if not is_within(grant.path, own)]
        return make_placeholders(missing_files(outside, self.paths.homes, self.paths.closed))

    def restrictions(
        self, folder: str, shell: str, command: str, *, grants: Sequence[Grant] = (), reach: NetworkReach | None = None
    ) -> list[str]:
        """Return the RESTRICTION arguments of `launch_child.py` for one command.

        `grants`: approved paths outside of its folder. Reads the disk.
        """
        sandbox_paths, reach = self.paths, reach or self.reach(grants)
        limits = [*self.limits.restrictions()]
        if self.limits.processes and self.machine.group:
            limits.append(f"group={self.machine.group}:{self.limits.processes}")
        elif self.limits.processes and (self.level < 2 or self.machine.seatbelt):
            limits.append(f"limit=NPROC:{self.limits.processes}")
        if sandbox_paths is None or not self.level:
            return limits
        for made in (sandbox_paths.scratch, sandbox_paths.locks):
            if made:
                Path(made).mkdir(mode=0o700, parents=True, exist_ok=True)
        opened = find_openings(_paths(grants), sandbox_paths.homes, sandbox_paths.closed)
        command_folder = find_command_folder(sandbox_paths, folder, opened)
        if self.machine.seatbelt:
            proxied = (_port_of(reach.socket),) if reach.socket else ()
            ports = (*map(int, reach.ports), *proxied)
            rules = seatbelt_rules(sandbox_paths, command_folder, network=reach.open, ports=ports)
            try:
                profile = seatbelt_profile(rules)
            except ValueError as wrong:
                raise ToolRefused(f"bash: the command was not run: {wrong}") from wrong
            return [*limits, f"seatbelt={self.machine.seatbelt}", f"profile={profile}"]
        if self.level == 1:
            return [
                *limits,
                *landlock_restrictions(sandbox_paths, command_folder, self.machine.abi, network=reach.open),
            ]
        inside = _inside(shell, reach)
        restrictions, arguments = bubblewrap_restrictions(
            sandbox_paths, command_folder, self.machine.bwrap, inside, network=reach.open
        )
        most = str(self.limits.processes or "unlimited")
        arguments += ["--chdir", folder, "--", *inside.program, shell, command, most]
        return [*limits, *restrictions, *(f"bwrap={word}" for word in arguments)]

    def environment(self, environment: Mapping[str, str], reach: NetworkReach | None = None) -> dict[str, str]:
        """Return the environment of a command, with the sandbox's changes."""
        if self.paths is None or not self.level:
            return dict(environment)
        proxied = _proxied(reach.socket) if reach and reach.socket else dict[str, str]()
        if self.level >= 2 and not self.machine.seatbelt:
            return {**environment, **proxied, "TMPDIR": TEMPORARY}
        temporary = self.paths.scratch or TEMPORARY
        return {**self._caches(environment, temporary), **environment, **proxied, "TMPDIR": temporary}

    def _caches(self, environment: Mapping[str, str], temporary: str) -> dict[str, str]:
        """Return where programs keep caches that they cannot work without, if they cannot write them in the home.

        npm ends if it cannot write `~/.npm`. Other programs (pip, uv) go on without a cache, and may still read it.
        """
        npm = os.path.realpath(Path(environment.get("HOME") or "/", ".npm"))
        writable = self.paths is not None and any(is_within(npm, folder) for folder in self.paths.writable)
        return {} if writable else {"npm_config_cache": f"{temporary}/npm"}


def _paths(grants: Sequence[Grant]) -> list[PathGrant]:
    return [grant for grant in grants if isinstance(grant, PathGrant)]


def _inside(shell: str, reach: NetworkReach) -> InnerProcess:
    """Return the process that starts the command inside: Python if it has to forward connections, else a shell."""
    if not reach.socket:
        return InnerProcess((shell, "--noprofile", "--norc", "-c", INNER_SHELL, "keeper"))
    python = os.path.realpath(sys.executable)
    program = (python, "-I", "-S", "-c", _text_inside(), SOCKET, str(PORT), ",".join(reach.ports))
    return InnerProcess(program, ((reach.socket, SOCKET),), (sys.base_prefix,))


def explain(
    output: str, reach: NetworkReach, refused: Sequence[str], sandbox_paths: SandboxPaths, *, level: int = 2
) -> str:
    """Return how the sandbox may have caused a command's failure; empty if it did not.

    `refused`: hosts that its proxy refused. Reads the disk.
    """
    return "\n".join((*_network(output, reach, refused), *_files(output, sandbox_paths, level)))


def _network(output: str, reach: NetworkReach, refused: Sequence[str]) -> Iterator[str]:
    allowed = f"the network of {', '.join(reach.hosts)} alone" if reach.socket else "no network"
    if refused:
        quoted = ", ".join(f'"{host}"' for host in refused)
        yield (
            f"[The sandbox gave this command {allowed}, and refused {', '.join(refused)}. To reach that too, run the "
            f"command again with `hosts: [{quoted}]`; {_ASK}. A person may also add it to `sandbox.network.allow`.]"
        )
    elif not reach.open and _NO_NETWORK.search(output):
        yield (
            f"[The sandbox gave this command {allowed}; that may be why it failed, and trying again does not help. Run "
            "what needs the network (npm install, pip install, git push, curl URL) as a command of its own, or name "
            f"the hosts in `hosts`; {_ASK}. A person may also list hosts under `sandbox.network.allow`.]"
        )


def _files(output: str, sandbox_paths: SandboxPaths, level: int) -> Iterator[str]:
    # Landlock answers "permission denied", Seatbelt "operation not permitted", bubblewrap's mounts "read-only file
    # system".
    if _READ_ONLY.search(output) or (level == 1 and _REFUSED.search(output) and _names_outside(output, sandbox_paths)):
        yield (
            "[In the sandbox only your folder and temporary files can be changed, and in your folder not what other "
            f"programs run or obey. To change another file, name its path in the command; {_ASK}. A person may also "
            "list it under `sandbox.writable`.]"
        )
    lines = [line for line in output[-20_000:].splitlines() if _MISSING.search(line)]
    paths = dict.fromkeys(path.rstrip(".") for line in lines[-50:] for path in _PATH.findall(line))
    if hidden := [path for path in paths if _is_hidden(path, sandbox_paths)][:5]:
        yield (
            f"[The sandbox hides {', '.join(hidden)}. To use it, name its path in the command; {_ASK}. A person may "
            "also list it under `sandbox.readable`.]"
        )


def _names_outside(output: str, sandbox_paths: SandboxPaths) -> bool:
    """Return True if the output names an absolute path that commands cannot write."""
    writable = [
        folder for folder in (sandbox_paths.workspace, sandbox_paths.scratch, *sandbox_paths.writable) if folder
    ]
    paths = {path.rstrip(".") for path in _PATH.findall(output[-20_000:])}
    return any(not any(is_within(os.path.realpath(path), folder) for folder in writable) for path in paths)


def _is_hidden(path: str, sandbox_paths: SandboxPaths) -> bool:
    """Return True if a path exists on this machine and is hidden from commands."""
    real = os.path.realpath(path)
    visible = (
        sandbox_paths.workspace,
        sandbox_paths.scratch,
        *sandbox_paths.tools,
        *sandbox_paths.readable,
        *sandbox_paths.writable,
        *sandbox_paths.own_readable,
    )
    if any(folder and is_within(real, folder) for folder in visible) or any(
        is_within(real, folder) for folder in sandbox_paths.own
    ):
        return False
    hidden = (*sandbox_paths.hidden, *sandbox_paths.homes, *SHARED_FOLDERS[:3])
    return any(real != folder and is_within(real, folder) for folder in hidden) and os.path.exists(real)  # noqa: PTH110 - a resolved text, compared with many others
