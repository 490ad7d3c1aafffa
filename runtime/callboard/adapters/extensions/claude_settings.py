"""Reader of settings for Claude Code: `settings.json` files, field by field. `claude_fields.py` lists the fields.

Supported values become Callboard settings, each with its place; Callboard's own settings take precedence. Unsupported
values are reported with the reason, and none is skipped silently. Of an untrusted workspace only restrictions count:
deny and ask rules, and the switch that turns `bypassPermissions` off.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import field, replace
from types import MappingProxyType

from callboard.adapters.extensions.claude_fields import (
    LOUD,
    QUIET,
    RESTRICTING,
    SIMPLE,
    Address,
    FieldValue,
    Verdict,
    refused_variable,
    sandbox_values,
    simple_value,
)
from callboard.adapters.extensions.discovery import UNTRUSTED
from callboard.adapters.extensions.trust import CLAUDE
from callboard.core.mcp.config_entries import KEYS, Approval
from callboard.core.permissions.rule_check import Kind, rule_note
from callboard.core.permissions.sensitive_paths import claude_folder
from callboard.core.trust.claims import WorkspaceClaims
from callboard.core.trust.yaml_nodes import Members, YamlNode, json_node, plain
from callboard.types.choices import unknown
from callboard.types.errors import SettingsError
from callboard.types.lazy_dataclass import dataclass

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
_LARGEST = 1_000_000
"""Most bytes of a settings file."""
NOT_A_PERSON = "a workspace cannot set the sandbox of its commands: set it in your own settings"


@dataclass(frozen=True, slots=True)
class FieldReport:
    """Verdict on one field or rule of a file."""

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
    verdicts: tuple[FieldReport, ...] = ()
    settings: Mapping[Address, tuple[object, str]] = field(default_factory=dict[Address, tuple[object, str]])
    """Values of other settings of Callboard, each with its place."""
    variables: Mapping[str, str] = field(default_factory=dict[str, str])
    """Variables of the environment for the session and its processes (`env`)."""
    broken: str = ""
    """Reason why the file could not be read at all, without its path; empty if it could."""


def read_claude(raw: bytes, path: str, *, person: bool, trusted: bool, texts: bool = False) -> ClaudeSettings:
    """Return the settings in a file's bytes. Raises `SettingsError` if it is not a JSON object.

    `trusted`: the user trusts the file; always true for the user's own. `texts`: the texts of the untrusted workspace
    are used, so that it may choose one of its output styles.
    """
    try:
        document = json_node(raw.decode("utf-8-sig"))
    except (ValueError, RecursionError) as error:
        raise SettingsError(f"is not valid JSON: {error}", path) from error
    if document.members is None:
        raise SettingsError("is a JSON object (`{ ... }`)", path)
    reading = _Reading(path, person=person, trusted=trusted, texts=texts)
    reading.read(document.members)
    hooks = raw if trusted else b""
    servers = tuple(reading.servers)
    verdicts = tuple(reading.verdicts)
    settings = ClaudeSettings(path, person, reading.rules, reading.mode, reading.bypass_off, hooks, servers, verdicts)
    return replace(settings, settings=reading.settings, variables=reading.variables)


class _Reading:
    """Reading of one file."""

    def __init__(self, path: str, *, person: bool, trusted: bool, texts: bool) -> None:
        self._path = path
        self._person = person
        self._trusted = trusted
        self._texts = texts
        self.rules: dict[Kind, list[tuple[str, str]]] = {"allow": [], "ask": [], "deny": []}
        self.mode: tuple[str, str] | None = None
        self.bypass_off = ""
        self.settings: dict[Address, tuple[object, str]] = {}
        self.variables: dict[str, str] = {}
        self.servers: list[Approval] = []
        self.verdicts: list[FieldReport] = []

    def read(self, members: Members) -> None:
        for name, node in members:
            if name == "permissions":
                self._permissions(node)
            elif name == "env":
                self._variables(node)
            elif name == "sandbox":
                self._sandbox(node)
            elif name in SIMPLE:
                self._set(simple_value(name, node), restricts=name in RESTRICTING)
            elif name in _HOOK_FIELDS:  # the reader of hooks reports on each of them
                self._report(node, name, *(("honored", "") if self._trusted else _UNTRUSTED))
            elif name in KEYS:
                self.servers.append(Approval(name, node, f"{self._path}:{node.line}", self._trusted))
                self._report(node, name, *(("honored", "") if self.servers[-1].counts else _UNTRUSTED))
            elif name in QUIET:
                self._report(node, name, "ignored" if QUIET[name] else "honored", QUIET[name])
            else:
                self._report(node, name, "ignored", LOUD.get(name, "is not a setting that Callboard knows"))

    def _set(self, read: FieldValue, *, restricts: bool = False) -> None:
        """Store the value of a field. `restricts`: False as a value also counts in an untrusted workspace."""
        allowed = self._trusted or (restricts and all(value is False for _, value in read.settings))
        allowed = allowed or (self._texts and read.name == "outputStyle")
        if read.verdict == "honored" and not allowed:
            self._report(read.node, read.name, *_UNTRUSTED)
            return
        for address, value in read.settings:
            self.settings[address] = value, f"{self._path}:{read.node.line}: {read.name}"
        self._report(read.node, read.name, read.verdict, read.reason)

    def _sandbox(self, node: YamlNode) -> None:
        if node.members is None:
            self._report(node, "sandbox", "ignored", "has to be an object of named fields")
        elif not self._person:
            self._report(node, "sandbox", "refused", NOT_A_PERSON)
        else:
            for part in sandbox_values(node):
                self._set(part)

    def _variables(self, node: YamlNode) -> None:
        """Read `env`. Numbers and booleans count as texts."""
        if node.members is None:
            self._report(node, "env", "ignored", "has to be an object of variables")
            return
        for name, inner in node.members:
            at = f"env.{name}"
            value = inner.value
            reason = refused_variable(name, person=self._person)
            if inner.members is not None or inner.items is not None or value is None:
                self._report(inner, at, "ignored", "the value of a variable is a text")
            elif not self._trusted:
                self._report(inner, at, *_UNTRUSTED)
            elif reason:
                self._report(inner, at, "refused", reason)
            else:
                self.variables[name] = str(value).lower() if isinstance(value, bool) else str(value)
                self._report(inner, at, "honored")

    def _permissions(self, node: YamlNode) -> None:
        if node.members is None:
            self._report(node, "permissions", "ignored", "has to be an object of named fields")
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
                self._directories(inner, at)
            else:
                self._report(inner, at, "ignored", "is not honored in this version")

    def _listed(self, kind: Kind, node: YamlNode, at: str) -> None:
        if node.items is None:
            self._report(node, at, "ignored", "has to be a list of rules")
            return
        for number, entry in enumerate(node.items):
            self._rule(kind, entry, f"{at}[{number}]")

    def _rule(self, kind: Kind, node: YamlNode, at: str) -> None:
        if not isinstance(node.value, str):
            self._report(node, at, "ignored", "a rule must be text")
            return
        place, at = f"{self._path}:{node.line}: {at}", f"{at} {node.value}"
        note = rule_note(node.value, kind)
        if note.status == "refused":
            self._report(node, at, "refused", note.why)
        elif kind == "allow" and not self._trusted:
            self._report(node, at, *_UNTRUSTED)
        else:
            self.rules[kind].append((node.value, place))
            self._report(node, at, note.status, note.why)

    def _directories(self, node: YamlNode, at: str) -> None:
        """Read the folders outside the workspace that agents may read. Changes in them need an approval."""
        folders = [item.value for item in node.items or () if isinstance(item.value, str) and item.value.strip()]
        if node.items is None or len(folders) < len(node.items):
            self._report(node, at, "ignored", "has to be a list of folders")
            return
        reading = "agents may read them; changes need an approval or a rule such as Edit(//path/**)"
        self._set(FieldValue(node, at, reason=reading, settings=((("permission", "directories"), folders),)))

    def _default_mode(self, node: YamlNode, at: str) -> None:
        written = node.value if isinstance(node.value, str) else str(plain(node))
        if written not in MODES:
            self._report(node, at, "ignored", unknown("mode", written, MODES))
        elif written == "bypassPermissions":
            own = "ask Callboard for it: --permission-mode, or your own settings.yaml"
            self._report(node, at, "refused", own if self._person else "a workspace cannot lift its own permissions")
        elif not self._trusted:
            self._report(node, at, *_UNTRUSTED)
        else:
            self.mode = MODES[written], f"{self._path}:{node.line}: {at}"
            reason = (
                "auto is read as default: no classifier decides here, a person is asked" if written == "auto" else ""
            )
            self._report(node, at, "honored", reason)

    def _switch(self, node: YamlNode, at: str) -> None:
        if node.value != "disable":
            self._report(node, at, "ignored", "the one value that there is: disable")
            return
        self.bypass_off = f"{self._path}:{node.line}: {at}"
        self._report(node, at, "honored")

    def _report(self, node: YamlNode, name: str, verdict: Verdict, reason: str = "") -> None:
        self.verdicts.append(FieldReport(self._path, node.line, name, verdict, reason))


_UNTRUSTED: tuple[Verdict, str] = ("ignored", UNTRUSTED)


def claude_files(
    environ: Mapping[str, str],
    workspace_claims: WorkspaceClaims | None,
    *,
    trusted: bool,
    sources: frozenset[str] | None = None,
    texts: bool = False,
) -> list[ClaudeSettings]:
    """Return the settings written for Claude Code, the weakest first: the user's, the workspace's, its local ones.

    `sources`: the ones to read (`user`, `project`, `local`); None: all. `texts`: as of `read_claude`. Raises
    `SettingsError` for a file of the user, or of a trusted workspace, that is not a JSON object.
    """
    files: list[ClaudeSettings] = []
    user_path = claude_folder(environ.get("HOME", ""), environ) / "settings.json"
    if user_path.is_absolute() and (sources is None or "user" in sources) and user_path.is_file():
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
        raw = workspace_claims.content.get(path) if workspace_claims is not None else None
        if raw is None or workspace_claims is None:
            continue
        name = f"{workspace_claims.workspace}/{path}"
        try:
            files.append(read_claude(raw, name, person=False, trusted=trusted, texts=texts))
        except SettingsError as error:
            if trusted:
                raise
            reason = str(error).removeprefix(f"{name}: ")
            files.append(ClaudeSettings(name, person=False, broken=f"{reason}: none of its rules applies"))
    return files


def claude_notes(files: Iterable[ClaudeSettings]) -> Iterator[str]:
    """Yield the notes for a session's start.

    The notes are a line for each field that would have changed a permission, and one for the rest of a file. Fields
    that wait for trust are left to the trust question, and fields without an effect on agents to `doctor --compat`.
    """
    for file in files:
        if file.broken:
            yield f"{file.path}: {file.broken}"
        lost = [field for field in file.verdicts if field.verdict != "honored" and field.reason != UNTRUSTED]
        grave = [field for field in lost if field.name.startswith("permissions.")]
        yield from map(str, grave)
        others = ", ".join(field.name for field in lost if field not in grave and field.name not in QUIET)
        if others:
            yield f"{file.path}: not used: {others} (`callboard doctor --compat` says why)"
