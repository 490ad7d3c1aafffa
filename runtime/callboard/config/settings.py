"""Settings in layers: built in, the user's file, the workspace's file, the environment, the flags.

Later layers take precedence. Lists of permission rules and hooks are joined, so that no layer removes what another one
denies. The origin of each value is kept. Unknown names and invalid values are refused with file, line and field.

A workspace's files are used as they were read when trust was decided. Of an untrusted workspace only deny and ask rules
apply. Settings that only the user may decide are refused in a workspace: the targets of the key and the conversation,
the sandbox, `bypassPermissions`, Python callables.
"""

from __future__ import annotations

import difflib
import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import field, replace
from pathlib import Path
from typing import Any, cast

import platformdirs
from pydantic import ValidationError

from callboard.adapters.extensions.claude_settings import ClaudeSettings, claude_files, claude_notes
from callboard.adapters.extensions.trust import HOOKS, SETTINGS, read_claims
from callboard.adapters.extensions.yaml import Address, YamlDocument, dotted_address, load_document, load_yaml
from callboard.config.setting_keys import first_fault
from callboard.core.checkpoints.address import check_base, parse_remote
from callboard.core.context.pipeline import PRESETS, check_pipeline
from callboard.core.context.stages.custom import is_own
from callboard.core.permissions.rule_check import Kind, rule_note
from callboard.core.permissions.rules import parse_rule
from callboard.core.trust.claims import WorkspaceClaims
from callboard.types.agent_spec import StageSpec
from callboard.types.choices import unknown
from callboard.types.errors import SettingsError, UsageError
from callboard.types.hook_answers import HookSource
from callboard.types.lazy_dataclass import dataclass
from callboard.types.model_names import FAMILIES
from callboard.types.records import Json
from callboard.types.settings import ProfileSettings, Settings

PREFIX = "CALLBOARD_"
ALIASES: Mapping[str, str] = {
    "ANTHROPIC_BASE_URL": "base_url",
    "ANTHROPIC_MODEL": "model",
    "MODEL_ID": "model",
    "FALLBACK_MODEL_ID": "fallback_models",
    "ANTHROPIC_SMALL_FAST_MODEL": "small_model",
    **{f"ANTHROPIC_DEFAULT_{family.upper()}_MODEL": f"model_aliases.{family}" for family in FAMILIES},
}
"""Alternative names of variables, the weaker first; a `CALLBOARD_` variable takes precedence."""

_JOINED = frozenset({"allow", "ask", "deny", "never", "always_ask", "examples"})
"""Lists of permission rules, of all agents and of some, and their examples."""
_BUILT_IN = Path(__file__).parents[1] / "data" / "models.yaml"
Tree = dict[str, object]
_PERSONS_ONLY = (
    *("base_url", "notify", "retention", "sandbox", "search", "store", "store_direct", "store_workspace", "web"),
    *("workspace_remote", "workspace_base", "checkpoint"),
)
"""Settings that a workspace may not set: the targets of the key and the conversation, the sandbox of its commands, the
command that searches, the server that gets everything, the ways to reach the person, and the remote that gets all
changes."""
_FLAG = "flag for "
"""Beginning of the location of a value that an option sets."""
_TIGHTEN = ("ask", "deny", "never", "always_ask")
_LARGEST = 1_000_000


@dataclass(frozen=True, slots=True)
class LoadedSettings:
    """Settings in force. `origins`: the location of each value that is not a default."""

    settings: Settings
    origins: Mapping[Address, str] = field(default_factory=dict[Address, str])
    hooks: Mapping[HookSource, Mapping[str, Sequence[Json]]] = field(default_factory=dict[HookSource, Any])
    """Hooks of the two files separately, because they run in the order of their sources and have different rights."""
    notes: tuple[str, ...] = ()
    """Settings that are ignored or take effect in another way than written, one line each with its location."""
    claude: tuple[ClaudeSettings, ...] = ()
    """Content of settings written for Claude Code, the weakest first."""
    bypass_off: str = ""
    """Location that disables the mode `bypassPermissions`; empty: there is none."""
    bases: Mapping[str, str] = field(default_factory=dict[str, str])
    """Settings file -> folder that `/x` in its rules refers to, if it is not the agent's own."""
    hooks_file: bytes = b""
    """The workspace's `.callboard/hooks/hooks.json`; empty if there is none or it is untrusted."""
    workspace: Path = Path()
    """Folder to which relative paths of settings refer."""
    environment: Mapping[str, str] = field(default_factory=lambda: dict(os.environ))
    """Environment of the session: that of the process with the variables of settings files. Never displayed."""
    variables: frozenset[str] = frozenset()
    """Names of the variables of settings files, which commands and hooks receive too."""

    def rule_bases(self, kind: str) -> tuple[str, ...]:
        """Return, for each rule of `permission.allow`, `ask` or `deny`, the absolute folder that `/x` refers to.

        Empty: the folder of the agent.
        """
        rules: Sequence[str] = getattr(self.settings.permission, kind)
        places = [origin(self.origins, ("permission", kind, number)) for number in range(len(rules))]
        return tuple(
            next((base for file, base in self.bases.items() if place.startswith(f"{file}:")), "") for place in places
        )

    def permission_rules(self) -> list[tuple[str, str, str]]:
        """Return (kind, rule, place) for each permission rule, those that are considered first before the others."""
        rules = sorted(rules_of(self.settings), key=lambda rule: ("deny", "ask", "allow").index(str(rule[0][-2])))
        return [
            (" ".join(map(str, (address[-2], *address[1:-2]))), text, self.place(address)) for address, text in rules
        ]

    def folder_rules(self) -> tuple[str, ...]:
        """Return the rules that allow reading in `permission.directories`."""
        folders = (
            os.path.realpath(self.workspace / Path(text).expanduser()) for text in self.settings.permission.directories
        )
        return tuple(f"Read(/{folder}/**)" for folder in folders)

    def place(self, address: Address) -> str:
        """Return where a value was set: file, line and field, or the name of the variable or flag."""
        return where(self.origins, address)

    def explain_values(self) -> Iterator[tuple[str, object, str]]:
        """Yield each value with its dotted name and its origin (`default` if it was not set), in the tree's order."""
        for address, value in _leaves(self.settings.model_dump(mode="json")):
            yield dotted_address(address), value, origin(self.origins, address) or "default"


def user_file(environ: Mapping[str, str]) -> Path:
    """Return the user's settings file.

    The path is `$XDG_CONFIG_HOME/callboard/settings.yaml`, or its equivalent on the platform.
    """
    home = environ.get("XDG_CONFIG_HOME", "")
    folder = Path(home) / "callboard" if Path(home).is_absolute() else platformdirs.user_config_path("callboard")
    return folder / "settings.yaml"


def workspace_file(workspace: Path) -> Path:
    """Return the workspace's settings file."""
    return workspace / ".callboard" / "settings.yaml"


def load_settings(
    environ: Mapping[str, str],
    *,
    workspace: Path | None = None,
    trusted: bool = False,
    flags: Mapping[str, object] | None = None,
    workspace_claims: WorkspaceClaims | None = None,
    sources: frozenset[str] | None = None,
    texts: bool = False,
    variables: Mapping[str, str] | None = None,
) -> LoadedSettings:
    """Read all layers.

    `flags` are dotted names (`permission.mode`); the value None means not given. `variables`: those of this run's
    `--settings`, which take precedence over those of files, as these do over the environment. Of an untrusted
    workspace only deny and ask rules apply. `workspace_claims`: its content as read when trust was decided; None:
    its current content. `sources`: the files to use, `user`, `project` and `local`; None: all. `texts`: an untrusted
    workspace may also choose the output style. The user's own `settings.yaml` always applies. Raises `SettingsError`.
    """
    if workspace_claims is None and workspace is not None:
        workspace_claims = read_claims(workspace)
    own_file = user_file(environ)
    person = file_layer(own_file)
    project = sources is None or "project" in sources
    workspace_values = (
        workspace_layer(workspace_claims, trusted=trusted) if workspace_claims is not None and project else Layer()
    )
    built_in = file_layer(_BUILT_IN, under="models", label="built in")
    claude = claude_files(environ, workspace_claims, trusted=trusted, sources=sources, texts=texts)
    added = {
        name: value
        for source in (*(file.variables for file in claude), variables or {})
        for name, value in source.items()
    }
    environ = {**environ, **added}
    files = (built_in, *map(claude_layer, claude), person, workspace_values)
    layers = (*files, _alias_layer(environ), _environment_layer(environ), _flag_layer(flags or {}))
    values: Tree = {}
    origins: dict[Address, str] = {}
    for layer in layers:
        _merge(values, layer, (), origins)
    settings = _with_model_ids(_checked(values, origins))
    hooks: dict[HookSource, Any] = {
        "person": person.values.get("hooks", {}),
        "workspace": workspace_values.values.get("hooks", {}),
    }
    bypass_off = next((file.bypass_off for file in claude if file.bypass_off), "")
    _check_bypass(values, origins, bypass_off)
    messages = (
        *_read_otherwise(values, origins),
        *_idle_rules(settings, origins, [f"{file.path}:" for file in claude]),
    )
    notes = (*messages, *workspace_values.notes, *claude_notes(claude))
    bases = {file.path: str(Path(file.path).parent) for file in claude if file.person}
    hooks_file = (
        workspace_claims.content.get(HOOKS, b"") if workspace_claims is not None and trusted and project else b""
    )
    loaded = LoadedSettings(settings, origins, hooks, notes, tuple(claude), bypass_off, bases, hooks_file)
    return replace(loaded, workspace=workspace or Path(), environment=environ, variables=frozenset(added))


def _with_model_ids(settings: Settings) -> Settings:
    """Return the settings with ids in place of aliases of models."""
    small = settings.small_model
    return settings.model_copy(
        update={
            "plan_model": settings.plan_model_of(settings.model),
            "model": settings.model_id(settings.model),
            "fallback_models": tuple(settings.model_id(name) for name in settings.fallback_models),
            "small_model": settings.model_id(small) if small else None,
        }
    )


def _check_bypass(values: Tree, origins: Mapping[Address, str], off: str) -> None:
    """Raise `SettingsError` if `bypassPermissions` is set though a file (`off`: its location) disables it.

    Raises `UsageError` if an option sets it.
    """
    for address, value in parts(values.get("permission"), ("permission",)) if off else ():
        if address[-1] == "mode" and value == "bypassPermissions":
            message = f"bypassPermissions is switched off by {off}"
            place = where(origins, address)
            # Several options set the mode, so the name of the setting would mislead.
            raise UsageError(message) if place.startswith(_FLAG) else SettingsError(message, place)


def _read_otherwise(values: Tree, origins: Mapping[Address, str]) -> Iterator[str]:
    for address, value in parts(values.get("permission"), ("permission",)):
        if address[-1] == "mode" and value == "auto":
            place = where(origins, address)
            yield f"{place}: the mode auto is read as default: no classifier decides here, a person is asked"
    for name in ("transcripts", "tool_results"):
        if ("paths", name) in origins:
            yield f"{where(origins, ('paths', name))}: has no effect: these files are always in the data folder"


def _idle_rules(settings: Settings, origins: Mapping[Address, str], reported: Sequence[str]) -> Iterator[str]:
    """Yield the rules that can never have an effect, with the reason.

    Rules of locations that begin with one of `reported` are left out.
    """
    for address, text in rules_of(settings):
        note = rule_note(text, cast("Kind", address[-2]))
        place = where(origins, address)
        if note.status != "honored" and not place.startswith(tuple(reported)):
            yield f"{place}: the rule {text} has no effect: {note.why}"


def _alias_layer(environ: Mapping[str, str]) -> Layer:
    values: Tree = {}
    places: dict[Address, str] = {}
    for variable, name in ALIASES.items():
        text = environ.get(variable, "").strip()
        if text:
            models = [part.strip() for part in text.split(",") if part.strip()]
            address = tuple(name.split("."))
            places[address] = variable
            _set_value(values, address, models if name == "fallback_models" else text, variable)
    return Layer(values, places)


def _environment_layer(environ: Mapping[str, str]) -> Layer:
    values: Tree = {}
    places: dict[Address, str] = {}
    for variable in sorted(environ):
        if not variable.startswith(PREFIX):
            continue
        address = tuple(variable.removeprefix(PREFIX).lower().split("__"))
        if not environ[variable].strip():
            continue  # an empty variable counts as not set
        if address[0] in Settings.model_fields:
            places[address] = variable
            _set_value(values, address, _parsed(environ[variable], variable), variable)
        elif close := difflib.get_close_matches(address[0], Settings.model_fields, n=1, cutoff=0.8):
            raise SettingsError(f"unknown setting: choose {PREFIX}{close[0].upper()}", variable)
    return Layer(values, places)


def _flag_layer(flags: Mapping[str, object]) -> Layer:
    values: Tree = {}
    places: dict[Address, str] = {}
    for name, value in flags.items():
        if value is not None:
            address = tuple(name.split("."))
            places[address] = f"{_FLAG}{name}"
            _set_value(values, address, list(cast("tuple[object]", value)) if isinstance(value, tuple) else value, name)
    return Layer(values, places)


def _parsed(text: str, variable: str) -> object:
    """Parse lists and mappings in YAML flow style; other text is left to the field's type."""
    if text.lstrip()[:1] in ("[", "{"):
        return load_yaml(text, variable)
    return None if text.strip() == "null" else text


def _set_value(values: Tree, address: Address, value: object, where: str) -> None:
    branch = values
    for part in address[:-1]:
        inner = branch.setdefault(str(part), {})
        if not isinstance(inner, dict):
            raise SettingsError(f"sets a part of {part}, which is set as a whole elsewhere", where)
        branch = cast("Tree", inner)
    branch[str(address[-1])] = value


def _merge(into: Tree, layer: Layer, address: Address, origins: dict[Address, str]) -> None:
    """Merge a layer into the tree, mapping by mapping."""
    for name, value in _branch(layer.values, address).items():
        path = (*address, name)
        old = into.get(name)
        if isinstance(value, dict) and (isinstance(old, dict) or old is None):
            into[name] = dict(cast("Tree", old or {}))
            _merge(cast("Tree", into[name]), layer, path, origins)
            continue
        joined = isinstance(old, list) and (path[0] == "hooks" or (path[0] == "permission" and path[-1] in _JOINED))
        existing = cast("list[object]", old) if joined and isinstance(value, list) else []
        place = origin(layer.places, path)
        origins[path] = f"{origins[path]}, {place}" if existing else place
        if isinstance(value, list):
            added = cast("list[object]", value)
            for number in range(len(added)):
                origins[*path, len(existing) + number] = origin(layer.places, (*path, number))
            value = [*existing, *added]
        into[name] = value


def _branch(values: Tree, address: Address) -> Tree:
    for part in address:
        values = cast("Tree", values[str(part)])
    return values


def _checked(values: Tree, origins: Mapping[Address, str]) -> Settings:
    try:
        settings = Settings.model_validate(values)
    except ValidationError as error:
        address, text = first_fault(error)
        raise SettingsError(text, where(origins, address)) from None
    _check_pipelines(settings, origins)
    _check_remote(settings, origins)
    for address, rule in rules_of(settings):
        try:
            parse_rule(rule)
        except ValueError as error:
            raise SettingsError(str(error), where(origins, address)) from error
    return settings


def _check_remote(settings: Settings, origins: Mapping[Address, str]) -> None:
    """Raise `SettingsError` for an address or a base that git does not accept. It never repeats an address."""
    checks = {"workspace_remote": parse_remote, "workspace_base": check_base}
    for name, check in checks.items():
        if value := getattr(settings, name):
            try:
                check(value)
            except ValueError as error:
                raise SettingsError(str(error), where(origins, (name,))) from None


def rules_of(settings: Settings) -> Iterator[tuple[Address, str]]:
    """Yield every permission rule that is set, of all agents, of types and of scheduled turns, with its address.

    The part of the address before the number is its kind: `allow`, `ask` or `deny`.
    """
    permission = settings.permission
    scopes: dict[Address, ProfileSettings] = {("permission",): permission}
    scopes[("permission", "schedules")] = permission.schedules
    scopes |= {("permission", "agents", name): profile for name, profile in permission.agents.items()}
    for address, profile in scopes.items():
        for kind, texts in (("allow", profile.allow), ("ask", profile.ask), ("deny", profile.deny)):
            yield from (((*address, kind, number), text) for number, text in enumerate(texts))


def _check_pipelines(settings: Settings, origins: Mapping[Address, str]) -> None:
    for address, chosen in pipelines_of(settings).items():
        if isinstance(chosen, str):
            if chosen not in PRESETS:
                message = unknown("preset", chosen, PRESETS)
                raise SettingsError(message, where(origins, address))
            continue
        for number, spec in enumerate(chosen):
            for problem in check_pipeline([spec]):
                message = problem.removeprefix("pipeline[0]").lstrip(".: ")
                raise SettingsError(message, where(origins, (*address, number)))


def pipelines_of(settings: Settings) -> dict[Address, str | tuple[StageSpec, ...]]:
    """Return every pipeline that is set, the name of a preset or a list, by address."""
    types = {("context", "pipelines", name): chosen for name, chosen in settings.context.pipelines.items()}
    return {("context", "pipeline"): settings.context.pipeline, **types}


def pipeline_of(settings: Settings, agent_type: str = "") -> tuple[StageSpec, ...]:
    """Return the stages for agents of a type: its own pipeline if one is set, otherwise that of all."""
    chosen = settings.context.pipelines.get(agent_type, settings.context.pipeline)
    return PRESETS[chosen] if isinstance(chosen, str) else chosen


def _leaves(value: object, address: Address = ()) -> Iterator[tuple[Address, object]]:
    if isinstance(value, dict) and value:
        for name, inner in cast("Tree", value).items():
            yield from _leaves(inner, (*address, name))
    else:
        yield address, value


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


def workspace_layer(workspace_claims: WorkspaceClaims, *, trusted: bool) -> Layer:
    """Read the workspace's `.callboard/settings.yaml`. Raises `SettingsError` for errors in a trusted file."""
    path = f"{workspace_claims.workspace}/{SETTINGS}"
    raw = workspace_claims.content.get(SETTINGS)
    if raw is None:
        return _unread_layer(workspace_claims, path) if trusted else Layer()
    try:
        layer = _layer(load_document(raw.decode("utf-8-sig"), path), path)
    except SettingsError as error:
        if trusted:
            raise
        return Layer(notes=(f"{error}: none of its rules applies",))
    except UnicodeDecodeError as error:
        if trusted:
            raise SettingsError("is not UTF-8 text", path) from error
        return Layer(notes=(f"{path}: is not UTF-8 text: none of its rules applies",))
    if not trusted:
        return _restricting_part(layer)
    _refuse_personal(layer)
    return layer


def check_settings_text(text: str, path: str, *, workspace: bool) -> None:
    """Check the text of a settings file by itself. `workspace`: it is a workspace's file. Raises `SettingsError`."""
    layer = _layer(load_document(text, path), path)
    if workspace:
        _refuse_personal(layer)
    _checked(layer.values, layer.places)


def _unread_layer(workspace_claims: WorkspaceClaims, path: str) -> Layer:
    """Raise `SettingsError` for a trusted file that could not be read, because it must not count as missing."""
    for claim in workspace_claims.claims:
        if claim.kind == "unread" and claim.path == SETTINGS:
            raise SettingsError(claim.text, path)
    return Layer()


def _refuse_personal(layer: Layer) -> None:
    """Raise `SettingsError` for a setting that only the user may decide."""
    for address in _refused(layer):
        raise SettingsError(
            "a workspace may not set this; set it in your own settings, the environment or by a flag",
            where(layer.places, address),
        )


def _refused(layer: Layer) -> Iterator[Address]:
    for name in _PERSONS_ONLY:
        if name in layer.values:
            yield (name,)
    for address, value in parts(layer.values.get("permission"), ("permission",)):
        if address[-1] == "mode" and value == "bypassPermissions":
            yield address
    for address, value in parts(layer.values.get("context"), ("context",)):
        if isinstance(value, Mapping) and is_own(str(cast("Tree", value).get("stage", ""))):
            yield address  # a stage that is a Python callable


def _restricting_part(layer: Layer) -> Layer:
    """Return the part of an untrusted file that applies: its deny and ask rules.

    An invalid rule is noted and ignored.
    """
    rules_by_kind: Tree = {}
    notes: list[str] = []
    permission = layer.values.get("permission")
    if permission is not None and not isinstance(permission, dict):
        notes.append(f"{where(layer.places, ('permission',))}: ignored: write a mapping of names to values")
    for kind in _TIGHTEN if isinstance(permission, dict) else ():
        rules = cast("Tree", permission).get(kind)
        if not isinstance(rules, list):
            if rules is not None:
                notes.append(f"{where(layer.places, ('permission', kind))}: ignored: write a list of rules")
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
        return "a rule must be text"
    try:
        if not program:
            parse_rule(rule)
    except ValueError as error:
        return str(error)
    return ""


def claude_layer(settings_file: ClaudeSettings) -> Layer:
    """Convert a file's permissions and other values into Callboard's settings."""
    values: Tree = {}
    places: dict[Address, str] = {}
    for kind, rules in settings_file.rules.items():
        if rules:
            _set_value(values, ("permission", kind), [rule for rule, _ in rules], settings_file.path)
            places |= {("permission", kind, number): place for number, (_, place) in enumerate(rules)}
    mode = {} if settings_file.mode is None else {("permission", "mode"): settings_file.mode}
    for address, (value, place) in {**mode, **settings_file.settings}.items():
        _set_value(values, address, value, place)
        places[address] = place
    return Layer(values, places)


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
    if not place:  # a section that should be a mapping, or whose parts have separate places
        inside = [(path, place) for path, place in origins.items() if path[: len(address)] == address]
        path, place = inside[0] if inside else ((), "")
        if place.endswith(dotted_address(path)):  # the line of the first part, with the name of the whole
            place = place.removesuffix(dotted_address(path)) + dotted_address(address)
    return place or dotted_address(address)
