"""Settings in layers: built in, the person's file, the workspace's file, the environment, the flags. Later wins.

Lists of permission rules and hooks are joined instead, so that no layer takes away what another one denies. Where each
value came from is kept. Refused, naming file, line and field: unknown names, values that do not fit, and from a
workspace whatever only a person may decide. Of one that nobody trusted only deny and ask rules count.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, cast

import platformdirs
from pydantic import ValidationError

from callboard.adapters.claude_settings import ClaudeSettings
from callboard.adapters.trust import HOOKS, read_brought
from callboard.adapters.yaml_files import Address, dotted, load_yaml
from callboard.core.context.pipeline import check_pipeline
from callboard.core.context.presets import PRESETS
from callboard.core.permission.grammar import Kind, rule_note
from callboard.core.permission.rules import parse_rule
from callboard.core.trust.claims import Brought
from callboard.settings_layers import (
    Layer,
    Tree,
    claude_files,
    claude_layer,
    claude_notes,
    file_layer,
    origin,
    parts,
    where,
    workspace_layer,
)
from callboard.words.errors import SettingsError
from callboard.words.hooks import HookSource
from callboard.words.settings_model import ProfileSettings, Settings
from callboard.words.specs import StageSpec
from callboard.words.values import Json

PREFIX = "CALLBOARD_"
ALIASES: Mapping[str, str] = {
    "ANTHROPIC_BASE_URL": "base_url",
    "MODEL_ID": "model",
    "FALLBACK_MODEL_ID": "fallback_models",
}
"""Variables of other names that are read too; a `CALLBOARD_` one wins over them."""

_JOINED = frozenset({"allow", "ask", "deny", "never", "always_ask", "examples"})
"""Lists of permission rules, of all agents and of some, and their examples."""
_BUILT_IN = Path(__file__).parent / "data" / "models.yaml"


@dataclass(frozen=True, slots=True)
class Loaded:
    """The settings in force. `origins` tells where each value that is no default came from."""

    settings: Settings
    origins: Mapping[Address, str] = field(default_factory=dict[Address, str])
    hooks: Mapping[HookSource, Mapping[str, Sequence[Json]]] = field(default_factory=dict[HookSource, Any])
    """The hooks of the two files apart: they speak in the order of their sources, and have different rights."""
    notes: tuple[str, ...] = ()
    """What is heeded in another way than it says, or not at all, a line each with its place."""
    claude: tuple[ClaudeSettings, ...] = ()
    """What was read of settings written for Claude Code, the weakest first."""
    bypass_off: str = ""
    """The place that switches the mode `bypassPermissions` off for everybody; empty: none does."""
    bases: Mapping[str, str] = field(default_factory=dict[str, str])
    """Settings file -> the folder that `/x` means in a rule of it, where that is not the agent's own."""
    hooks_file: bytes = b""
    """The workspace's `.callboard/hooks/hooks.json`; empty where there is none or nobody trusted it."""

    def rule_bases(self, kind: str) -> tuple[str, ...]:
        """For each rule of `permission.allow`, `ask` or `deny`: the absolute folder that `/x` means in it; empty: the
        folder of the agent that it binds."""
        rules: Sequence[str] = getattr(self.settings.permission, kind)
        places = [origin(self.origins, ("permission", kind, number)) for number in range(len(rules))]
        return tuple(
            next((base for file, base in self.bases.items() if place.startswith(f"{file}:")), "") for place in places
        )

    def place(self, address: Address) -> str:
        """Where a value was set: file, line and field, or the name of the variable or flag."""
        return where(self.origins, address)

    def explained(self) -> Iterator[tuple[str, object, str]]:
        """Each value with its dotted name and its origin (`default` when nobody set it), in the tree's order."""
        for address, value in _leaves(self.settings.model_dump(mode="json")):
            yield dotted(address), value, origin(self.origins, address) or "default"


def user_file(environ: Mapping[str, str]) -> Path:
    """The person's settings file: `$XDG_CONFIG_HOME/callboard/settings.yaml`, or where the platform has its like."""
    home = environ.get("XDG_CONFIG_HOME", "")
    folder = Path(home) / "callboard" if Path(home).is_absolute() else platformdirs.user_config_path("callboard")
    return folder / "settings.yaml"


def workspace_file(workspace: Path) -> Path:
    """The workspace's settings file."""
    return workspace / ".callboard" / "settings.yaml"


def load_settings(
    environ: Mapping[str, str],
    *,
    workspace: Path | None = None,
    trusted: bool = False,
    flags: Mapping[str, object] | None = None,
    brought: Brought | None = None,
) -> Loaded:
    """Read all layers. `flags` are dotted names (`permission.mode`); None as a value means not given.

    Of a workspace that nobody trusted only deny and ask rules count. `brought`: what it brings, as it was read when
    trust was decided; None: as it is now. Raises `SettingsError`.
    """
    if brought is None and workspace is not None:
        brought = read_brought(workspace)
    mine = user_file(environ)
    person = file_layer(mine)
    ours = Layer() if brought is None else workspace_layer(brought, trusted=trusted)
    built_in = file_layer(_BUILT_IN, under="models", known="built in")
    claude = claude_files(environ.get("HOME", ""), brought, trusted=trusted)
    files = (built_in, *map(claude_layer, claude), person, ours)
    layers = (*files, _alias_layer(environ), _environment_layer(environ), _flag_layer(flags or {}))
    values: Tree = {}
    origins: dict[Address, str] = {}
    for layer in layers:
        _merge(values, layer, (), origins)
    settings = _checked(values, origins)
    hooks: dict[HookSource, Any] = {"person": person.values.get("hooks", {}), "workspace": ours.values.get("hooks", {})}
    bypass_off = next((one.bypass_off for one in claude if one.bypass_off), "")
    _check_bypass(values, origins, bypass_off)
    said = (*_read_otherwise(values, origins), *_idle_rules(settings, origins, [f"{one.path}:" for one in claude]))
    notes = (*said, *ours.notes, *claude_notes(claude))
    bases = {one.path: str(Path(one.path).parent) for one in claude if one.person}
    hooks_file = brought.content.get(HOOKS, b"") if brought is not None and trusted else b""
    return Loaded(settings, origins, hooks, notes, tuple(claude), bypass_off, bases, hooks_file)


def _check_bypass(values: Tree, origins: Mapping[Address, str], off: str) -> None:
    """Raises `SettingsError` where `bypassPermissions` is set though a file (`off`: its place) switches it off."""
    for address, value in parts(values.get("permission"), ("permission",)) if off else ():
        if address[-1] == "mode" and value == "bypassPermissions":
            raise SettingsError(f"bypassPermissions is switched off by {off}", where(origins, address))


def _read_otherwise(values: Tree, origins: Mapping[Address, str]) -> Iterator[str]:
    for address, value in parts(values.get("permission"), ("permission",)):
        if address[-1] == "mode" and value == "auto":
            place = where(origins, address)
            yield f"{place}: the mode auto is read as default: no classifier decides here, a person is asked"


def _idle_rules(settings: Settings, origins: Mapping[Address, str], told: Sequence[str]) -> Iterator[str]:
    """The rules that will never do anything, and why; without those of places that begin with one of `told`."""
    for address, text in rules_of(settings):
        note, place = rule_note(text, cast("Kind", address[-2])), where(origins, address)
        if note.status != "honoured" and not place.startswith(tuple(told)):
            yield f"{place}: the rule {text} does nothing: {note.why}"


def _alias_layer(environ: Mapping[str, str]) -> Layer:
    values: Tree = {}
    for variable, name in ALIASES.items():
        text = environ.get(variable, "").strip()
        if text:
            models = [part.strip() for part in text.split(",") if part.strip()]
            values[name] = models if name == "fallback_models" else text
    places: dict[Address, str] = {(name,): variable for variable, name in ALIASES.items()}
    return Layer(values, places)


def _environment_layer(environ: Mapping[str, str]) -> Layer:
    values: Tree = {}
    places: dict[Address, str] = {}
    for variable in sorted(environ):
        if not variable.startswith(PREFIX):
            continue
        address = tuple(variable.removeprefix(PREFIX).lower().split("__"))
        if not environ[variable].strip():
            continue  # set to nothing is not set
        if address[0] in Settings.model_fields:
            places[address] = variable
            _put(values, address, _parsed(environ[variable], variable), variable)
        elif close := difflib.get_close_matches(address[0], Settings.model_fields, n=1, cutoff=0.8):
            raise SettingsError(f"no such setting; did you mean {PREFIX}{close[0].upper()}?", variable)
    return Layer(values, places)


def _flag_layer(flags: Mapping[str, object]) -> Layer:
    values: Tree = {}
    places: dict[Address, str] = {}
    for name, value in flags.items():
        if value is not None:
            address = tuple(name.split("."))
            places[address] = f"flag for {name}"
            _put(values, address, list(cast("tuple[object]", value)) if isinstance(value, tuple) else value, name)
    return Layer(values, places)


def _parsed(text: str, variable: str) -> object:
    """Lists and mappings as YAML writes them on one line; the rest is text, which the field's type reads."""
    if text.lstrip()[:1] in ("[", "{"):
        return load_yaml(text, variable)
    return None if text.strip() == "null" else text


def _put(values: Tree, address: Address, value: object, where: str) -> None:
    branch = values
    for part in address[:-1]:
        inner = branch.setdefault(str(part), {})
        if not isinstance(inner, dict):
            raise SettingsError(f"sets a part of {part}, which is set as a whole elsewhere", where)
        branch = cast("Tree", inner)
    branch[str(address[-1])] = value


def _merge(into: Tree, layer: Layer, address: Address, origins: dict[Address, str]) -> None:
    """Put a layer over what there is, mapping by mapping."""
    for name, value in _branch(layer.values, address).items():
        here = (*address, name)
        old = into.get(name)
        if isinstance(value, dict) and (isinstance(old, dict) or old is None):
            into[name] = dict(cast("Tree", old or {}))
            _merge(cast("Tree", into[name]), layer, here, origins)
            continue
        joined = isinstance(old, list) and (here[0] == "hooks" or (here[0] == "permission" and here[-1] in _JOINED))
        kept = cast("list[object]", old) if joined and isinstance(value, list) else []
        place = origin(layer.places, here)
        origins[here] = f"{origins[here]}, {place}" if kept else place
        if isinstance(value, list):
            added = cast("list[object]", value)
            for number in range(len(added)):
                origins[*here, len(kept) + number] = origin(layer.places, (*here, number))
            value = [*kept, *added]
        into[name] = value


def _branch(values: Tree, address: Address) -> Tree:
    for part in address:
        values = cast("Tree", values[str(part)])
    return values


def _checked(values: Tree, origins: Mapping[Address, str]) -> Settings:
    try:
        settings = Settings.model_validate(values)
    except ValidationError as error:
        first = error.errors(include_url=False, include_input=False)[0]
        address: Address = first["loc"]
        raise SettingsError(_words(first["type"], first["msg"], address), where(origins, address)) from None
    _check_pipelines(settings, origins)
    for address, rule in rules_of(settings):
        try:
            parse_rule(rule)
        except ValueError as error:
            raise SettingsError(str(error), where(origins, address)) from error
    return settings


def rules_of(settings: Settings) -> Iterator[tuple[Address, str]]:
    """Every permission rule that is set, of all agents, of types and of scheduled turns, with its address. The part of
    the address before the number is its kind: `allow`, `ask` or `deny`."""
    permission = settings.permission
    scopes: dict[Address, ProfileSettings] = {("permission",): permission}
    scopes[("permission", "schedules")] = permission.schedules
    scopes |= {("permission", "agents", name): one for name, one in permission.agents.items()}
    for address, one in scopes.items():
        for kind, texts in (("allow", one.allow), ("ask", one.ask), ("deny", one.deny)):
            yield from (((*address, kind, number), text) for number, text in enumerate(texts))


def _check_pipelines(settings: Settings, origins: Mapping[Address, str]) -> None:
    for address, chosen in pipelines_of(settings).items():
        if isinstance(chosen, str):
            if chosen not in PRESETS:
                words = f"no preset is called {chosen!r}; there are {', '.join(PRESETS)}"
                raise SettingsError(words, where(origins, address))
            continue
        for number, spec in enumerate(chosen):
            for problem in check_pipeline([spec]):
                words = problem.removeprefix("pipeline[0]").lstrip(".: ")
                raise SettingsError(words, where(origins, (*address, number)))


def pipelines_of(settings: Settings) -> dict[Address, str | tuple[StageSpec, ...]]:
    """Every pipeline that is set, a preset's name or a list, by its address."""
    types = {("context", "pipelines", name): chosen for name, chosen in settings.context.pipelines.items()}
    return {("context", "pipeline"): settings.context.pipeline, **types}


def pipeline_of(settings: Settings, agent_type: str = "") -> tuple[StageSpec, ...]:
    """The stages for agents of a type: its own pipeline if one is set, else that of all."""
    chosen = settings.context.pipelines.get(agent_type, settings.context.pipeline)
    return PRESETS[chosen] if isinstance(chosen, str) else chosen


def _words(kind: str, message: str, address: Address) -> str:
    if kind != "extra_forbidden":
        return message[0].lower() + message[1:]
    known = _names(address[:-1])
    close = difflib.get_close_matches(str(address[-1]), known, n=1)
    return f"no such setting; {f'did you mean {close[0]}?' if close else 'there are ' + ', '.join(known)}"


def _names(address: Address) -> list[str]:
    """The fields of the section at an address, read from the tree's own schema."""
    schema = Settings.model_json_schema()
    node: Tree = schema
    for part in address:
        inner = cast("Tree", node.get("properties", {})).get(str(part), node.get("additionalProperties"))
        if not isinstance(inner, dict):
            return []
        node = cast("Tree", inner)
        if "$ref" in node:
            node = cast("Tree", schema["$defs"][str(node["$ref"]).rsplit("/", 1)[-1]])
    return list(cast("Tree", node.get("properties", {})))


def _leaves(value: object, address: Address = ()) -> Iterator[tuple[Address, object]]:
    if isinstance(value, dict) and value:
        for name, inner in cast("Tree", value).items():
            yield from _leaves(inner, (*address, name))
    else:
        yield address, value
