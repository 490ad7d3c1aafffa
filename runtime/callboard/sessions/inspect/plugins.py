"""Plugins of a person: the installed ones, their installation from a source, and marketplaces.

A source is a folder, a git repository (an address or a path, with `#ref`), or `NAME@MARKETPLACE`. Its files are copied
to a folder that no session uses, and read there; nothing in them is run. `StagedPlugin.install` renames that folder and
then writes the list, so that a kill at any time leaves the old plugin or the new one. The next call that changes
plugins removes what a killed one left.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import tempfile
from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import field, replace
from pathlib import Path
from typing import cast

from callboard.adapters.extensions.agents import load_agents
from callboard.adapters.extensions.discovery import DiscoveryNote, ExtensionPaths
from callboard.adapters.extensions.installed_plugins import (
    InstalledPlugin,
    copy_plugin,
    installed_plugins,
    marketplaces,
    own_plugins,
    write_marketplaces,
    write_own,
)
from callboard.adapters.extensions.plugins import MANIFEST, read_plugin
from callboard.adapters.extensions.skills import load_skills
from callboard.adapters.extensions.trust import plugin_claims
from callboard.adapters.git.git import export_commit
from callboard.adapters.mcp.config import ServerSources, read_servers
from callboard.adapters.storage.file_locks import hold_lock
from callboard.adapters.system.regular_files import read_regular
from callboard.config.hooks import plugin_hooks
from callboard.config.settings_file import settings_here
from callboard.core.json_depth import check_json_limits
from callboard.core.permissions.sensitive_paths import claude_folder
from callboard.core.trust.claims import Claim, printable
from callboard.sessions.places import WorkspacePaths, find_places
from callboard.types.choices import unknown
from callboard.types.errors import UsageError
from callboard.types.late_pattern import late_pattern
from callboard.types.lazy_dataclass import dataclass
from callboard.types.records import Json
from callboard.types.skills import Plugin

MARKETPLACE = ".claude-plugin/marketplace.json"

_NAME = late_pattern(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")
_REF = late_pattern(r"[A-Za-z0-9_][A-Za-z0-9_./+@-]{0,200}")
_SCP = late_pattern(r"[A-Za-z0-9_.-]+@[A-Za-z0-9.-]+:(?!//).+")
"""Address of a repository in the short form of ssh: `git@host:path`."""
_GITHUB = late_pattern(r"[A-Za-z0-9-]+/[A-Za-z0-9._-]+")
"""`OWNER/REPOSITORY` of GitHub."""
_PREFIX = ".new-"
_LARGEST = 4_000_000
_VARIABLE = late_pattern(r"\$\{(\w+)\}")
_MANIFEST_FIELDS = (
    *("version", "description", "author", "homepage", "repository", "license", "keywords"),
    *("agents", "skills", "commands", "hooks", "mcpServers", "outputStyles"),
)
"""Fields of an entry of a marketplace that describe a plugin without a manifest."""


@dataclass(frozen=True, slots=True)
class PluginContent:
    """Parts of one plugin. `claims`: everything in it that would run something or extend rights."""

    name: str
    version: str = ""
    description: str = ""
    agents: tuple[str, ...] = ()
    skills: tuple[str, ...] = ()
    commands: tuple[str, ...] = ()
    claims: tuple[Claim, ...] = ()
    hooks: int = 0
    servers: int = 0
    notes: tuple[str, ...] = ()
    """A line for each part that is not used."""


@dataclass(frozen=True, slots=True)
class PluginListing:
    """All installed plugins, each with its content; None: it cannot be loaded. `notes`: the reasons."""

    plugins: tuple[tuple[InstalledPlugin, PluginContent | None], ...] = ()
    notes: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Marketplace:
    """List of plugins, from a file in the form of `.claude-plugin/marketplace.json`."""

    name: str
    root: Path
    """Folder to which its relative paths refer."""
    entries: Mapping[str, Json]
    base: str = ""
    """Folder of the plugins, for paths that do not begin with `./`."""


@dataclass(frozen=True, slots=True)
class StagedPlugin:
    """Plugin that was copied and read, but is not installed yet."""

    name: str
    """Name under which it is installed: `NAME@MARKETPLACE`, or `NAME`."""
    source: str
    content: PluginContent
    previous: InstalledPlugin | None
    places: WorkspacePaths
    staged: Path
    digest: str

    @property
    def unchanged(self) -> bool:
        """Return True if exactly these files are installed from the same source."""
        before = self.previous
        return before is not None and (before.path, before.source) == (str(self._target()), self.source)

    def install(self) -> InstalledPlugin:
        """Install it. It is enabled, unless the person disabled an earlier version. Raises `UsageError`."""
        enabled = self.previous is None or self.previous.enabled
        target = self._target()
        plugin = InstalledPlugin(self.name, str(target), self.content.version, self.source, enabled)
        try:
            target.parent.mkdir(mode=0o700, exist_ok=True)
            if not target.exists():
                self.staged.rename(target)
            write_own(self.places.config, own_plugins(self.places.config) | {self.name: plugin})
        except OSError as error:
            raise UsageError(f"{target}: cannot be written: {error.strerror or error}") from error
        _remove_unused(self.places, keep=self.previous)
        return plugin

    def _target(self) -> Path:
        version = self.content.version
        folder = f"{version}-{self.digest[:12]}" if _NAME.fullmatch(version) else self.digest[:12]
        return plugin_store(self.places) / self.content.name / folder


@dataclass(frozen=True, slots=True)
class _FoundPlugin:
    """Plugin of a source. `folder` has its files; links in it may lead anywhere inside `boundary`."""

    folder: Path
    boundary: Path
    source: str
    name: str
    """Name of a plugin without a manifest."""
    marketplace: str = ""
    entry: Json = field(default_factory=dict[str, object])
    """Its entry in the marketplace."""


@dataclass
class _Staging:
    """Folder for one installation, and the files that were fetched into it."""

    places: WorkspacePaths
    folder: Path
    fetched: int = 0
    tell: Callable[[str], None] = field(default=lambda _line: None)

    async def fetch(self, address: str, ref: str) -> Path:
        """Return a folder with the files of a git repository."""
        if "://" in address and "@" in address.partition("://")[2].partition("/")[0] and not address.startswith("ssh"):
            raise UsageError("an address with a password or a token would be stored: use ssh, or a path")
        if ref and not (_REF.fullmatch(ref) and ".." not in ref):
            raise UsageError(f"{printable(ref)!r} is not a branch, a tag or a commit")
        self.fetched += 1
        into = self.folder / f"fetched-{self.fetched}"
        into.mkdir(mode=0o700)
        self.tell(f"fetching {printable(address)}{'#' + ref if ref else ''}")
        workspace = self.places.workspace
        await export_commit(address, ref, into, workspace=workspace, environment=os.environ)
        return into


def plugin_store(places: WorkspacePaths) -> Path:
    """Return the folder that contains the files of installed plugins."""
    return places.data.parent / "plugins"


def list_plugins(workspace: Path) -> PluginListing:
    """Return the plugins that Callboard and Claude Code installed. Raises `WorkspaceUnusable`, `SettingsError`."""
    places = find_places(workspace, writable=False)
    loaded, _ = settings_here(places.workspace, places.config)
    claude = claude_folder(Path.home(), os.environ)
    plugins, notes = installed_plugins(places.config, claude, places.workspace, loaded.settings.enabled_plugins)
    lines = [str(note) for note in notes]
    rows: list[tuple[InstalledPlugin, PluginContent | None]] = []
    for _, plugin in sorted(plugins.items()):
        try:
            rows.append((plugin, content_of(Path(plugin.path))))
        except UsageError as error:
            rows.append((plugin, None))
            lines.append(f"{plugin.name}: {error}")
    return PluginListing(tuple(rows), tuple(lines))


def content_of(folder: Path) -> PluginContent:
    """Return the content of a plugin. Nothing in it is run. Raises `UsageError` if it cannot be loaded."""
    plugin, notes = read_plugin(folder)
    if plugin is None:
        raise UsageError("; ".join(map(str, notes)))
    files = ExtensionPaths(bundled=False, plugins=(plugin,))
    agents = load_agents(files)
    skills = load_skills(files)
    paths = [skill.path for skill in skills.items.values()]
    claims = tuple(plugin_claims(plugin, [Path(agent.path) for agent in agents.items.values()], paths))
    hooks = list(plugin_hooks(plugin, ""))
    hook_notes = [note for read in hooks for note in read.notes]
    of_files = sum(claim.kind == "hook" and claim.path.endswith(".md") for claim in claims)
    servers, server_notes = _servers(plugin)
    further = (*agents.notes, *skills.notes, *hook_notes, *server_notes)
    kinds = [skill.text for skill in skills.items.values()]
    return PluginContent(
        name=plugin.name,
        version=plugin.version,
        description=plugin.description,
        agents=tuple(sorted(agents.items)),
        skills=tuple(sorted(text.name for text in kinds if text.kind == "skill")),
        commands=tuple(sorted(text.name for text in kinds if text.kind != "skill")),
        claims=claims,
        hooks=sum(len(read.entries) for read in hooks) + of_files,
        servers=servers,
        # The folder may be a temporary copy, whose name says nothing to a person.
        notes=tuple(str(note).removeprefix(f"{folder}/") for note in (*notes, *further)),
    )


def _servers(plugin: Plugin) -> tuple[int, Sequence[DiscoveryNote]]:
    """Return the number of a plugin's servers, and the notes on them.

    All variables count as set, as those of this machine do not matter.
    """
    entries = read_servers(ServerSources(plugin.root, plugins=(plugin,))).entries  # an unset one stays as it is written
    variables = dict.fromkeys(_VARIABLE.findall(" ".join(map(repr, entries))), "")
    servers = read_servers(ServerSources(plugin.root, variables, plugins=(plugin,)))
    return len(servers.entries), servers.notes


def checked_content(path: Path) -> PluginContent | Marketplace:
    """Return the content of a plugin or of a marketplace: of its folder, or of its manifest. Nothing in it is run.

    Raises `UsageError` if it cannot be loaded.
    """
    path = path.absolute()
    folder = path.parents[1] if path.is_file() and path.parent.name == Path(MARKETPLACE).parent.name else path
    manifest = folder / MARKETPLACE
    if path == manifest or (path == folder and manifest.is_file() and not (folder / MANIFEST).is_file()):
        return _marketplace(manifest, folder)
    if not folder.is_dir():
        raise UsageError(f"{path}: name the folder of a plugin or of a marketplace, or its manifest")
    return content_of(folder)


@asynccontextmanager
async def staged_plugin(
    workspace: Path, source: str, tell: Callable[[str], None]
) -> AsyncGenerator[StagedPlugin, None]:
    """Copy and read the plugin of a source, for an installation in the block. `tell`: receives a line of progress.

    Raises `UsageError` for a source without a plugin, or while another process changes plugins.
    """
    async with _changing(workspace, tell) as staging:
        listed = own_plugins(staging.places.config)
        plugin = await _found_plugin(staging, source)
        staged = staging.folder / "plugin"
        digest = copy_plugin(plugin.folder, staged, boundary=plugin.boundary)
        manifest = _complete(staged, plugin)
        content = content_of(staged)
        name = f"{content.name}@{plugin.marketplace}" if plugin.marketplace else content.name
        digest = hashlib.sha256(f"{digest}{manifest}".encode()).hexdigest()
        yield StagedPlugin(name, plugin.source, content, listed.get(name), staging.places, staged, digest)


async def add_marketplace(workspace: Path, source: str, tell: Callable[[str], None]) -> Marketplace:
    """Read a marketplace and remember its source under its name. Raises `UsageError`."""
    async with _changing(workspace, tell) as staging:
        marketplace = await _read_marketplace(staging, source)
        config = staging.places.config
        origins = marketplaces(config)
        origin = _absolute(source)
        if origins.get(marketplace.name, origin) != origin:
            raise UsageError(
                f"the marketplace {marketplace.name} is {origins[marketplace.name]} already: "
                f"`callboard plugin marketplace remove {marketplace.name}` removes it"
            )
        write_marketplaces(config, origins | {marketplace.name: origin})
        return marketplace


async def remove_marketplace(workspace: Path, name: str) -> None:
    """Forget a marketplace. Plugins that were installed from it stay. Raises `UsageError`."""
    async with _changing(workspace) as staging:
        origins = marketplaces(staging.places.config)
        if name not in origins:
            raise UsageError(unknown("marketplace", name, sorted(origins)))
        write_marketplaces(staging.places.config, {other: origins[other] for other in origins if other != name})


def list_marketplaces(workspace: Path) -> dict[str, str]:
    """Return the sources of the person's marketplaces, by name. Raises `UsageError`, `WorkspaceUnusable`."""
    return marketplaces(find_places(workspace, writable=False).config)


async def switch_plugin(workspace: Path, name: str, *, enabled: bool) -> InstalledPlugin:
    """Enable or disable an installed plugin for sessions that begin later. Raises `UsageError`."""
    async with _changing(workspace) as staging:
        plugins = own_plugins(staging.places.config)
        plugin = replace(plugins[_installed(plugins, name)], enabled=enabled)
        write_own(staging.places.config, plugins | {plugin.name: plugin})
        return plugin


async def remove_plugin(workspace: Path, name: str) -> InstalledPlugin:
    """Remove an installed plugin with its files. Raises `UsageError`."""
    async with _changing(workspace) as staging:
        plugins = own_plugins(staging.places.config)
        plugin = plugins.pop(_installed(plugins, name))
        write_own(staging.places.config, plugins)
        _remove_unused(staging.places)
        return plugin


def update_sources(workspace: Path, name: str | None) -> list[str]:
    """Return the sources from which a plugin, or each plugin, is installed again. Raises `UsageError`."""
    plugins = own_plugins(find_places(workspace, writable=False).config)
    names = sorted(plugins) if name is None else [_installed(plugins, name)]
    # The source of a plugin of a marketplace is that of the marketplace.
    return [f"{full.partition('@')[0]}@" * ("@" in full) + plugins[full].source for full in names]


@asynccontextmanager
async def _changing(
    workspace: Path, tell: Callable[[str], None] = lambda _line: None
) -> AsyncGenerator[_Staging, None]:
    """Provide a folder for new files while no other process changes plugins; what a killed one left is removed."""
    places = find_places(workspace, writable=False)
    store = plugin_store(places)
    try:
        store.mkdir(mode=0o700, parents=True, exist_ok=True)
        async with hold_lock(store / ".lock", wait=False) as held:
            if not held:
                raise UsageError("another process changes plugins now: try again when it has ended")
            for leftover in store.glob(f"{_PREFIX}*"):
                shutil.rmtree(leftover)
            folder = Path(tempfile.mkdtemp(prefix=_PREFIX, dir=store))
            try:
                yield _Staging(places, folder, tell=tell)
            finally:
                shutil.rmtree(folder, ignore_errors=True)
    except OSError as error:
        raise UsageError(f"{error.filename or store}: {error.strerror or error}") from error


def _remove_unused(places: WorkspacePaths, keep: InstalledPlugin | None = None) -> None:
    """Remove the files of plugins that are not in the list, except the version that was just replaced.

    Sessions that still run may use that one.
    """
    used = {plugin.path for plugin in own_plugins(places.config).values()}
    if keep is not None:
        used.add(keep.path)
    for folder in plugin_store(places).glob("[!.]*"):
        for version in folder.iterdir():
            if str(version) not in used:
                shutil.rmtree(version)
        if not any(folder.iterdir()):
            folder.rmdir()


def _installed(plugins: Mapping[str, InstalledPlugin], name: str) -> str:
    """Return the full name of an installed plugin; `NAME` suffices if only one has it. Raises `UsageError`."""
    near = [full for full in plugins if name in (full, full.partition("@")[0])]
    if name in plugins or len(near) == 1:
        return name if name in plugins else near[0]
    if near:
        raise UsageError(f"{name} is installed from several marketplaces: write {' or '.join(sorted(near))}")
    raise UsageError(
        unknown("plugin", name, sorted(plugins)) if plugins else f"no plugin is installed, so not {name!r}"
    )


def _market_name(source: str) -> tuple[str, str]:
    """Return the parts of `NAME@MARKETPLACE`; both are empty for another source."""
    name, at, market = source.partition("@")
    other = Path(source).expanduser().exists() or _SCP.fullmatch(source)
    return (name, market) if at and market and _NAME.fullmatch(name) and not other else ("", "")


def _absolute(source: str) -> str:
    """Return a source that means the same in every folder."""
    path, mark, ref = source.partition("#")
    local = Path(path).expanduser()
    return f"{local.resolve()}{mark}{ref}" if local.exists() else source


def _name_of(source: str) -> str:
    """Return the name of a plugin without a manifest: that of its folder or repository."""
    return Path(_absolute(source).partition("#")[0].rstrip("/")).name.removesuffix(".git")


async def _found_plugin(staging: _Staging, source: str) -> _FoundPlugin:
    """Find the plugin of a source, and fetch it if necessary. Raises `UsageError` if there is none."""
    name, market = _market_name(source)
    if market:
        registered = marketplaces(staging.places.config)
        origin = registered.get(market) or _absolute(market)
        return await _plugin_of(staging, await _read_marketplace(staging, origin), name, origin)
    folder = await _folder_of(staging, source)
    plugin, notes = read_plugin(folder)
    if plugin is None and (folder / MARKETPLACE).exists():
        raise UsageError(
            f"{printable(source)} is a marketplace, not a plugin: `callboard plugin marketplace add {source}` adds it, "
            "then `callboard plugin install NAME@MARKETPLACE` installs one of its plugins"
        )
    if plugin is None:
        raise UsageError("; ".join(map(str, notes)).replace(str(folder), printable(source)))
    origin = _absolute(source)
    return _FoundPlugin(folder, folder, origin, _name_of(origin))


async def _folder_of(staging: _Staging, source: str) -> Path:
    """Return a folder with the files of a folder, or of a git repository. Raises `UsageError`."""
    place = _located(source)
    return place if isinstance(place, Path) else await staging.fetch(*place)


def _located(source: str) -> Path | tuple[str, str]:
    """Return the folder of a source, or the address and reference of its repository. Raises `UsageError`."""
    address, _, ref = source.partition("#")
    path = Path(source).expanduser()
    if path.is_dir() and not _is_bare(path):
        return path.resolve()
    path = Path(address).expanduser()
    if path.is_dir():
        return str(path.resolve()), ref
    if path.exists():
        raise UsageError(f"{source} is a file: give a folder or a git repository")
    if address.startswith(("https://", "ssh://", "file://")) or _SCP.fullmatch(address):
        return address, ref
    if "://" in address:
        raise UsageError(f"{printable(address)}: use https, ssh, or a path")
    if _GITHUB.fullmatch(address):
        return f"https://github.com/{address}.git", ref
    raise UsageError(f"{printable(source)}: there is no such folder, and it is no address of a git repository")


def _is_bare(path: Path) -> bool:
    return (path / "HEAD").is_file() and (path / "objects").is_dir() and (path / "refs").is_dir()


async def _read_marketplace(staging: _Staging, source: str) -> Marketplace:
    """Read a marketplace: a folder, a git repository, or a file. Raises `UsageError`."""
    file = _marketplace_file(source, sorted(marketplaces(staging.places.config)))
    if file is None:
        root = await _folder_of(staging, source)
        return _marketplace(root / MARKETPLACE, root)
    return _marketplace(file, file.parents[1] if str(file).endswith(f"/{MARKETPLACE}") else file.parent)


def _marketplace_file(source: str, names: Sequence[str]) -> Path | None:
    """Return the file that a source is; None for a folder or a repository. Raises `UsageError` for an unknown name."""
    file = Path(source).expanduser()
    if file.is_file():
        return file.resolve()
    if not file.exists() and _NAME.fullmatch(source):
        hint = ": `callboard plugin marketplace add SOURCE` adds one"
        raise UsageError(unknown("marketplace", source, names) + hint)
    return None


def _marketplace(file: Path, root: Path) -> Marketplace:
    document = _object(file)
    name = document.get("name")
    plugins = document.get("plugins")
    if not isinstance(name, str) or not _NAME.fullmatch(name):
        raise UsageError(f"{file}: name: write letters, digits and hyphens")
    if not isinstance(plugins, list):
        raise UsageError(f"{file}: plugins: write a list")
    entries: dict[str, Json] = {}
    for number, entry in enumerate(cast("list[object]", plugins)):
        fields = cast("Json", entry) if isinstance(entry, dict) else {}
        plugin_name = fields.get("name")
        if not isinstance(plugin_name, str) or not _NAME.fullmatch(plugin_name):
            raise UsageError(f"{file}: plugins[{number}].name: write letters, digits and hyphens")
        entries.setdefault(plugin_name, fields)
    metadata = document.get("metadata")
    base = cast("Json", metadata).get("pluginRoot") if isinstance(metadata, dict) else ""
    return Marketplace(name, root, entries, base if isinstance(base, str) else "")


def _object(file: Path) -> Json:
    try:
        text = read_regular(file, _LARGEST).decode("utf-8-sig")
        check_json_limits(text)
        document: object = json.loads(text)
    except FileNotFoundError:
        raise UsageError(f"{file} does not exist: a marketplace is a folder or a repository with that file") from None
    except (OSError, ValueError, RecursionError) as error:
        raise UsageError(f"{file}: cannot be read: {getattr(error, 'strerror', None) or error}") from error
    if not isinstance(document, dict):
        raise UsageError(f"{file}: a marketplace is a JSON object")
    return cast("Json", document)


async def _plugin_of(staging: _Staging, marketplace: Marketplace, name: str, origin: str) -> _FoundPlugin:
    """Find a plugin of a marketplace, and fetch it if necessary. Raises `UsageError`."""
    entry = marketplace.entries.get(name)
    if entry is None:
        raise UsageError(unknown("plugin", name, sorted(marketplace.entries), where=f"in {marketplace.name}"))
    source = entry.get("source", f"./{name}")
    root = marketplace.root
    if isinstance(source, str):
        path = Path(source) if source.startswith("./") or source == "." else Path(marketplace.base, source)
    else:
        root = await staging.fetch(*_repository_of(source, name, local=not root.is_relative_to(staging.folder)))
        path = Path(str(cast("Json", source).get("path", ".")))
    return _FoundPlugin(_beneath(root, path), root, origin, name, marketplace.name, entry)


def _repository_of(source: object, name: str, *, local: bool) -> tuple[str, str]:
    """Return the address and the reference of an entry's git repository. Raises `UsageError`.

    `local`: the marketplace is on this machine, so it may name repositories on it.
    """
    fields = cast("Json", source) if isinstance(source, dict) else {}
    texts = {key: value for key, value in fields.items() if isinstance(value, str)}
    address = texts.get("url", "")
    if texts.get("source") == "github":
        address = f"https://github.com/{texts.get('repo', '')}.git"
    elif texts.get("source") not in ("url", "git", "git-subdir"):
        raise UsageError(f"{name}: the source {json.dumps(source)} is not supported: a path, github, url or git-subdir")
    if not (address.startswith(("https://", "ssh://", *(["file://"] if local else []))) or _SCP.fullmatch(address)):
        raise UsageError(f"{name}: {printable(address)!r} is not an address of a git repository: use https or ssh")
    return address, texts.get("sha") or texts.get("ref", "")


def _beneath(root: Path, path: Path) -> Path:
    """Return a folder inside a marketplace or a repository. Raises `UsageError` for a path that leads out of it."""
    folder = (root / path).resolve()
    if not folder.is_relative_to(root.resolve()):
        raise UsageError(f"{path} leads out of {root}")
    if not folder.is_dir():
        raise UsageError(f"{path}: there is no such folder in {root}")
    return folder


def _complete(staged: Path, plugin: _FoundPlugin) -> str:
    """Give a plugin without a manifest one, with its name and the fields of its entry. Return the new text."""
    manifest = staged / MANIFEST
    if manifest.exists():
        return ""
    fields = {key: plugin.entry[key] for key in _MANIFEST_FIELDS if key in plugin.entry}
    text = json.dumps({"name": plugin.name, **fields}, indent=2) + "\n"
    manifest.parent.mkdir(exist_ok=True)
    manifest.write_text(text, encoding="utf-8")
    return text
