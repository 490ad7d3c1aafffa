"""Each file on a page is read by the runtime's own reader; anything that the reader rejects or skips is reported."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable
from pathlib import Path, PurePosixPath

from tests.examples.folder import Folder
from tests.examples.pages import Block

from callboard.adapters.extensions.agents import load_agents
from callboard.adapters.extensions.claude_settings import read_claude
from callboard.adapters.extensions.discovery import DiscoveryNote, ExtensionPaths
from callboard.adapters.extensions.hook_fields import HookOrigin
from callboard.adapters.extensions.hooks import load_hooks
from callboard.adapters.extensions.schedules import read_schedule
from callboard.adapters.extensions.skills import load_skills
from callboard.adapters.extensions.stages import load_stage
from callboard.adapters.extensions.yaml import load_yaml
from callboard.adapters.mcp.config import ServerSources, read_servers
from callboard.adapters.models.rehearsal.scenario_file import load_scenario
from callboard.cli.headless.client import message_in
from callboard.config.settings import load_settings
from callboard.types.errors import SettingsError

Reader = Callable[[Folder, Path], Iterable[object]]


def _places(folder: Folder) -> ExtensionPaths:
    return ExtensionPaths(folder.workspace, folder.home / ".config/callboard", folder.home, trusted=True, bundled=False)


def _of(notes: Iterable[DiscoveryNote], file: Path) -> list[DiscoveryNote]:
    return [one for one in notes if Path(one.path) == file]


def settings(folder: Folder, file: Path) -> Iterable[object]:
    """Callboard settings, of a person or a workspace."""
    environ = {name: folder.env[name] for name in ("HOME", "XDG_CONFIG_HOME")}
    return [
        note for note in load_settings(environ, workspace=folder.workspace, trusted=True).notes if str(file) in note
    ]


def agents(folder: Folder, file: Path) -> Iterable[object]:
    """An agent file: it is in force, and no part of it is skipped."""
    loaded = load_agents(_places(folder))
    return (
        [] if any(one.path == file for one in loaded.items.values()) and not _of(loaded.notes, file) else loaded.notes
    )


def skills(folder: Folder, file: Path) -> Iterable[object]:
    """A skill: it is in force, and no part of it is skipped."""
    loaded = load_skills(_places(folder))
    return (
        [] if file.parent.name in loaded.items and not _of(loaded.notes, file) else loaded.notes or ["it is not read"]
    )


def schedules(_: Folder, file: Path) -> Iterable[object]:
    """A schedule file. An error is raised."""
    read_schedule(file.read_bytes(), str(file))
    return []


def hooks(folder: Folder, file: Path) -> Iterable[object]:
    """A `hooks.json`."""
    read = load_hooks(file, HookOrigin(str(folder.workspace), compatible=False))
    return read.notes or ([] if read.entries else ["it has no hook"])


def claude(folder: Folder, file: Path) -> Iterable[object]:
    """Settings in Claude Code's format, of a person (`~/.claude`) or a workspace."""
    person = file.parent == folder.home / ".claude"
    read = read_claude(file.read_bytes(), str(file), person=person, trusted=True)
    told = [one for one in read.verdicts if one.verdict != "honored"]
    return told or load_hooks(file, HookOrigin(str(folder.workspace), compatible=True)).notes


def servers(folder: Folder, file: Path) -> Iterable[object]:
    """A trusted `.mcp.json`: each of its servers is present, even if environment variables are missing."""
    read = read_servers(
        ServerSources(folder.workspace, folder.env, trusted=True, workspace_text=file.read_text("utf-8"))
    )
    told = [note for note in read.notes if "is not set" not in note.reason]
    return told or ([] if read.entries or read.held else ["it has no server"])


def scenario(_: Folder, file: Path) -> Iterable[object]:
    """A rehearsal scenario. An error is raised."""
    load_scenario(file)
    return []


def stage(folder: Folder, file: Path) -> Iterable[object]:
    """A custom context stage: importing it raises any error."""
    names = re.findall(r"^def (\w+)", file.read_text("utf-8"), re.MULTILINE)
    for name in names:
        load_stage(f"{file.stem}:{name}", file.parent, folder.workspace)
    return [] if names else ["it has no function"]


def plain(_: Folder, file: Path) -> Iterable[object]:
    """A file that only commands of the page read."""
    if file.suffix == ".json":
        json.loads(file.read_text("utf-8"))
    if file.suffix in (".yaml", ".yml"):
        load_yaml(file)
    return []


READERS: tuple[tuple[str, Reader], ...] = (
    (".callboard/settings.yaml", settings),
    (".config/callboard/settings.yaml", settings),
    (".claude/settings.json", claude),
    (".claude/settings.local.json", claude),
    ("hooks/hooks.json", hooks),
    (".mcp.json", servers),
    ("agents/*.md", agents),
    ("skills/*/SKILL.md", skills),
    ("schedules/*.md", schedules),
    ("stages/*.py", stage),
)


def reader_of(path: str, text: str) -> Reader:
    """Return the reader of a file, chosen by path as the runtime does."""
    found = next((reader for pattern, reader in READERS if PurePosixPath(path).match(pattern)), None)
    if found is None and path.endswith(".yaml") and "\nagents:" in f"\n{text}":
        return scenario
    return found or plain


def errors_in(folder: Folder, block: Block, file: Path) -> str:
    """Return an empty string for a valid file, otherwise the reasons against it."""
    try:
        errors = list(reader_of(block.info, block.text)(folder, file))
    except (SettingsError, ValueError, SyntaxError) as error:
        return str(error)
    return "\n".join(map(str, errors))


def lines_of(block: Block) -> str:
    """Messages of the protocol of `--input-format stream-json` and their answers."""
    for number, line in enumerate(block.text.splitlines(), block.line + 1):
        message_in(line.encode(), number)
    return ""
