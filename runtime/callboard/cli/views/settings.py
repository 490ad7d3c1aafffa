"""The settings in force as text, and changes of Callboard's two files: for `callboard config` and for `/config`.

Values that look like secrets are never shown. A change is for a person: the callers refuse a process that an agent's
tool started.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Sequence
from pathlib import Path

from callboard.adapters.extensions.yaml import Address, dotted_address, load_yaml
from callboard.cli.terminal.terminal import Block
from callboard.cli.views.listings import table
from callboard.config.setting_keys import SettingKey, key_of
from callboard.config.settings import LoadedSettings
from callboard.config.settings_file import SettingsFile, display_value, settings_here, value_at, withheld_fault
from callboard.config.trust import Trust, stored_trust
from callboard.core.permissions.rule_check import rule_note
from callboard.core.trust.claims import printable
from callboard.sessions.places import find_places
from callboard.types.errors import SettingsError, UsageError
from callboard.types.lazy_dataclass import dataclass


@dataclass(frozen=True, slots=True)
class ShownSetting:
    """Value of a setting as it may be shown, and its origin."""

    name: str
    value: object
    origin: str

    def text(self) -> str:
        """Return the value in one line; empty if there is none."""
        if self.value is None:
            return ""
        return printable(self.value) if isinstance(self.value, str) else json.dumps(self.value)


@dataclass(frozen=True, slots=True)
class SettingChange:
    """Change of a settings file. `notes`: what keeps it from having an effect."""

    text: str
    notes: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class SettingsPage:
    """Settings as a table. `left_out`: text about those with a built-in value; empty if all are listed."""

    listing: Block
    left_out: str
    rows: Sequence[ShownSetting]
    """All settings."""
    fault: str = ""
    """Fault in the settings of an untrusted workspace, and what to do; empty if there is none."""


CORRECT_FIRST = "correct this before you trust the workspace: otherwise no session starts"


@dataclass(frozen=True, slots=True)
class SettingsEditor:
    """Settings of a workspace, and changes of its file or, with `own`, of the person's own file.

    `trust`: show what would be in force if the workspace were trusted.
    """

    folder: Path
    own: bool = False
    trust: bool = False

    def get(self, name: str) -> ShownSetting:
        """Return the value in force; with `own` the one in the person's file. Raises `UsageError`, `SettingsError`."""
        key = key_of(name)
        if self.own:
            file = SettingsFile.of_user()
            return ShownSetting(key.name, display_value(value_at(file.values(), key.address)), str(file.path))
        loaded = self._loaded(trust=self.trust)
        value = value_at(loaded.settings.model_dump(mode="json"), key.address)
        return ShownSetting(key.name, display_value(value), _origin(loaded, key.address))

    def page(self, *, everything: bool) -> SettingsPage:
        """Return the settings that differ from the built-in ones, or all; with `own` those of the person's file."""
        loaded, now = self._settings(trust=self.trust)
        rows = [ShownSetting(name, display_value(value), origin) for name, value, origin in loaded.explain_values()]
        nothing = "every setting has its built-in value"
        if self.own:
            path = str(SettingsFile.of_user().path)
            nothing = f"{path} sets nothing"
            rows = [row for row in rows if any(place.startswith(f"{path}:") for place in row.origin.split(", "))]
        changed = [row for row in rows if everything or self.own or row.origin not in ("default", "built in")]
        cells = [(row.name, json.dumps(row.value), _short_origin(row.origin, loaded.workspace)) for row in changed]
        hidden = len(rows) - len(changed)
        left_out = f"{hidden} settings have their built-in values: callboard config list --all" if hidden else ""
        fault = "" if self.own or self.trust or now.trusted else withheld_fault(now)
        advice = f"{fault}. {CORRECT_FIRST.capitalize()}" if fault else ""
        return SettingsPage(table(["SETTING", "VALUE", "FROM"], cells, nothing), left_out, rows, advice)

    def set(self, name: str, text: str) -> SettingChange:
        """Set a value. Raises `UsageError` for one that is not valid, `SettingsError` for a file that is not."""
        key = key_of(name)
        self._refuse_disabled(key, text)
        file = self._file()
        address, written = file.set(key, _readings(text))
        return self._change(
            file, address, f"{dotted_address(address)} = {json.dumps(display_value(written), ensure_ascii=False)}"
        )

    def unset(self, name: str) -> SettingChange:
        """Remove a value from the file, so that its value from elsewhere applies."""
        key = key_of(name)
        file = self._file()
        file.unset(key)
        return self._change(file, key.address, f"{key.name} removed")

    def add(self, name: str, items: Sequence[str]) -> SettingChange:
        """Add items to a list."""
        key = self._list_key(name, items)
        file = self._file()
        added = file.add(key, items)
        text = f"{key.name} + {_items(added)}" if added else f"{key.name} has {_items(items)} already"
        return self._change(file, key.address, text, items)

    def remove(self, name: str, items: Sequence[str]) -> SettingChange:
        """Remove items from a list."""
        key = self._list_key(name, items)
        file = self._file()
        file.remove(key, items)
        return self._change(file, key.address, f"{key.name} - {_items(items)}", items)

    def _settings(self, *, trust: bool) -> tuple[LoadedSettings, Trust]:
        places = find_places(self.folder, writable=False)
        return settings_here(places.workspace, places.config, trust=trust)

    def _loaded(self, *, trust: bool) -> LoadedSettings:
        return self._settings(trust=trust)[0]

    def _file(self) -> SettingsFile:
        if self.own:
            return SettingsFile.of_user()
        places = find_places(self.folder, writable=False)
        return SettingsFile.of_workspace(places.workspace, places.config)

    def _list_key(self, name: str, items: Sequence[str]) -> SettingKey:
        key = key_of(name)
        if not key.listed:
            raise UsageError(f"{key.name} is no list: callboard config set {key.name} VALUE")
        _check_texts(items)
        return key

    def _refuse_disabled(self, key: SettingKey, value: str) -> None:
        """Raise `UsageError` for `bypassPermissions` where a settings file disables this mode."""
        if key.address[-1] == "mode" and value == "bypassPermissions":
            off = self._loaded(trust=False).bypass_off
            if off:
                raise UsageError(f"bypassPermissions is switched off by {off}")

    def _change(self, file: SettingsFile, address: Address, text: str, items: Sequence[str] = ()) -> SettingChange:
        """Return the change with its file, and what keeps it from having an effect."""
        notes = [note for item in items for note in _rule_notes(address, item)]
        return SettingChange(
            f"{printable(text)} in {printable(str(file.path))}",
            tuple(map(printable, (*notes, *self._obstacles(file, address)))),
        )

    def _obstacles(self, file: SettingsFile, address: Address) -> list[str]:
        """Return why new sessions do not use the value in a file; empty if they do."""
        if file.workspace is not None and not stored_trust(file.workspace, file.config).trusted:
            return ["the content of this workspace is used once you trust it: `callboard trust`"]
        try:
            loaded = self._loaded(trust=False)
        except SettingsError as error:
            return [f"no session starts before this is corrected: {error}"]
        value = value_at(file.values(), address)
        place = _origin(loaded, address)
        if value is None or isinstance(value, list | dict) or f"{file.path}:" in place:
            return []
        in_force = display_value(value_at(loaded.settings.model_dump(mode="json"), address))
        return [f"{dotted_address(address)} is {json.dumps(in_force)} nevertheless, set by {place}"]


def _short_origin(origin: str, workspace: Path) -> str:
    """Return where a value was set without its name, and with short paths of files."""
    places = [re.sub(r"(:\d+): .*", r"\1", place) for place in origin.split(", ")]
    home = os.path.expanduser("~")  # noqa: PTH111 - a text is replaced
    texts = (place.removeprefix(f"{workspace}/").replace(f"{home}/", "~/", 1) for place in places)
    return printable(", ".join(dict.fromkeys(texts)))


def _origin(loaded: LoadedSettings, address: Address) -> str:
    """Return where a value or the values inside it were set; `default` if nowhere."""
    inside = [place for part, place in loaded.origins.items() if part[: len(address)] == address]
    near = [loaded.origins[address[:n]] for n in range(len(address), 0, -1) if address[:n] in loaded.origins]
    return next(iter([*near, *inside]), "default")


def _readings(text: str) -> list[object]:
    """Return what a typed value may mean, the most likely first: a number or switch, a text, a list of one text."""
    _check_texts([text])
    try:
        value = load_yaml(text, "VALUE")
    except SettingsError as error:
        if text.lstrip()[:1] in ("[", "{"):
            raise UsageError(str(error)) from error
        return [text, [text]]
    if isinstance(value, list | dict) and text.lstrip()[:1] in ("[", "{"):
        return [value]
    if isinstance(value, bool | int | float) or text in ("null", "~"):
        return [value, text, [text]]
    return [text, [text]]


def _check_texts(texts: Sequence[str]) -> None:
    """Raise `UsageError` for text that a file cannot hold: bytes of the command line that are not UTF-8."""
    if any("\udc80" <= character <= "\udcff" for text in texts for character in text):
        raise UsageError("VALUE is not UTF-8 text: nothing was changed")


def _items(values: Sequence[str]) -> str:
    return ", ".join(json.dumps(display_value(value), ensure_ascii=False) for value in values)


def _rule_notes(address: Address, item: str) -> list[str]:
    """Return the note on a permission rule that has no effect."""
    if address[0] != "permission" or address[-1] not in ("allow", "ask", "deny"):
        return []
    note = rule_note(item, address[-1])
    return [] if note.status == "honored" else [f"the rule {item} has no effect: {note.why}"]
