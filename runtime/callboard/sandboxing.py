"""Puts a session's commands behind their walls: what the settings ask for, what the machine has, what is hidden.

Part of the composition root. Refuses a level that the machine cannot do, with what to install.
"""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path

import anyio.to_thread
from anyio.abc import TaskStatus

from callboard.adapters.launcher import ShellLauncher
from callboard.adapters.sandbox.ground import Ground, find_ground
from callboard.adapters.sandbox.levels import Limits
from callboard.adapters.sandbox.machine import Machine, examine
from callboard.adapters.sandbox.proxy import Proxy
from callboard.adapters.sandbox.sandbox import Choice, Sandbox, choose
from callboard.assembly import Places
from callboard.settings import Loaded
from callboard.words.errors import SettingsError


async def launcher_of(
    places: Places, loaded: Loaded, session: str, *, attended: bool, runs: bool = True
) -> ShellLauncher:
    """The launcher of a session's commands; one that `runs` none needs no walls.

    Raises `SettingsError` for a level that is not to be had.
    """
    if not runs:
        return ShellLauncher(places.workspace, {})
    return await anyio.to_thread.run_sync(_launcher, places, loaded, session, attended)


async def serve_way_out(launcher: ShellLauncher, *, task_status: TaskStatus[None]) -> None:
    """The proxy of level 3, as long as the session lives; nothing at other levels."""
    sandbox = launcher.sandbox
    if not sandbox.way_out:
        task_status.started()
        return
    try:
        await Proxy(sandbox.way_out, sandbox.hosts).serve(task_status=task_status)
    finally:
        shutil.rmtree(Path(sandbox.way_out).parent, ignore_errors=True)


def with_told(loaded: Loaded, launcher: ShellLauncher) -> Loaded:
    """The settings with what has to be said of the level that came of them."""
    told = launcher.sandbox.choice.told
    return replace(loaded, notes=(*loaded.notes, told)) if told else loaded


def _launcher(places: Places, loaded: Loaded, session: str, attended: bool) -> ShellLauncher:
    settings = loaded.settings.sandbox
    machine = Machine() if settings.level == 0 else examine(places.workspace, os.environ)
    limits = Limits(settings.processes, settings.memory, settings.file_size, settings.seconds)
    choice = choice_of(loaded, machine, attended=attended)
    sandbox = Sandbox(choice, machine, _ground(places, loaded, session), limits, settings.network.allow)
    if choice.level == 3:  # a socket's path is short
        sandbox = replace(sandbox, way_out=f"{tempfile.mkdtemp(prefix='callboard-')}/out")
    return ShellLauncher(places.workspace, os.environ, settings.env, sandbox)


def choice_of(loaded: Loaded, machine: Machine, *, attended: bool) -> Choice:
    """The level in force on this machine. Raises `SettingsError` for one that it cannot do."""
    settings = loaded.settings.sandbox
    wanted = None if settings.level == "auto" else settings.level
    try:
        return choose(
            wanted, machine, settings.network.allow, attended=attended, any_level=settings.unattended == "any"
        )
    except ValueError as wrong:
        raise SettingsError(str(wrong), loaded.place(("sandbox", "level"))) from wrong


def _ground(places: Places, loaded: Loaded, session: str) -> Ground:
    settings, data = loaded.settings.sandbox, places.session_data(session)
    own = (places.state.parent, places.config, places.data.parent)
    ground = find_ground(
        places.workspace,
        os.environ,
        own=own,
        shown=(data,),
        scratch=data / "tmp",
        locks=places.state / "sandbox",
    )
    return replace(
        ground,
        writable=_paths(settings.writable, places.workspace),
        readable=_paths(settings.readable, places.workspace),
        hidden=(*ground.hidden, *_paths(settings.hidden, places.workspace)),
    )


def _paths(texts: Iterable[str], workspace: Path) -> tuple[str, ...]:
    """Paths of settings: `~` is the home, what is relative stands in the workspace."""
    return tuple(os.path.realpath(workspace / Path(text).expanduser()) for text in texts)
