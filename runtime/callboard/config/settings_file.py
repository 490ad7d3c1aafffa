"""Settings in force here, and changes of Callboard's two settings files, the workspace's and the user's own.

A change is checked as a session would check it, before a byte is written. The file is then replaced as a whole: its
other values, comments and mode stay. Below the workspace no link is followed. If the workspace's content was trusted,
it stays trusted with the change that the user made, and with no other change.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TypeVar, cast

from callboard.adapters.extensions.trust import LARGEST_FILE, SETTINGS, read_claims
from callboard.adapters.extensions.yaml import Address, dotted_address, load_yaml
from callboard.adapters.extensions.yaml_edit import with_value, without_value
from callboard.config.replaced_file import ReplacedFile
from callboard.config.setting_keys import SettingKey
from callboard.config.settings import LoadedSettings, check_settings_text, load_settings, user_file
from callboard.config.trust import Trust, keep, stored_trust
from callboard.core.memory.secrets import secrets_in
from callboard.core.trust.claims import WorkspaceClaims, printable
from callboard.types.errors import SettingsError, UsageError
from callboard.types.lazy_dataclass import dataclass

Changed = TypeVar("Changed")

HIDDEN = "(hidden: it looks like a secret)"
_BOM = "\ufeff"
_PRIVATE = frozenset({"env", "headers", "secret", "url", "users"})
"""Members of hooks, of `notify`, and of `web` whose values are not displayed, because many of them are credentials."""


def settings_here(workspace: Path, config: Path, *, trust: bool = False) -> tuple[LoadedSettings, Trust]:
    """Return the settings in force in a workspace, and the trust in its content.

    `trust`: as if it were trusted. `config` is the user's own folder. Raises `SettingsError`.
    """
    now = stored_trust(workspace, config)
    loaded = load_settings(
        os.environ, workspace=workspace, trusted=trust or now.trusted, workspace_claims=now.workspace_claims
    )
    return loaded, now


def withheld_fault(now: Trust) -> str:
    """Return the first fault in the settings of an untrusted workspace, with its place; empty if there is none.

    Nothing of them is applied. Once they are trusted, the fault keeps sessions from starting.
    """
    workspace = Path(now.workspace_claims.workspace)
    try:
        load_settings(os.environ, workspace=workspace, trusted=True, workspace_claims=now.workspace_claims)
    except SettingsError as error:
        return printable(str(error))
    return ""


def display_value(value: object, *, private: bool = False) -> object:
    """Return the value of a setting for a screen: without texts that look like secrets, and values of headers."""
    if isinstance(value, Mapping):
        members = cast("Mapping[str, object]", value).items()
        return {name: display_value(inner, private=private or name in _PRIVATE) for name, inner in members}
    if isinstance(value, list | tuple):
        return [display_value(inner) for inner in cast("Sequence[object]", value)]
    if isinstance(value, str) and (private or secrets_in(value)):
        return HIDDEN
    return value


@dataclass(frozen=True, slots=True)
class SettingsFile:
    """One of Callboard's settings files. `workspace`: the folder that it belongs to; None: it is the user's own."""

    path: Path
    workspace: Path | None = None
    config: Path = Path()
    """The user's own folder, which has the decisions on trust."""

    @classmethod
    def of_user(cls) -> SettingsFile:
        """Return the user's file."""
        return cls(user_file(os.environ))

    @classmethod
    def of_workspace(cls, workspace: Path, config: Path) -> SettingsFile:
        """Return the file of a workspace (its real path). `config` is the user's own folder."""
        return cls(workspace / SETTINGS, workspace, config)

    def values(self) -> dict[str, object]:
        """Return the values in the file; empty if there is no file. Raises `SettingsError`."""
        try:
            with self._file.open_folder(create=False) as folder:
                return _mapping(self._text(self._file.read(folder)[0]), str(self.path))
        except FileNotFoundError:
            return {}

    def set(self, key: SettingKey, texts: Sequence[object]) -> tuple[Address, object]:
        """Set a value, the first of its readings that the setting accepts, and return address and value.

        Raises `UsageError` for a value that no reading makes valid, `SettingsError` for a file that is not valid.
        """

        def change(text: str) -> tuple[str, tuple[Address, object]]:
            problems: list[UsageError] = []
            for reading in texts:
                try:
                    address, value = key.resolve(reading)
                    return self._checked(with_value(text, address, value, where=str(self.path)), address), (
                        address,
                        value,
                    )
                except UsageError as error:
                    problems.append(error)
            raise problems[0]

        return self._change(change)

    def unset(self, key: SettingKey) -> None:
        """Remove a value. Raises `UsageError` if the file does not set it."""

        def change(text: str) -> tuple[str, None]:
            if value_at(_mapping(text, str(self.path)), key.address) is None:
                raise UsageError(f"{self.path} does not set {key.name}: nothing was changed")
            return self._checked(without_value(text, key.address, where=str(self.path)), key.address), None

        self._change(change)

    def add(self, key: SettingKey, items: Sequence[str]) -> list[str]:
        """Add items to a list, and return those that were not in it. Raises `UsageError` for an invalid one."""

        def change(text: str) -> tuple[str, list[str]]:
            added: list[str] = []
            for item in items:
                present = _list_in(_mapping(text, str(self.path)), key.address)
                if item not in present:
                    text = with_value(text, (*key.address, len(present)), item, where=str(self.path))
                    added.append(item)
            return self._checked(text, key.address), added

        return self._change(change)

    def remove(self, key: SettingKey, items: Sequence[str]) -> None:
        """Remove items from a list. Raises `UsageError` for one that is not in it."""

        def change(text: str) -> tuple[str, None]:
            for item in items:
                present = _list_in(_mapping(text, str(self.path)), key.address)
                if item not in present:
                    raise UsageError(f"{key.name} in {self.path} has no {item!r}: nothing was changed")
                text = without_value(text, (*key.address, present.index(item)), where=str(self.path))
            return self._checked(text, key.address), None

        self._change(change)

    def _checked(self, text: str, address: Address) -> str:
        """Return the text. Raises `UsageError` if the value at the address is wrong, `SettingsError` for another."""
        if len(text.encode(errors="replace")) > LARGEST_FILE:
            raise UsageError(f"{self.path} would be larger than {LARGEST_FILE:,} bytes: nothing was changed")
        try:
            check_settings_text(text, str(self.path), workspace=self.workspace is not None)
        except SettingsError as error:
            message = str(error).removeprefix(f"{error.where}: ")
            name = dotted_address(address)
            field = re.sub(rf"\A{re.escape(str(self.path))}:\d+: ", "", error.where)
            if field.startswith(name) or name.startswith(field):
                own = self.workspace is not None and message.startswith("a workspace may not set this")
                hint = f"{message} (`callboard config set -g {name} VALUE`)" if own else message
                raise UsageError(f"{name}: {hint}") from error
            raise SettingsError(f"{message} (nothing was changed: correct this line first)", error.where) from error
        return text

    def _change(self, change: Callable[[str], tuple[str, Changed]]) -> Changed:
        """Replace the file by its changed text, one process at a time, and return the result of the change."""
        before = stored_trust(self.workspace, self.config) if self.workspace is not None else None
        with self._file.open_folder(create=True) as folder:
            old, mode = self._file.read(folder)
            text = self._text(old)
            _mapping(text, str(self.path))  # a file that is not valid is refused with its line
            changed, result = change(text.removeprefix(_BOM))
            if changed == text.removeprefix(_BOM):
                return result
            content = ((_BOM if text.startswith(_BOM) else "") + changed).encode()
            self._file.write(folder, content, mode)
        if before is not None:
            self._keep_trust(before, old, content)
        return result

    def _keep_trust(self, before: Trust, old: bytes, new: bytes) -> None:
        """Store trust in the workspace's content if exactly this change makes it differ from trusted content.

        Content that differs in another file, or that now runs a script that no one has seen, stays untrusted.
        """
        known = before.workspace_claims
        now = read_claims(Path(known.workspace))
        same = known.content.get(SETTINGS, b"") == old and now.content.get(SETTINGS, b"") == new
        if before.trusted and same and not now.nothing and _without_settings(now) == _without_settings(known):
            keep(now, self.config)

    @property
    def _file(self) -> ReplacedFile:
        return ReplacedFile(self.path, self.workspace, LARGEST_FILE)

    def _text(self, content: bytes) -> str:
        try:
            return content.decode()
        except UnicodeDecodeError as error:
            line = error.object[: error.start].count(b"\n") + 1
            raise SettingsError("is not UTF-8 text, so nothing was changed", f"{self.path}:{line}") from error


def _mapping(text: str, where: str) -> dict[str, object]:
    values = load_yaml(text.removeprefix(_BOM), where)
    if values is not None and not isinstance(values, dict):
        raise SettingsError("settings are a mapping of names to values (`model: ...`)", where)
    return cast("dict[str, object]", values or {})


def value_at(values: Mapping[str, object], address: Address) -> object | None:
    """Return the value at an address of settings as in a file; None if it is not set."""
    value: object = values
    for part in address:
        value = cast("Mapping[str | int, object]", value).get(part) if isinstance(value, Mapping) else None
    return value


def _list_in(values: Mapping[str, object], address: Address) -> list[object]:
    items = value_at(values, address)
    return cast("list[object]", items) if isinstance(items, list) else []


def _without_settings(claims: WorkspaceClaims) -> object:
    others = {path: digest for path, digest in claims.hashes.items() if path != SETTINGS}
    return others, [claim for claim in claims.claims if claim.path != SETTINGS]
