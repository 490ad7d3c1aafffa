"""Reader of settings for Claude Code: rules, mode and hooks of `settings.json` files, field by field.

Supported values become Callboard settings, each with its place; Callboard's own settings win over them. Unsupported
values are reported with the reason, and none is skipped silently. Of an untrusted workspace only restrictions count:
deny and ask rules, and the switch that turns `bypassPermissions` off.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from types import MappingProxyType
from typing import Literal, cast

from callboard.core.mcp.config_entries import KEYS, Approval
from callboard.core.permissions.rule_check import Kind, rule_note
from callboard.core.trust.yaml_nodes import Members, YamlNode, json_node, plain
from callboard.types.errors import SettingsError

Verdict = Literal["honored", "ignored", "refused"]

MODES: Mapping[str, str] = MappingProxyType(
    {
        "default": "default",
        "manual": "default",
        "acceptEdits": "acceptEdits",
        "plan": "plan",
        "dontAsk": "dontAsk",
        "bypassPermissions": "",
        "auto": "default",
    }
)
_HOOK_FIELDS = frozenset({"hooks", "disableAllHooks", "allowedHttpHookUrls", "httpHookAllowedEnvVars"})
_SHOWN = frozenset({"on", "name-only", "user-invocable-only", "off"})
_SKILL_FIELDS: Mapping[str, str] = MappingProxyType(
    {
        "skillOverrides": "overrides",
        "skillListingBudgetFraction": "catalogue",
        "skillListingMaxDescChars": "description",
        "disableSkillShellExecution": "commands",
    }
)
"""Fields about skills, and the corresponding Callboard settings (`skills.*`)."""
_MODEL_FIELDS: Mapping[str, str] = MappingProxyType({"model": "model", "fallbackModel": "fallback_models"})
"""Fields that name models, and the corresponding Callboard settings."""
_RUNS = "would run a program, and Callboard runs none for it"
_WHY: Mapping[str, str] = MappingProxyType(
    {
        "env": "variables for tools and hooks come from your own environment only",
        "apiKeyHelper": _RUNS,
        "awsAuthRefresh": _RUNS,
        "awsCredentialExport": _RUNS,
        "otelHeadersHelper": _RUNS,
        "statusLine": _RUNS,
        "allowManagedHooksOnly": "counts in managed settings only",
    }
)
UNTRUSTED = "nobody has trusted this workspace's content"
_DIRECTORIES = "what is outside the workspace is asked for; allow it by a rule, such as Read(//path/**)"


@dataclass(frozen=True, slots=True)
class FieldTold:
    """The verdict on one field or rule of a file."""

    path: str
    line: int
    name: str
    verdict: Verdict
    reason: str = ""

    def __str__(self) -> str:
        return f"{self.path}:{self.line}: {self.name}: {self.verdict}{f': {self.reason}' if self.reason else ''}"


@dataclass(frozen=True, slots=True)
class ClaudeSettings:
    """One settings file, translated into Callboard settings."""

    path: str
    person: bool
    """True if it is the user's own (`~/.claude`), not the workspace's."""
    rules: Mapping[Kind, Sequence[tuple[str, str]]] = field(default_factory=dict[Kind, Sequence[tuple[str, str]]])
    """`allow`, `ask`, `deny` -> rules, each with its place (`file:line: field`)."""
    mode: tuple[str, str] | None = None
    """Callboard's mode, and its place in the file."""
    bypass_off: str = ""
    """Place that switches `bypassPermissions` off."""
    raw: bytes = b""
    """Content of the file, for the reader of hooks; empty if its hooks must not run."""
    servers: tuple[Approval, ...] = ()
    """MCP servers that the file switches on and off."""
    verdicts: tuple[FieldTold, ...] = ()
    skills: Mapping[str, tuple[object, str]] = field(default_factory=dict[str, tuple[object, str]])
    """Values for Callboard's `skills` section, each with its place."""
    models: Mapping[str, tuple[object, str]] = field(default_factory=dict[str, tuple[object, str]])
    """Values for Callboard's settings `model` and `fallback_models`, each with its place."""
    broken: str = ""
    """Reason why the file could not be read at all; empty if it could."""


def read_claude(raw: bytes, path: str, *, person: bool, trusted: bool) -> ClaudeSettings:
    """Return the settings in a file's bytes. Raises `SettingsError` if it is not a JSON object.

    `trusted`: the user trusts the file; always true for the user's own.
    """
    try:
        document = json_node(raw.decode("utf-8-sig"))
    except (ValueError, RecursionError) as error:
        raise SettingsError(f"is not valid JSON: {error}", path) from error
    if document.members is None:
        raise SettingsError("is a JSON object (`{ ... }`)", path)
    reading = _Reading(path, person=person, trusted=trusted)
    reading.read(document.members)
    hooks = raw if trusted else b""
    servers = tuple(reading.servers)
    verdicts = tuple(reading.verdicts)
    settings = ClaudeSettings(path, person, reading.rules, reading.mode, reading.bypass_off, hooks, servers, verdicts)
    return replace(settings, skills=reading.skills, models=reading.models)


class _Reading:
    """Reading of one file."""

    def __init__(self, path: str, *, person: bool, trusted: bool) -> None:
        self._path = path
        self._person = person
        self._trusted = trusted
        self.rules: dict[Kind, list[tuple[str, str]]] = {"allow": [], "ask": [], "deny": []}
        self.mode: tuple[str, str] | None = None
        self.bypass_off = ""
        self.skills: dict[str, tuple[object, str]] = {}
        self.models: dict[str, tuple[object, str]] = {}
        self.servers: list[Approval] = []
        self.verdicts: list[FieldTold] = []

    def read(self, members: Members) -> None:
        for name, node in members:
            if name == "permissions":
                self._permissions(node)
            elif name in _SKILL_FIELDS:
                self._skills(name, node)
            elif name in _MODEL_FIELDS:
                self._model(name, node)
            elif name in _HOOK_FIELDS:  # the reader of hooks tells what becomes of each
                self._tell(node, name, *(("honored", "") if self._trusted else _UNTRUSTED))
            elif name in KEYS:
                self.servers.append(Approval(name, node, f"{self._path}:{node.line}", self._trusted))
                self._tell(node, name, *(("honored", "") if self.servers[-1].counts else _UNTRUSTED))
            else:
                reason = _WHY.get(name, "is not honored in this version")
                self._tell(node, name, "refused" if reason == _RUNS else "ignored", reason)

    def _skills(self, name: str, node: YamlNode) -> None:
        """Read the visibility of skills. A field that switches their commands off also counts in an untrusted
        workspace."""
        value = plain(node)
        setting = _SKILL_FIELDS[name]
        if setting == "commands":
            value = not value if isinstance(value, bool) else None
        elif setting == "overrides":
            value = _overrides(value)
        elif isinstance(value, bool) or not isinstance(value, int | float) or value <= 0:
            value = None
        elif setting == "description":
            value = int(value)
        if value is None or (setting == "catalogue" and not 0 < float(str(value)) <= 1):
            self._tell(node, name, "ignored", "has no value of its kind")
        elif not self._trusted and value is not False:
            self._tell(node, name, *_UNTRUSTED)
        else:
            self.skills[setting] = value, f"{self._path}:{node.line}: {name}"
            self._tell(node, name, "honored")

    def _model(self, name: str, node: YamlNode) -> None:
        """Read a model's name or, for fallbacks, a list of names."""
        value = plain(node)
        names = cast("list[object]", value) if isinstance(value, list) else [value]
        sound = [entry.strip() for entry in names if isinstance(entry, str) and entry.strip()]
        several = _MODEL_FIELDS[name] == "fallback_models"
        if not sound or len(sound) < len(names) or (len(sound) > 1 and not several):
            self._tell(node, name, "ignored", "has no value of its kind: a model's name is expected")
        elif not self._trusted:
            self._tell(node, name, *_UNTRUSTED)
        else:
            self.models[_MODEL_FIELDS[name]] = sound if several else sound[0], f"{self._path}:{node.line}: {name}"
            self._tell(node, name, "honored")

    def _permissions(self, node: YamlNode) -> None:
        if node.members is None:
            self._tell(node, "permissions", "ignored", "has to be an object of named fields")
            return
        for name, inner in node.members:
            at = f"permissions.{name}"
            if name in ("allow", "ask", "deny"):
                self._listed(name, inner, at)
            elif name == "defaultMode":
                self._default_mode(inner, at)
            elif name == "disableBypassPermissionsMode":
                self._switch(inner, at)
            elif name == "additionalDirectories":
                self._tell(inner, at, "ignored", _DIRECTORIES)
            else:
                self._tell(inner, at, "ignored", "is not honored in this version")

    def _listed(self, kind: Kind, node: YamlNode, at: str) -> None:
        if node.items is None:
            self._tell(node, at, "ignored", "has to be a list of rules")
            return
        for number, entry in enumerate(node.items):
            self._rule(kind, entry, f"{at}[{number}]")

    def _rule(self, kind: Kind, node: YamlNode, at: str) -> None:
        if not isinstance(node.value, str):
            self._tell(node, at, "ignored", "a rule is a text")
            return
        place, at = f"{self._path}:{node.line}: {at}", f"{at} {node.value}"
        note = rule_note(node.value, kind)
        if note.status == "refused":
            self._tell(node, at, "refused", note.why)
        elif kind == "allow" and not self._trusted:
            self._tell(node, at, *_UNTRUSTED)
        else:
            self.rules[kind].append((node.value, place))
            self._tell(node, at, note.status, note.why)

    def _default_mode(self, node: YamlNode, at: str) -> None:
        written = node.value if isinstance(node.value, str) else str(plain(node))
        if written not in MODES:
            self._tell(node, at, "ignored", f"{written} is not a mode: there are {', '.join(MODES)}")
        elif written == "bypassPermissions":
            own = "ask Callboard for it: --permission-mode, or your own settings.yaml"
            self._tell(node, at, "refused", own if self._person else "a workspace cannot lift its own permissions")
        elif not self._trusted:
            self._tell(node, at, *_UNTRUSTED)
        else:
            self.mode = MODES[written], f"{self._path}:{node.line}: {at}"
            reason = (
                "auto is read as default: no classifier decides here, a person is asked" if written == "auto" else ""
            )
            self._tell(node, at, "honored", reason)

    def _switch(self, node: YamlNode, at: str) -> None:
        if node.value != "disable":
            self._tell(node, at, "ignored", "the one value that there is: disable")
            return
        self.bypass_off = f"{self._path}:{node.line}: {at}"
        self._tell(node, at, "honored")

    def _tell(self, node: YamlNode, name: str, verdict: Verdict, reason: str = "") -> None:
        self.verdicts.append(FieldTold(self._path, node.line, name, verdict, reason))


def _overrides(value: object) -> dict[str, object] | None:
    """Return skill -> its visibility; None for an invalid value."""
    if not isinstance(value, dict):
        return None
    overrides = cast("dict[str, object]", value)
    return (
        overrides
        if all(isinstance(visibility, str) and visibility in _SHOWN for visibility in overrides.values())
        else None
    )


_UNTRUSTED: tuple[Verdict, str] = ("ignored", UNTRUSTED)
