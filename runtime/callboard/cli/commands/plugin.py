"""Commands of `plugin` and `plugin marketplace`: the plugins of a person.

Nothing in a plugin is run by these commands. Before an installation, everything in the plugin that sessions would run
is shown in full, and a person confirms it.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import anyio
import click

from callboard.adapters.extensions.installed_plugins import InstalledPlugin
from callboard.adapters.processes.tool_ancestry import refuse_inside_tool
from callboard.cli.commands.known_names import KnownNamesGroup
from callboard.cli.commands.options import Invocation, as_json, everywhere
from callboard.cli.commands.output import terminal_of
from callboard.cli.terminal.keyboard import Keyboard, person_is_there
from callboard.cli.terminal.terminal import Block, Line, block
from callboard.cli.views.listings import table
from callboard.cli.views.trust import claim_lines
from callboard.core.keys import count_words
from callboard.core.trust.claims import printable
from callboard.sessions.inspect.plugins import (
    Marketplace,
    PluginContent,
    StagedPlugin,
    add_marketplace,
    checked_content,
    list_marketplaces,
    list_plugins,
    remove_marketplace,
    remove_plugin,
    staged_plugin,
    switch_plugin,
    update_sources,
)
from callboard.types.errors import UsageError

_QUESTION = "Install exactly this? [y/N] "
_PARTS = ("agents", "skills", "commands")


@click.group(
    cls=KnownNamesGroup,
    aliases={"uninstall": "remove", "rm": "remove", "i": "install", "ls": "list"},
    elsewhere={
        "details": "`callboard plugin list` counts the parts of each plugin; `plugin validate FOLDER` checks one",
        "init": "a plugin is a folder with .claude-plugin/plugin.json; `plugin validate FOLDER` checks it",
        "new": "a plugin is a folder with .claude-plugin/plugin.json; `plugin validate FOLDER` checks it",
    },
    invoke_without_command=True,
)
@everywhere
@click.pass_context
def plugin(ctx: click.Context, /) -> None:
    """Install, list, switch, and remove plugins, and add marketplaces.

    Without a command: the same as `plugin list`.
    """
    if ctx.invoked_subcommand is None:
        _list(ctx.ensure_object(Invocation), json_=False)


@plugin.command("list")
@as_json
@everywhere
@click.pass_obj
def list_(invocation: Invocation, /, *, json_: bool) -> None:
    """List the installed plugins, those of Claude Code too: state, source, and content."""
    _list(invocation, json_=json_)


def _list(invocation: Invocation, *, json_: bool) -> None:
    listing = list_plugins(invocation.workspace)
    with terminal_of(invocation) as terminal:
        if json_:
            terminal.record(json.dumps([_plugin_json(*row) for row in listing.plugins], indent=2))
            return
        lines: list[Line] = []
        for row, content in listing.plugins:
            lines.append(Line(_row(row)))
            lines.append(Line(f"  {_counts(content) if content else 'cannot be loaded'}", "dim"))
        nothing = Line("no plugin is installed: `callboard plugin install SOURCE` installs one", "dim")
        terminal.rows(Block(tuple(lines or [nothing])))
        terminal.rows(Block(tuple(Line(printable(note), "warn") for note in listing.notes)))


@plugin.command()
@click.argument("source")
@click.option(
    "--marketplace", default="", metavar="SOURCE", help="File, folder or git URL of a list; SOURCE is a name."
)
@click.option("-y", "--yes", is_flag=True, help="Install it without confirmation.")
@click.option("-s", "--scope", default="user", hidden=True)
@everywhere
@click.pass_obj
def install(invocation: Invocation, /, *, source: str, marketplace: str, yes: bool, scope: str) -> int:
    """Install the plugin of SOURCE: a folder, a git repository, or NAME@MARKETPLACE.

    A repository is an address (https, ssh), a path, or OWNER/REPOSITORY of GitHub, with `#` and a branch, tag or commit
    after it if you want. Its files are copied; nothing in them is run now. Everything that sessions would run is shown
    before you confirm. Your sessions load the plugin from then on; one of the same name is replaced.
    """
    refuse_inside_tool("Installing a plugin")
    if scope != "user":
        raise UsageError(
            "--scope: a plugin is installed for you, in all workspaces: install it without --scope. `callboard config "
            "add enabled_plugins` of a workspace switches it there"
        )
    source = f"{source}@{marketplace}" if marketplace else source
    return anyio.run(_install, invocation, source, yes)


@plugin.command()
@click.argument("name", required=False)
@click.option("-y", "--yes", is_flag=True, help="Install the new files without confirmation.")
@everywhere
@click.pass_obj
def update(invocation: Invocation, /, *, name: str | None, yes: bool) -> int:
    """Install a plugin again from its source, or all plugins that Callboard installed.

    Changed content is shown before you confirm, as at the installation.
    """
    refuse_inside_tool("Updating a plugin")
    codes = [anyio.run(_install, invocation, source, yes) for source in update_sources(invocation.workspace, name)]
    if not codes:
        _say(invocation, "no plugin is installed", "")
    return max(codes, default=0)


@plugin.command()
@click.argument("path", type=click.Path(exists=True, path_type=Path))
@everywhere
@click.pass_obj
def validate(invocation: Invocation, /, *, path: Path) -> int:
    """Check the plugin or marketplace of PATH: a folder, or its manifest. Nothing in it is run.

    Lists everything in it that would not be loaded as it is written, and exits with 1 if there is any.
    """
    checked = checked_content(path)
    with terminal_of(invocation) as terminal:
        if not isinstance(checked, PluginContent):
            terminal.result(f"marketplace {checked.name}: {count_words(len(checked.entries), 'plugin')}")
            return 0
        terminal.rows(Block(tuple(Line(printable(note), "warn") for note in checked.notes)))
        version = f" {checked.version}" if checked.version else ""
        terminal.result(printable(f"plugin {checked.name}{version}: {_counts(checked)}"))
    return 1 if checked.notes else 0


@plugin.command()
@click.argument("name")
@everywhere
@click.pass_obj
def enable(invocation: Invocation, /, *, name: str) -> None:
    """Load an installed plugin in sessions that begin from now on."""
    _switch(invocation, name, enabled=True)


@plugin.command()
@click.argument("name")
@everywhere
@click.pass_obj
def disable(invocation: Invocation, /, *, name: str) -> None:
    """Keep an installed plugin, but do not load it."""
    _switch(invocation, name, enabled=False)


@plugin.command()
@click.argument("name")
@everywhere
@click.pass_obj
def remove(invocation: Invocation, /, *, name: str) -> None:
    """Remove an installed plugin and its files."""
    refuse_inside_tool("Removing a plugin")
    removed = anyio.run(remove_plugin, invocation.workspace, name)
    with terminal_of(invocation) as terminal:
        terminal.result(f"removed {removed.name}")


@plugin.group(
    cls=KnownNamesGroup,
    aliases={"rm": "remove", "ls": "list"},
    elsewhere={"update": "nothing is to be updated: `plugin install` and `plugin update` read a marketplace again"},
)
def marketplace() -> None:
    """Add, list and remove marketplaces: lists of plugins."""


@marketplace.command("add")
@click.argument("source")
@everywhere
@click.pass_obj
def add(invocation: Invocation, /, *, source: str) -> None:
    """Add the marketplace of SOURCE: a folder or git repository with .claude-plugin/marketplace.json, or such a file.

    Only its address is kept: `plugin install` reads the list again.
    """
    refuse_inside_tool("Adding a marketplace")
    added = anyio.run(add_marketplace, invocation.workspace, source, _progress_of(invocation))
    names = "\n".join(_offers(added))
    _say(invocation, f"added: {added.name}", f"{names}\n`callboard plugin install NAME@{added.name}` installs a plugin")


@marketplace.command("list")
@as_json
@everywhere
@click.pass_obj
def marketplaces(invocation: Invocation, /, *, json_: bool) -> None:
    """List your marketplaces and their sources."""
    origins = list_marketplaces(invocation.workspace)
    with terminal_of(invocation) as terminal:
        if json_:
            terminal.record(json.dumps([{"name": name, "source": origins[name]} for name in origins], indent=2))
            return
        rows = [[name, printable(origin)] for name, origin in origins.items()]
        nothing = "there is no marketplace: `callboard plugin marketplace add` adds one"
        terminal.rows(table(["MARKETPLACE", "SOURCE"], rows, nothing))


@marketplace.command("remove")
@click.argument("name")
@everywhere
@click.pass_obj
def forget(invocation: Invocation, /, *, name: str) -> None:
    """Remove a marketplace. Plugins that were installed from it stay."""
    refuse_inside_tool("Removing a marketplace")
    anyio.run(remove_marketplace, invocation.workspace, name)
    _say(invocation, f"removed: {name}", "")


async def _install(invocation: Invocation, source: str, yes: bool) -> int:
    async with staged_plugin(invocation.workspace, source, _progress_of(invocation)) as staged:
        with terminal_of(invocation) as terminal:
            if staged.unchanged and staged.previous is not None:
                terminal.result(f"installed already, with exactly these files: {_row(staged.previous)}")
                return 0
            page = Block(tuple(_content_lines(staged)))
            attended = person_is_there() and sys.stdout.isatty()
            if yes or not attended:
                terminal.terminal_print(page)
            if not yes and not attended:
                raise UsageError("there is no terminal for the question: to install exactly this, add --yes")
            taken_back = "not answered: not installed"
            if not yes and not await Keyboard(terminal).confirm(page, _QUESTION, lambda: taken_back):
                terminal.rows(block("not installed", "warn"))
                return 1
            done = staged.install()
            terminal.result(f"installed {_row(done)}")
            return 0


def _switch(invocation: Invocation, name: str, *, enabled: bool) -> None:
    refuse_inside_tool("Enabling a plugin" if enabled else "Disabling a plugin")

    async def switch() -> InstalledPlugin:
        return await switch_plugin(invocation.workspace, name, enabled=enabled)

    changed = anyio.run(switch)
    row = next(row for row, _ in list_plugins(invocation.workspace).plugins if row.name == changed.name)
    if row.enabled != enabled:
        state = "on" if row.enabled else "off"
        hint = f"the setting enabled_plugins still turns it {state}: `callboard settings` shows the file"
    else:
        hint = "sessions that begin from now on " + ("load it" if enabled else "do not load it")
    _say(invocation, f"{'enabled' if enabled else 'disabled'}: {changed.name}", hint)


def _say(invocation: Invocation, text: str, hint: str) -> None:
    with terminal_of(invocation) as terminal:
        terminal.rows(Block((Line(text, "good"), *(Line(line, "dim") for line in hint.splitlines()))))


def _progress_of(invocation: Invocation) -> Callable[[str], None]:
    def show(text: str) -> None:
        with terminal_of(invocation) as terminal:
            terminal.terminal_print(block(text, "dim", progress=True))

    return show


def _content_lines(staged: StagedPlugin) -> Iterator[Line]:
    """Yield the content of a plugin for a person's decision. What would run is not cut."""
    content = staged.content
    version = f" {content.version}" if content.version else ""
    yield Line(printable(f"{staged.name}{version} from {staged.source}"), "strong")
    if staged.previous is not None:
        yield Line(printable(f"  replaces {staged.previous.version or staged.previous.path}"), "warn")
    if content.description:
        yield Line(f"  {printable(content.description)}")
    for title in _PARTS:
        names = getattr(content, title)
        if names:
            yield Line(printable(f"  {title}: {', '.join(names)}"))
    if content.claims:
        yield Line("  It would run, or allow (file by file, with the line):", "strong")
        yield from claim_lines(content.claims)
    yield from (Line(printable(f"  {note}"), "dim") for note in content.notes)
    yield Line("  Hooks and servers run with your rights. Agents and skills are instructions to models.", "warn")


def _row(entry: InstalledPlugin) -> str:
    version = f" {entry.version}" if entry.version else ""
    return printable(f"{entry.name}{version}: {'enabled' if entry.enabled else 'disabled'}, from {entry.source}")


def _counts(content: PluginContent) -> str:
    counts = [(len(getattr(content, part)), part) for part in _PARTS]
    counts += [(content.hooks, "hooks"), (content.servers, "servers")]
    return ", ".join(f"{number} {part if number > 1 else part[:-1]}" for number, part in counts if number) or "nothing"


def _plugin_json(row: InstalledPlugin, content: PluginContent | None) -> dict[str, Any]:
    record: dict[str, Any] = {
        "name": row.name,
        "version": row.version,
        "source": row.source,
        "enabled": row.enabled,
        "own": row.own,
        "path": row.path,
        "loads": content is not None,
    }
    if content is not None:
        record |= {part: list(getattr(content, part)) for part in _PARTS}
        record |= {"hooks": content.hooks, "servers": content.servers}
    return record


def _offers(added: Marketplace) -> Iterator[str]:
    for name, entry in sorted(added.entries.items()):
        description = entry.get("description")
        yield f"  {name}" + (f": {printable(description)}" if isinstance(description, str) and description else "")
