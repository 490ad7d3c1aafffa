"""The layers of settings that come out of files: the person's, the workspace's, and those written for Claude Code.

A workspace's files are taken as they were read when trust was decided. Of one that nobody trusted only the deny and ask
rules count, which tighten; and no workspace ever sets what only a person may decide: where the key and the conversation
go, its own `bypassPermissions`, Python callables.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import cast

from callboard.adapters.claude_settings import UNTRUSTED, ClaudeSettings, read_claude
from callboard.adapters.trust import CLAUDE, SETTINGS
from callboard.adapters.yaml_files import Address, YamlDocument, dotted, load_document
from callboard.core.context.stages.own import is_own
from callboard.core.permission.rules import parse_rule
from callboard.core.trust.claims import Brought
from callboard.words.errors import SettingsError

Tree = dict[str, object]

_PERSONS_ONLY = ("base_url", "sandbox")
"""What a workspace may not say: where the key and the conversation go, what its commands may touch."""
_TIGHTEN = ("ask", "deny", "never", "always_ask")
_LARGEST = 1_000_000


@dataclass(frozen=True, slots=True)
class Layer:
    """One source of values. `places` says where each one stands."""

    values: Tree = field(default_factory=dict[str, object])
    places: Mapping[Address, str] = field(default_factory=dict[Address, str])
    notes: tuple[str, ...] = ()
    """What of it is not heeded, a line each with its place."""


def file_layer(path: Path, *, under: str = "", known: str = "") -> Layer:
    """A settings file of ours; none is an empty layer. Raises `SettingsError`."""
    if not path.exists():
        return Layer()
    layer = _layer(load_document(path), str(path))
    return Layer({under: layer.values}, {(under,): known}) if under else layer


def _layer(document: YamlDocument, where: str) -> Layer:
    if document.data is not None and not isinstance(document.data, dict):
        raise SettingsError("settings are a mapping of names to values (`model: ...`)", where)
    data = cast("Tree", document.data or {})  # pyright: ignore[reportUnknownMemberType] - checked above
    return Layer(data, {address: document.place(address) for address in document.lines if address})


def workspace_layer(brought: Brought, *, trusted: bool) -> Layer:
    """The workspace's `.callboard/settings.yaml`. Raises `SettingsError` for what is wrong in one that is trusted."""
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
    """A trusted file that could not be read is not simply missing. Raises `SettingsError`."""
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
    """What counts of an untrusted file: its deny and ask rules. A rule that is none is told, and stops nothing."""
    kept: Tree = {}
    notes: list[str] = []
    permission = layer.values.get("permission")
    for kind in _TIGHTEN if isinstance(permission, dict) else ():
        rules = cast("Tree", permission).get(kind)
        if not isinstance(rules, list):
            continue
        sound: list[object] = []
        for number, rule in enumerate(cast("list[object]", rules)):
            why = _why_no_rule(rule, program=kind in ("never", "always_ask"))
            if why:
                notes.append(f"{where(layer.places, ('permission', kind, number))}: ignored: {why}")
            else:
                sound.append(rule)
        kept[kind] = sound
    return Layer({"permission": kept} if kept else {}, layer.places, tuple(notes))


def _why_no_rule(rule: object, *, program: bool) -> str:
    if not isinstance(rule, str):
        return "a rule is a text"
    try:
        if not program:
            parse_rule(rule)
    except ValueError as error:
        return str(error)
    return ""


def claude_files(home: str, brought: Brought | None, *, trusted: bool) -> list[ClaudeSettings]:
    """The settings written for Claude Code, the weakest first: the person's, the workspace's, its local ones.

    Raises `SettingsError` for a file of the person's, or of a trusted workspace, that is no JSON object.
    """
    found: list[ClaudeSettings] = []
    mine = Path(home, ".claude", "settings.json")
    if home.startswith("/") and mine.is_file():
        try:
            with mine.open("rb") as file:
                raw = file.read(_LARGEST + 1)
        except OSError as error:
            raise SettingsError(f"cannot be read: {error.strerror or error}", str(mine)) from error
        if len(raw) > _LARGEST:
            raise SettingsError(f"is larger than {_LARGEST:,} bytes", str(mine))
        found.append(read_claude(raw, str(mine), person=True, trusted=True))
    for path in CLAUDE if brought is not None else ():
        raw = brought.content.get(path) if brought is not None else None
        if raw is None or brought is None:
            continue
        name = f"{brought.workspace}/{path}"
        try:
            found.append(read_claude(raw, name, person=False, trusted=trusted))
        except SettingsError as error:
            if trusted:
                raise
            found.append(ClaudeSettings(name, person=False, broken=f"{error}: none of its rules holds"))
    return found


def claude_notes(files: Iterable[ClaudeSettings]) -> Iterator[str]:
    """What a person hears at a session's start: a line for what would have changed a permission, and one for the rest
    of a file. What waits for trust is told by the question."""
    for one in files:
        if one.broken:
            yield one.broken
        lost = [field for field in one.told if field.verdict != "honoured" and field.why != UNTRUSTED]
        grave = [field for field in lost if field.name.startswith("permissions.")]
        yield from map(str, grave)
        others = ", ".join(field.name for field in lost if field not in grave)
        if others:
            yield f"{one.path}: not used: {others} (`callboard doctor --compat` says why)"


def claude_layer(one: ClaudeSettings) -> Layer:
    """What a file says of permissions and skills, as settings of ours."""
    permission: Tree = {kind: [rule for rule, _ in rules] for kind, rules in one.rules.items() if rules}
    places: dict[Address, str] = {
        ("permission", kind, number): place
        for kind, rules in one.rules.items()
        for number, (_, place) in enumerate(rules)
    }
    if one.mode is not None:
        permission["mode"], places["permission", "mode"] = one.mode
    skills: Tree = {name: value for name, (value, _) in one.skills.items()}
    places |= {("skills", name): place for name, (_, place) in one.skills.items()}
    sections = {"permission": permission, "skills": skills}
    return Layer({name: section for name, section in sections.items() if section}, places)


def parts(value: object, address: Address) -> Iterator[tuple[Address, object]]:
    """A value and all that stands in it, with their addresses."""
    yield address, value
    inner = cast("Tree", value).items() if isinstance(value, Mapping) else ()
    listed = enumerate(cast("list[object]", value)) if isinstance(value, list) else ()
    for name, part in (*inner, *listed):
        yield from parts(part, (*address, name))


def origin(places: Mapping[Address, str], address: Address) -> str:
    """Where an address was set: there, or where the nearest mapping around it was."""
    while address:
        if address in places:
            return places[address]
        address = address[:-1]
    return ""


def where(origins: Mapping[Address, str], address: Address) -> str:
    """The place of a faulty value. Pydantic's addresses go on into unions: the part that was written counts."""
    place = origin(origins, address)
    if not place:  # a section that should be a mapping, or one whose parts have places of their own
        inside = [place for known, place in origins.items() if known[: len(address)] == address]
        place = inside[0] if inside else ""
    return place or dotted(address)
