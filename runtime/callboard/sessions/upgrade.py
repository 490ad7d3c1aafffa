"""Notices when another version of Callboard has replaced the one that this process runs."""

from __future__ import annotations

from pathlib import Path

import anyio

from callboard.adapters.system.folder_watch import Watches
from callboard.adapters.system.release import OURS, Release

UPGRADED = 75
"""Exit code if the files of this process were replaced. A supervisor starts the new version."""
SETTLED = 2.0
"""Seconds for an installer to write the rest of the package."""
LOOK_AGAIN = 60.0
"""Seconds between checks if the kernel does not report changes."""


async def until_replaced(release: Release = OURS) -> str:
    """Return a message once another version is installed. Uses no CPU until the package's folder changes."""
    try:
        watch = Watches().watch([Path(release.file).parent])
    except OSError:
        watch = None  # no inotify here, or no more of it
    try:
        while True:
            if release.replaced():
                await anyio.sleep(SETTLED)
            if (message := release.replaced()) and release.installed():
                return message
            await (anyio.sleep(LOOK_AGAIN) if watch is None else watch.changed())
    finally:
        if watch is not None:
            watch.close()
