"""Sandbox of a session's commands: the level in the settings, the capabilities of the machine, the hidden paths.

Part of the composition root. Rejects a level that the machine does not support, with the packages to install.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path

import anyio.to_thread
from anyio.abc import TaskStatus

from callboard.adapters.processes.launcher import ShellLauncher
from callboard.adapters.processes.sandbox.machine import Machine, examine
from callboard.adapters.processes.sandbox.proxy import SessionProxies
from callboard.adapters.processes.sandbox.restrictions import SandboxLimits
from callboard.adapters.processes.sandbox.sandbox import Sandbox, SandboxLevel, choose
from callboard.adapters.processes.sandbox.sandbox_paths import SandboxPaths, find_sandbox_paths
from callboard.config.settings import LoadedSettings
from callboard.sessions.places import WorkspacePaths
from callboard.types.errors import CallboardError, SettingsError


async def launcher_of(
    places: WorkspacePaths, loaded: LoadedSettings, session: str, *, attended: bool, runs: bool = True
) -> ShellLauncher:
    """Return the launcher of a session's commands; with `runs` False it needs no sandbox.

    Raises `SettingsError` for an unavailable level.
    """
    if not runs:
        return ShellLauncher(places.workspace, {})
    return await anyio.to_thread.run_sync(_launcher, places, loaded, session, attended)


async def serve_way_out(launcher: ShellLauncher, *, task_status: TaskStatus[None]) -> None:
    """Serve the proxies of commands while the session is open; levels below 2 have none."""
    if launcher.level < 2:
        task_status.started()
        return
    await launcher.ways_out.serve(task_status=task_status)


def _launcher(places: WorkspacePaths, loaded: LoadedSettings, session: str, attended: bool) -> ShellLauncher:
    settings = loaded.settings.sandbox
    machine = Machine() if settings.level == 0 else examine(places.workspace, loaded.environment)
    limits = SandboxLimits(settings.processes, settings.memory, settings.file_size, settings.seconds)
    choice = choice_of(loaded, machine, attended=attended)
    sandbox = Sandbox(choice, machine, _ground(places, loaded, session), limits, settings.network.allow)
    ways_out = SessionProxies(ports=bool(machine.seatbelt))
    return ShellLauncher(
        places.workspace, loaded.environment, (*settings.env, *sorted(loaded.variables)), sandbox, ways_out
    )


async def try_launcher(places: WorkspacePaths, loaded: LoadedSettings) -> str:
    """Run `true` as an agent's command would run; return why that failed, empty if it succeeded.

    All files that it creates are removed.
    """
    session = f"doctor-{os.getpid()}"
    launcher = await launcher_of(places, loaded, session, attended=True)
    data = places.session_data(session)
    try:
        finished = await launcher.run("true", places.workspace, timeout=30.0, keep=data / "true.out")
    except (CallboardError, OSError) as error:
        return str(error)
    finally:
        shutil.rmtree(data, ignore_errors=True)
    if finished.exit_code == 0:
        return ""
    return f"`true` ended with {finished.exit_code}: {' '.join(finished.output.split())[:300]}"


def choice_of(loaded: LoadedSettings, machine: Machine, *, attended: bool) -> SandboxLevel:
    """Return the level in force on this machine. Raises `SettingsError` for an unsupported one."""
    settings = loaded.settings.sandbox
    level = None if settings.level == "auto" else settings.level
    try:
        return choose(
            level,
            machine,
            settings.network.allow,
            attended=attended,
            any_level=settings.unattended == "any",
            required=settings.required,
        )
    except ValueError as wrong:
        raise SettingsError(str(wrong), loaded.place(("sandbox", "level"))) from wrong


def _ground(places: WorkspacePaths, loaded: LoadedSettings, session: str) -> SandboxPaths:
    settings = loaded.settings.sandbox
    data = places.session_data(session)
    own = (places.state.parent, places.config, places.data.parent)
    sandbox_paths = find_sandbox_paths(
        places.workspace,
        loaded.environment,
        own=own,
        own_readable=(data,),
        scratch=data / "tmp",
        locks=places.state / "sandbox",
    )
    return replace(
        sandbox_paths,
        writable=_paths(settings.writable, places.workspace),
        readable=_paths(settings.readable, places.workspace),
        hidden=(*sandbox_paths.hidden, *_paths(settings.hidden, places.workspace)),
    )


def _paths(texts: Iterable[str], workspace: Path) -> tuple[str, ...]:
    """Return paths from settings: `~` is the home folder, relative paths refer to the workspace."""
    return tuple(os.path.realpath(workspace / Path(text).expanduser()) for text in texts)
