"""Layers of settings from files: the user's, the workspace's, and those written for Claude Code.

A workspace's files are used as they were read when trust was decided. Of an untrusted file only the deny and ask rules
apply, which tighten permissions. A workspace never sets what only the user may decide: where the key and the
conversation go, `bypassPermissions`, Python callables.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import cast

from callboard.adapters.extensions.claude_settings import UNTRUSTED, ClaudeSettings, read_claude
from callboard.adapters.extensions.trust import CLAUDE, SETTINGS
from callboard.adapters.extensions.yaml import Address, YamlDocument, dotted, load_document
from callboard.core.context.stages.custom import is_own
from callboard.core.permissions.rules import parse_rule
from callboard.core.trust.claims import Brought
from callboard.types.errors import SettingsError

Tree = dict[str, object]

_PERSONS_ONLY = ("base_url", "sandbox")
"""Settings that a workspace may not set: where the key and the conversation go, and the sandbox of its commands."""
_TIGHTEN = ("ask", "deny", "never", "always_ask")
_LARGEST = 1_000_000


@dataclass(frozen=True, slots=True)
class Layer:
    """One source of values. `places`: the location of each value."""

    values: Tree = field(default_factory=dict[str, object])
    places: Mapping[Address, str] = field(default_factory=dict[Address, str])
    notes: tuple[str, ...] = ()
    """Ignored values, one line each with its location."""


def file_layer(path: Path, *, under: str = "", label: str = "") -> Layer:
    """Read one of Callboard's settings files; a missing file is an empty layer. Raises `SettingsError`."""
    if not path.exists():
        return Layer()
    layer = _layer(load_document(path), str(path))
    return Layer({under: layer.values}, {(under,): label}) if under else layer


def _layer(document: YamlDocument, where: str) -> Layer:
    if document.data is not None and not isinstance(document.data, dict):
        raise SettingsError("settings are a mapping of names to values (`model: ...`)", where)
    data = cast("Tree", document.data or {})  # pyright: ignore[reportUnknownMemberType] - checked above
    return Layer(data, {address: document.place(address) for address in document.lines if address})


def workspace_layer(brought: Brought, *, trusted: bool) -> Layer:
    """Read the workspace's `.callboard/settings.yaml`. Raises `SettingsError` for errors in a trusted file."""
    path = f"{brought.workspace}/{SETTINGS}"
    raw = brought.content.get(SETTINGS)
    if raw is None:
        return _unread_layer(brought, path) if trusted else Layer()
    try:
        layer = _layer(load_document(raw.decode("utf-8-sig"), path), path)
    except SettingsError as error:
        if trusted:
            raise
        return Layer(notes=(f"{error}: none of its rules holds",))
    except UnicodeDecodeError as error:
        if trusted:
            raise SettingsError("is not UTF-8 text", path) from error
        return Layer(notes=(f"{path}: is not UTF-8 text: none of its rules holds",))
    if not trusted:
        return _tightening(layer)
    for address in _refused(layer):
        raise SettingsError(
            "a workspace may not set this; set it in your own settings, the environment or by a flag",
            where(layer.places, address),
        )
    return layer


def _unread_layer(brought: Brought, path: str) -> Layer:
    """Raise `SettingsError` for a trusted file that could not be read, because it must not count as missing."""
    for claim in brought.claims:
        if claim.kind == "unread" and claim.path == SETTINGS:
            raise SettingsError(claim.text, path)
    return Layer()


def _refused(layer: Layer) -> Iterator[Address]:
    for name in _PERSONS_ONLY:
        if name in layer.values:
            yield (name,)
    for address, value in parts(layer.values.get("permission"), ("permission",)):
        if address[-1] == "mode" and value == "bypassPermissions":
            yield address
    for address, value in parts(layer.values.get("context"), ("context",)):
        if isinstance(value, Mapping) and is_own(str(cast("Tree", value).get("stage", ""))):
            yield address  # a stage that is a person's own Python callable


def _tightening(layer: Layer) -> Layer:
    """Return the part of an untrusted file that applies: its deny and ask rules. An invalid rule is noted and
    ignored."""
    rules_by_kind: Tree = {}
    notes: list[str] = []
    permission = layer.values.get("permission")
    for kind in _TIGHTEN if isinstance(permission, dict) else ():
        rules = cast("Tree", permission).get(kind)
        if not isinstance(rules, list):
            continue
        sound: list[object] = []
        for number, rule in enumerate(cast("list[object]", rules)):
            reason = _why_no_rule(rule, program=kind in ("never", "always_ask"))
            if reason:
                notes.append(f"{where(layer.places, ('permission', kind, number))}: ignored: {reason}")
            else:
                sound.append(rule)
        rules_by_kind[kind] = sound
    return Layer({"permission": rules_by_kind} if rules_by_kind else {}, layer.places, tuple(notes))


def _why_no_rule(rule: object, *, program: bool) -> str:
    if not isinstance(rule, str):
        return "a rule is a text"
    try:
        if not program:
            parse_rule(rule)
    except ValueError as error:
        return str(error)
    return ""


def claude_files(
    home: str, brought: Brought | None, *, trusted: bool, sources: frozenset[str] | None = None
) -> list[ClaudeSettings]:
    """Return the settings written for Claude Code, the weakest first: the user's, the workspace's, its local ones.

    `sources`: the ones to read (`user`, `project`, `local`); None: all. Raises `SettingsError` for a file of the user,
    or of a trusted workspace, that is not a JSON object.
    """
    files: list[ClaudeSettings] = []
    user_path = Path(home, ".claude", "settings.json")
    if home.startswith("/") and (sources is None or "user" in sources) and user_path.is_file():
        try:
            with user_path.open("rb") as file:
                raw = file.read(_LARGEST + 1)
        except OSError as error:
            raise SettingsError(f"cannot be read: {error.strerror or error}", str(user_path)) from error
        if len(raw) > _LARGEST:
            raise SettingsError(f"is larger than {_LARGEST:,} bytes", str(user_path))
        files.append(read_claude(raw, str(user_path), person=True, trusted=True))
    shared, local = CLAUDE
    counted = {"project": shared, "local": local}
    for path in [counted[source] for source in counted if sources is None or source in sources]:
        raw = brought.content.get(path) if brought is not None else None
        if raw is None or brought is None:
            continue
        name = f"{brought.workspace}/{path}"
        try:
            files.append(read_claude(raw, name, person=False, trusted=trusted))
        except SettingsError as error:
            if trusted:
                raise
            files.append(ClaudeSettings(name, person=False, broken=f"{error}: none of its rules holds"))
    return files


def claude_notes(files: Iterable[ClaudeSettings]) -> Iterator[str]:
    """Yield the notes for a session's start: a line for each field that would have changed a permission, and one for
    the rest of a file. Fields that wait for trust are left to the trust question.
    """
    for file in files:
        if file.broken:
            yield file.broken
        lost = [field for field in file.verdicts if field.verdict != "honoured" and field.reason != UNTRUSTED]
        grave = [field for field in lost if field.name.startswith("permissions.")]
        yield from map(str, grave)
        others = ", ".join(field.name for field in lost if field not in grave)
        if others:
            yield f"{file.path}: not used: {others} (`callboard doctor --compat` says why)"


def claude_layer(settings_file: ClaudeSettings) -> Layer:
    """Convert a file's permissions, skills and models into Callboard's settings."""
    permission: Tree = {kind: [rule for rule, _ in rules] for kind, rules in settings_file.rules.items() if rules}
    places: dict[Address, str] = {
        ("permission", kind, number): place
        for kind, rules in settings_file.rules.items()
        for number, (_, place) in enumerate(rules)
    }
    if settings_file.mode is not None:
        permission["mode"], places["permission", "mode"] = settings_file.mode
    skills: Tree = {name: value for name, (value, _) in settings_file.skills.items()}
    places |= {("skills", name): place for name, (_, place) in settings_file.skills.items()}
    sections = {"permission": permission, "skills": skills}
    models: Tree = {name: value for name, (value, _) in settings_file.models.items()}
    places |= {(name,): place for name, (_, place) in settings_file.models.items()}
    return Layer({**models, **{name: section for name, section in sections.items() if section}}, places)


def parts(value: object, address: Address) -> Iterator[tuple[Address, object]]:
    """Yield a value and all values inside it, with their addresses."""
    yield address, value
    inner = cast("Tree", value).items() if isinstance(value, Mapping) else ()
    listed = enumerate(cast("list[object]", value)) if isinstance(value, list) else ()
    for name, part in (*inner, *listed):
        yield from parts(part, (*address, name))


def origin(places: Mapping[Address, str], address: Address) -> str:
    """Return where an address was set: itself, or the nearest mapping around it; empty if nowhere."""
    while address:
        if address in places:
            return places[address]
        address = address[:-1]
    return ""


def where(origins: Mapping[Address, str], address: Address) -> str:
    """Return the location of an invalid value. Pydantic's addresses continue into unions; the written part counts."""
    place = origin(origins, address)
    if not place:  # a section that should be a mapping, or one whose parts have places of their own
        inside = [place for path, place in origins.items() if path[: len(address)] == address]
        place = inside[0] if inside else ""
    return place or dotted(address)
