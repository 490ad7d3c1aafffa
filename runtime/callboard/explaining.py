"""What `callboard policy` answers with: the judge of a workspace, the rules and hooks in force in it. Composition.

Nobody hosts anything here, and no hook is run: they are named.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path

from callboard.adapters.agent_files import AgentFile, load_agents
from callboard.adapters.explaining import Explainer, Judged
from callboard.adapters.files import Places as FilePlaces
from callboard.adapters.judging import parse_rules
from callboard.adapters.sandbox.machine import examine
from callboard.adapters.sandbox.sandbox import choose
from callboard.assembly import Places, all_tools, find_places
from callboard.core.permission.given import GivenCall, GivenRules, Known, Misread, read_line
from callboard.core.permission.modes import inherited, within
from callboard.core.permission.values import Floor, Mode, Rule, Verdict
from callboard.engine.hooks.registry import HookRegistry
from callboard.hooking import add_front_matter, fill_registry
from callboard.settings import Loaded, load_settings
from callboard.trusting import standing
from callboard.words.errors import UsageError
from callboard.words.hooks import Caller, PreToolUse
from callboard.words.settings_model import ProfileSettings
from callboard.words.specs import PermissionRules
from callboard.words.values import Json, ToolCall


def known_tools(workspace: Path) -> dict[str, Known]:
    """What is known of each tool of the runtime."""
    specs = (tool.spec for tool in all_tools({}, workspace).values())
    return {spec.name: Known(spec.effect, _texts(spec.input_schema), spec.destructive) for spec in specs}


def _texts(schema: Json) -> frozenset[str]:
    return frozenset(name for name, of in schema.get("properties", {}).items() if of.get("type") == "string")


def sandbox_level(workspace: Path) -> int:
    """The best level (0 to 3) that this machine can put round commands: what a person at the terminal gets."""
    return choose(None, examine(workspace, os.environ), (), attended=True, any_level=True).level


class Explaining:
    """The judge of one workspace. Raises `WorkspaceUnusable` for a folder that is not there."""

    def __init__(self, workspace: Path, force: InForce | None = None) -> None:
        """`force`: what holds beside the rules of a call: programs of the floor, trust in git's settings."""
        places = find_places(workspace, writable=False)
        self.known = known_tools(places.workspace)
        level = cache(lambda: sandbox_level(places.workspace))
        floor = None if force is None else force.floor
        self._explainer = Explainer(places.workspace, (places.state, places.config), self.known, floor, level)
        if force is not None:
            self._explainer.git_trusted = force.git

    def judge(self, call: GivenCall) -> Judged:
        """What would be said of a call. Raises `Misread` for a folder that cannot be one."""
        return self._explainer.judge(call)

    def line(self, line: bytes) -> Verdict:
        """What would be said of the call on a line of JSON. Never raises: what cannot be read is denied."""
        try:
            return self.judge(read_line(line, self.known)).verdict
        except Misread as wrong:
            return Verdict("deny", "input", f"the call cannot be read: {wrong}")
        except Exception as bug:  # noqa: BLE001  whoever feeds thousands of lines gets an answer to each of them
            return Verdict("deny", "bug", f"a bug of ours: {type(bug).__name__}: {bug}"[:300])


@dataclass(frozen=True, slots=True)
class InForce:
    """What would hold in a session that is begun now."""

    places: Places
    loaded: Loaded
    trusted: bool
    agents: Mapping[str, tuple[Mode, PermissionRules]]
    """Of each agent type: its mode, and its rules beside those of all. What the lead starts has no more than it."""
    hooks: HookRegistry
    git: Callable[[str], bool]
    """Whether a person trusted what git's settings of the repository at a folder run."""
    inert: str = ""
    """What of the workspace does not count, since nobody trusted it: a line for a person."""

    @property
    def floor(self) -> Floor:
        """The programs that are never run or always asked for."""
        permission = self.loaded.settings.permission
        return Floor(frozenset(permission.never), frozenset(permission.always_ask), permission.classic_dd)

    def rights(self, agent_type: str) -> tuple[Mode, GivenRules]:
        """The mode and all rules of an agent of this type. Raises `UsageError` with the types that there are."""
        if agent_type not in self.agents:
            raise UsageError(f"there is no agent type {agent_type!r}; there are: {', '.join(self.agents)}")
        mode, own = self.agents[agent_type]
        return mode, GivenRules(
            allow=(*self._of_all("allow"), *parse_rules(own.allow, f"permission.agents.{agent_type}")),
            ask=(*self._of_all("ask"), *parse_rules(own.ask, f"permission.agents.{agent_type}")),
            deny=(*self._of_all("deny"), *parse_rules(own.deny, f"permission.agents.{agent_type}")),
        )

    def _of_all(self, kind: str) -> Sequence[Rule]:
        texts: Sequence[str] = getattr(self.loaded.settings.permission, kind)
        return parse_rules(texts, f"permission.{kind}", self.loaded.rule_bases(kind))

    def hooks_of(self, call: GivenCall, agent_type: str) -> Sequence[str]:
        """The hooks that would be asked before the call, in their order."""
        folder = str(self.places.workspace / call.folder)
        by = Caller(agent_type=agent_type, permission_mode=call.mode, folder=folder)
        event = PreToolUse(ToolCall(id="", use_id="", name=call.tool, input=dict(call.input)), by)
        return [one.by for one in self.hooks.about(event)]


def in_force(workspace: Path, *, trust: bool = False) -> InForce:
    """Read settings, agent types and hooks. `trust`: as if the workspace were trusted.

    Raises `SettingsError`, `WorkspaceUnusable`.
    """
    places = find_places(workspace, writable=False)
    found = standing(places.workspace, places.config)
    found = replace(found, how="flag") if trust else found
    trusted, brought = found.trusted, found.brought
    loaded = load_settings(os.environ, workspace=places.workspace, trusted=trusted, brought=brought)
    files = FilePlaces(places.workspace, places.config, Path.home(), trusted=trusted, brought=brought)
    definitions = load_agents(files).items
    hooks = fill_registry(loaded, places.workspace, dict(os.environ), trusted=trusted, brought=brought)
    add_front_matter(hooks, loaded, files, definitions.values())
    return InForce(places, loaded, trusted, _rights(definitions, loaded), hooks, found.git, found.inert)


def _rights(definitions: Mapping[str, AgentFile], loaded: Loaded) -> dict[str, tuple[Mode, PermissionRules]]:
    permission = loaded.settings.permission
    lead: tuple[Mode, PermissionRules] = (permission.mode, PermissionRules())
    found: dict[str, tuple[Mode, PermissionRules]] = {}
    for name in sorted(definitions, key=lambda each: each != "lead"):
        mine = permission.agents.get(name, ProfileSettings())
        asked = mine.mode or definitions[name].permission_mode
        if name == "lead":
            lead = (asked or permission.mode, mine.rules)
        found[name] = lead if name == "lead" else (within(lead[0], asked), inherited(lead[1], mine.rules))
    return found
