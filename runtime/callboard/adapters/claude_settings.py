"""Reads the settings that people wrote for Claude Code: rules, mode and hooks of `settings.json` files, field by field.

What is honoured becomes settings of ours, with the place of each value; ours win over them. What is not honoured is
told with its reason, and nothing is skipped in silence. Of a workspace that nobody trusted only what tightens counts:
deny and ask rules, and that `bypassPermissions` is off.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from types import MappingProxyType
from typing import Literal, cast

from callboard.core.mcp.approvals import KEYS, Approval
from callboard.core.permission.grammar import Kind, rule_note
from callboard.core.trust.nodes import Members, Node, json_node, plain
from callboard.words.errors import SettingsError

Verdict = Literal["honoured", "ignored", "refused"]

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
"""What is said of skills, and our own names for it (`skills.*`)."""
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
_DIRECTORIES = "what lies outside the workspace is asked for; allow it by a rule, such as Read(//path/**)"


@dataclass(frozen=True, slots=True)
class FieldTold:
    """What became of one field or rule of a file."""

    path: str
    line: int
    name: str
    verdict: Verdict
    why: str = ""

    def __str__(self) -> str:
        return f"{self.path}:{self.line}: {self.name}: {self.verdict}{f': {self.why}' if self.why else ''}"


@dataclass(frozen=True, slots=True)
class ClaudeSettings:
    """What one file says, in our words."""

    path: str
    person: bool
    """It is the person's own (`~/.claude`), not the workspace's."""
    rules: Mapping[Kind, Sequence[tuple[str, str]]] = field(default_factory=dict[Kind, Sequence[tuple[str, str]]])
    """`allow`, `ask`, `deny` -> rules, each with its place (`file:line: field`)."""
    mode: tuple[str, str] | None = None
    """Ours, and its place."""
    bypass_off: str = ""
    """The place that switches `bypassPermissions` off."""
    raw: bytes = b""
    """The file, for the reader of hooks; empty where its hooks are not to run."""
    servers: tuple[Approval, ...] = ()
    """Which MCP servers it switches on and off."""
    told: tuple[FieldTold, ...] = ()
    skills: Mapping[str, tuple[object, str]] = field(default_factory=dict[str, tuple[object, str]])
    """Of our `skills` section what it says: the value, and its place."""
    broken: str = ""
    """Why nothing of it could be read; empty for one that could."""


def read_claude(raw: bytes, path: str, *, person: bool, trusted: bool) -> ClaudeSettings:
    """The settings in a file's bytes. Raises `SettingsError` for what is no JSON object.

    `trusted`: a person stands behind it; always so for the person's own.
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
    servers, told = tuple(reading.servers), tuple(reading.told)
    found = ClaudeSettings(path, person, reading.rules, reading.mode, reading.bypass_off, hooks, servers, told)
    return replace(found, skills=reading.skills)


class _Reading:
    """One file under way."""

    def __init__(self, path: str, *, person: bool, trusted: bool) -> None:
        self._path, self._person, self._trusted = path, person, trusted
        self.rules: dict[Kind, list[tuple[str, str]]] = {"allow": [], "ask": [], "deny": []}
        self.mode: tuple[str, str] | None = None
        self.bypass_off = ""
        self.skills: dict[str, tuple[object, str]] = {}
        self.servers: list[Approval] = []
        self.told: list[FieldTold] = []

    def read(self, members: Members) -> None:
        for name, node in members:
            if name == "permissions":
                self._permissions(node)
            elif name in _SKILL_FIELDS:
                self._skills(name, node)
            elif name in _HOOK_FIELDS:  # the reader of hooks tells what becomes of each
                self._tell(node, name, *(("honoured", "") if self._trusted else _UNTRUSTED))
            elif name in KEYS:
                self.servers.append(Approval(name, node, f"{self._path}:{node.line}", self._trusted))
                self._tell(node, name, *(("honoured", "") if self.servers[-1].counts else _UNTRUSTED))
            else:
                why = _WHY.get(name, "is not honoured in this version")
                self._tell(node, name, "refused" if why == _RUNS else "ignored", why)

    def _skills(self, name: str, node: Node) -> None:
        """How skills are shown; that their commands are not run counts from a workspace that nobody trusted too."""
        value, ours = plain(node), _SKILL_FIELDS[name]
        if ours == "commands":
            value = not value if isinstance(value, bool) else None
        elif ours == "overrides":
            value = _overrides(value)
        elif isinstance(value, bool) or not isinstance(value, int | float) or value <= 0:
            value = None
        elif ours == "description":
            value = int(value)
        if value is None or (ours == "catalogue" and not 0 < float(str(value)) <= 1):
            self._tell(node, name, "ignored", "has no value of its kind")
        elif not self._trusted and value is not False:
            self._tell(node, name, *_UNTRUSTED)
        else:
            self.skills[ours] = value, f"{self._path}:{node.line}: {name}"
            self._tell(node, name, "honoured")

    def _permissions(self, node: Node) -> None:
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
                self._tell(inner, at, "ignored", "is not honoured in this version")

    def _listed(self, kind: Kind, node: Node, at: str) -> None:
        if node.items is None:
            self._tell(node, at, "ignored", "has to be a list of rules")
            return
        for number, one in enumerate(node.items):
            self._rule(kind, one, f"{at}[{number}]")

    def _rule(self, kind: Kind, node: Node, at: str) -> None:
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

    def _default_mode(self, node: Node, at: str) -> None:
        written = node.value if isinstance(node.value, str) else str(plain(node))
        if written not in MODES:
            self._tell(node, at, "ignored", f"{written} is no mode: there are {', '.join(MODES)}")
        elif written == "bypassPermissions":
            own = "ask Callboard for it: --permission-mode, or your own settings.yaml"
            self._tell(node, at, "refused", own if self._person else "a workspace cannot lift its own permissions")
        elif not self._trusted:
            self._tell(node, at, *_UNTRUSTED)
        else:
            self.mode = MODES[written], f"{self._path}:{node.line}: {at}"
            why = "auto is read as default: no classifier decides here, a person is asked" if written == "auto" else ""
            self._tell(node, at, "honoured", why)

    def _switch(self, node: Node, at: str) -> None:
        if node.value != "disable":
            self._tell(node, at, "ignored", "the one value that there is: disable")
            return
        self.bypass_off = f"{self._path}:{node.line}: {at}"
        self._tell(node, at, "honoured")

    def _tell(self, node: Node, name: str, verdict: Verdict, why: str = "") -> None:
        self.told.append(FieldTold(self._path, node.line, name, verdict, why))


def _overrides(value: object) -> dict[str, object] | None:
    """Skill -> how much of it is seen; None for what is none."""
    if not isinstance(value, dict):
        return None
    found = cast("dict[str, object]", value)
    return found if all(isinstance(one, str) and one in _SHOWN for one in found.values()) else None


_UNTRUSTED: tuple[Verdict, str] = ("ignored", UNTRUSTED)
