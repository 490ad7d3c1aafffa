"""Installed plugins that a session loads."""

from __future__ import annotations

import os
from pathlib import Path

from callboard.adapters.extensions.discovery import DiscoveryNote
from callboard.adapters.extensions.installed_plugins import enabled_folders, installed_plugins
from callboard.config.settings import LoadedSettings
from callboard.core.permissions.sensitive_paths import claude_folder
from callboard.sessions.places import WorkspacePaths


def plugins_in_force(
    loaded: LoadedSettings, places: WorkspacePaths
) -> tuple[tuple[Path, ...], tuple[DiscoveryNote, ...]]:
    """Return the folders of the plugins that are installed and enabled, and notes on those that cannot be used."""
    claude = claude_folder(Path.home(), os.environ)
    switches = loaded.settings.enabled_plugins
    plugins, notes = installed_plugins(places.config, claude, places.workspace, switches)
    return tuple(enabled_folders(plugins)), notes
