"""The sandbox of a session: the level in force, chosen once, and the walls of each command at that level.

Level 0 has no walls. Refuses (`refusal`) to run anything for a session without a person where the machine has no walls
to put up, unless that was asked for.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from callboard.adapters.sandbox.ground import Ground
from callboard.adapters.sandbox.levels import (
    KEEPER,
    Inside,
    Limits,
    bubblewrap_walls,
    find_spot,
    landlock_walls,
)
from callboard.adapters.sandbox.machine import Machine

EVERYTHING = "*"
"""As an allowed host: the machine's own network is open."""
SOCKET = "/run/callboard-network"
"""Where the way out of level 3 is inside."""
TEMPORARY = "/tmp"  # noqa: S108 - the command's own, inside
PORT = 3128
"""Where it is told to programs inside."""


@dataclass(frozen=True, slots=True)
class Choice:
    """A level, and what has to be said about it."""

    level: int
    network: bool = False
    """The machine's own is open."""
    refusal: str = ""
    """Why no command is run at all."""
    told: str = ""
    """Said once at a session's start; empty: there is nothing to say."""


def choose(wanted: int | None, machine: Machine, hosts: tuple[str, ...], *, attended: bool, any_level: bool) -> Choice:
    """The level in force. `wanted` None: the best there is. `any_level`: also without a person.

    Raises ValueError, with what to do, for a level that this machine has not.
    """
    everything = EVERYTHING in hosts
    level = (3 if hosts and not everything else 2) if machine.best >= 2 else machine.best
    if wanted is not None:
        if wanted > machine.best:
            raise ValueError(f"this machine cannot do level {wanted}: {machine.reason(wanted)}")
        return _chosen(wanted, hosts)
    if level == 0 and not attended and not any_level:
        return Choice(0, True, refusal=_refusal(machine))
    if level == 1 and not attended and everything:
        return Choice(1, told="sandbox: level 1, where nobody is asked its network stays off")
    chosen = _chosen(level, hosts)
    if level >= 2:
        return chosen
    return Choice(level, chosen.network, told=f"sandbox: level {level} only. {machine.reason(2)} (callboard doctor)")


def _chosen(level: int, hosts: tuple[str, ...]) -> Choice:
    """A level that the machine has."""
    if level == 0:
        return Choice(0, True, told="sandbox: level 0, commands run with your rights")
    if EVERYTHING in hosts:
        return Choice(level, True)
    unheard = bool(hosts) and level < 3
    told = f"sandbox: level {level} cannot let single hosts through, so the network is off; level 3 can"
    return Choice(level, told=told if unheard else "")


def _refusal(machine: Machine) -> str:
    return (
        "bash: no command was run: nobody is there to look on, and this machine has no sandbox for it. "
        f"{machine.reason(2)}; or {machine.reason(1)}; or a person sets `sandbox.level: 0`, by which commands run "
        "with all rights of this user."
    )


_NAMES = ("HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY")
_PROXIED: Mapping[str, str] = {
    **{name: f"http://127.0.0.1:{PORT}" for one in _NAMES for name in (one, one.lower())},
    **dict.fromkeys(("NO_PROXY", "no_proxy"), "localhost,127.0.0.1,::1"),
}
"""What tells programs of the way out."""


def _text_inside() -> str:
    """The program of our process inside: given as text, so that nothing inside has to hold its file."""
    return Path(__file__).with_name("inside.py").read_text(encoding="utf-8")


@dataclass(frozen=True, slots=True)
class Sandbox:
    """What stands round the commands of a session. Without arguments: nothing (level 0)."""

    choice: Choice = field(default_factory=lambda: Choice(0, True))
    machine: Machine = field(default_factory=Machine)
    ground: Ground | None = None
    limits: Limits = field(default_factory=Limits)
    hosts: tuple[str, ...] = ()
    """What level 3 lets through."""
    way_out: str = ""
    """The socket of its proxy."""

    @property
    def level(self) -> int:
        return self.choice.level

    @property
    def network(self) -> bool:
        """Whether commands reach anything outside of themselves."""
        return self.choice.network or (self.level == 3 and bool(self.hosts))

    def words(self) -> tuple[str, ...]:
        """What an agent is told of it: what fails for it need not be tried again. Nothing at level 0."""
        if not self.level or self.refusal:
            return ()
        if self.choice.network:
            reach = "have the machine's network"
        elif self.network:
            reach = f"reach these hosts alone: {', '.join(self.hosts)}"
        else:
            reach = "have no network"
        return (f"Commands run in a sandbox: they change files of your folder and temporary files alone, and {reach}.",)

    @property
    def refusal(self) -> str:
        return self.choice.refusal

    def walls(self, folder: str, shell: str, command: str) -> list[str]:
        """The WALL arguments of `launch_child.py` for one command. Looks at the disk."""
        ground = self.ground
        limits = [*self.limits.walls()]
        if self.limits.processes and self.machine.group:
            limits.append(f"group={self.machine.group}:{self.limits.processes}")
        elif self.limits.processes and self.level < 2:
            limits.append(f"limit=NPROC:{self.limits.processes}")
        if ground is None or not self.level:
            return limits
        for made in (ground.scratch, ground.locks):
            if made:
                Path(made).mkdir(mode=0o700, parents=True, exist_ok=True)
        if self.level == 1:
            return [*limits, *landlock_walls(ground, folder, self.machine.abi, network=self.choice.network)]
        spot = find_spot(ground, folder)
        inside = self._inside(shell)
        walls, words = bubblewrap_walls(ground, spot, self.machine.bwrap, inside, network=self.choice.network)
        most = str(self.limits.processes or "unlimited")
        words += ["--chdir", folder, "--", *inside.program, shell, command, most]
        return [*limits, *walls, *(f"bwrap={word}" for word in words)]

    def _inside(self, shell: str) -> Inside:
        if self.level < 3:
            return Inside((shell, "--noprofile", "--norc", "-c", KEEPER, "keeper"))
        python = os.path.realpath(sys.executable)
        program = (python, "-I", "-S", "-c", _text_inside(), SOCKET, str(PORT))
        return Inside(program, ((self.way_out, SOCKET),), (sys.base_prefix,))

    def told(self, environment: Mapping[str, str]) -> dict[str, str]:
        """The environment of a command, with what the sandbox changes in it."""
        if self.ground is None or not self.level:
            return dict(environment)
        proxied = dict(_PROXIED) if self.level == 3 else dict[str, str]()
        return {**environment, **proxied, "TMPDIR": TEMPORARY if self.level >= 2 else self.ground.scratch or TEMPORARY}
