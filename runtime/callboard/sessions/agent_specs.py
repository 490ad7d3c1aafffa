"""Agent types of a session, and the spec of an agent.

The spec has the fields of the agent's file, within the limits of the settings and its parent.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import field
from functools import reduce
from types import MappingProxyType
from typing import cast

from callboard.adapters.extensions.agents import AgentFile, read_name
from callboard.config.settings import LoadedSettings, pipeline_of
from callboard.core.agent.rules.worktree import worktree_in_use
from callboard.core.budgets.tree import narrower
from callboard.core.context.system_prompt import shorten_descriptions
from callboard.core.permissions.modes import inherit_rules, within
from callboard.core.permissions.rule_check import allowed_tools, denied_tools
from callboard.core.permissions.rule_match import readable_rules
from callboard.core.permissions.rules import names_tool
from callboard.core.skills.substitution import fill_placeholders
from callboard.core.team.worktrees import check_name
from callboard.core.tool_access import (
    ALL_TOOLS,
    MEMORY,
    ON_REQUEST,
    WEB_SEARCH,
    AgentKind,
    normalise_name,
    our_names,
    tools_for,
)
from callboard.ports.tool import Skills
from callboard.ports.worktrees import WorktreeActor, WorktreeKeeper
from callboard.sessions.compose import ModelSelection, search_by
from callboard.sessions.options import SessionOptions
from callboard.types.agent_spec import BYPASS, AgentSpec, Limits, ModelLimits, PermissionRules
from callboard.types.choices import choose, unknown
from callboard.types.errors import SettingsError, ToolRefused, UsageError
from callboard.types.lazy_dataclass import dataclass
from callboard.types.model_names import FAMILIES, newest_of
from callboard.types.records import Budget, Json
from callboard.types.settings import PlanSettings, ProfileSettings

KINDS = ("lead", "teammate", "subagent")
COMPATIBLE_TYPES: Mapping[str, str] = MappingProxyType(
    {"general-purpose": "general", "Explore": "explore", "Plan": "plan"}
)
"""Names of types in files written for Claude Code, and Callboard's equivalents; a file with that name takes
precedence."""
VENDOR_PREFIX = "claude-"
"""Prefix of models that the service may have, listed or not."""
_SUBAGENT_MODEL = "CLAUDE_CODE_SUBAGENT_MODEL"
LONGEST_SKILL = 60_000
"""Most characters of a skill in an agent's instructions from the start; the rest can be loaded."""


class LiveTypes(Mapping[str, AgentFile]):
    """Current agent types: a lookup finds the newest content of the files."""

    def __init__(self, definitions: Mapping[str, AgentFile]) -> None:
        self._now = dict(definitions)

    def __getitem__(self, name: str) -> AgentFile:
        return self._now[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._now)

    def __len__(self) -> int:
        return len(self._now)

    def replace_all(self, definitions: Mapping[str, AgentFile]) -> None:
        """Replace the types. Working agents keep the type with which they started."""
        self._now = dict(definitions)


@dataclass(frozen=True, slots=True)
class SpawnedSpec:
    """Spec of the newest agent of a type, and what it was made from."""

    definition: AgentFile
    parent: AgentSpec
    spec: AgentSpec


@dataclass(frozen=True, slots=True)
class AgentTypes:
    """Agent types of a session, and the making of a spec from one."""

    definitions: Mapping[str, AgentFile]
    loaded: LoadedSettings
    chosen: ModelSelection
    attended: bool
    answerable: bool = False
    """True if no person is present, but one may answer later."""
    skills: Skills | None = None
    """Source of the skills that a type has from the start; None for no skills."""
    voice: str = ""
    """Text on the manner of the lead's answers."""
    environ: Mapping[str, str] = field(default_factory=lambda: os.environ)
    """Environment with `CLAUDE_CODE_SUBAGENT_MODEL` and the models of aliases."""
    _newest: dict[tuple[str, AgentKind, str], SpawnedSpec] = field(
        init=False, compare=False, default_factory=dict[tuple[str, AgentKind, str], SpawnedSpec]
    )
    """Newest spec by type, kind, and model of the environment: agents of one reply differ in their names only."""

    def __post_init__(self) -> None:
        for name in self.loaded.settings.context.pipelines:
            if name not in self.definitions:
                message = unknown("agent type", name, self.definitions)
                raise SettingsError(message, self.loaded.place(("context", "pipelines", name)))
        for name in self.loaded.settings.permission.agents:
            if name not in self.definitions:
                message = unknown("agent type", name, self.definitions)
                raise SettingsError(message, self.loaded.place(("permission", "agents", name)))
        for name in self.loaded.settings.budgets:
            if name not in {*self.definitions, *KINDS}:
                message = unknown("agent type or kind", name, sorted({*self.definitions, *KINDS}))
                raise SettingsError(message, self.loaded.place(("budgets", name)))

    def budget_of(self, agent_type: str, kind: str) -> Budget:
        """Return the budget that the settings grant an agent of that type and kind."""
        budgets = self.loaded.settings.budgets
        budgets_of_agent = [budgets[name].value() for name in (agent_type, kind) if name in budgets]
        return reduce(narrower, budgets_of_agent, Budget())

    def descriptions(self, lead: str = "lead") -> dict[str, str]:
        """Return the descriptions, for the model, of the types that a lead of type `lead` may spawn."""
        may = self._may_spawn(lead)
        return shorten_descriptions(
            {name: definition.description for name, definition in self.definitions.items() if name in may}
        )

    def _may_spawn(self, by: str) -> Sequence[str]:
        """Return the types that a lead of type `by` may start."""
        definition = self.definitions.get(by)
        bound = definition.may_spawn if definition is not None else None
        named = None if bound is None else {COMPATIBLE_TYPES.get(name, name) for name in bound} | set(bound)
        return [name for name in self.definitions if name != "lead" and (named is None or name in named)]

    def lead(self, agent_type: str, denied: Sequence[str] = (), *, model_chosen: bool = True) -> AgentSpec:
        """Return the spec of a session's lead.

        `model_chosen`: the user named the model, which overrides that of the type. Raises `UsageError` for an unknown
        type.
        """
        agent_type = self._type_name(agent_type)
        definition = self.definitions.get(agent_type)
        if definition is None:
            raise UsageError(unknown("agent type", agent_type, self.definitions))
        own_model = None if model_chosen else definition.model
        model, models = self._model(own_model, self.chosen.name, self.chosen.limits)
        settings = self.loaded.settings
        profile, rules = self._rights_of(agent_type, PermissionRules())
        mode = profile.mode or definition.permission_mode or settings.permission.mode
        allowed = definition.tools
        if allowed is not None and definition.memory:
            allowed = (*allowed, *MEMORY)
        tools = tools_for("lead", allowed, [*definition.denied, *denied], plan_mode=mode == "plan").names
        limits = settings.limits
        steps = min((each for each in (limits.steps, definition.max_turns) if each is not None), default=None)
        instructions = "\n\n".join(filter(None, (self._with_skills(definition), self.voice)))
        return self._spec(
            definition,
            instructions=instructions,
            name="lead",
            kind="lead",
            tools=allowed_tools(tools, rules.deny),
            permission_mode=mode,
            rules=rules,
            limits=Limits(steps=steps, tokens=limits.tokens, seconds=limits.seconds),
            budget=narrower(definition.budget, self.budget_of(agent_type, "lead")),
            model=model,
            plan_model=settings.plan_model if own_model is None and settings.plan_model in models else None,
            models=models,
        )

    def spec_of_spawned(self, agent_type: str, name: str, parent: AgentSpec, kind: AgentKind) -> AgentSpec:
        """Return the spec of a teammate or a subagent that another agent starts.

        `limits.subagent_steps` limits the turns of a subagent whose file sets no `maxTurns`.

        Raises `ToolRefused`, with the known types, for an unknown type.
        """
        may = self._may_spawn(parent.agent_type if parent.kind == "lead" else "")
        type_name = self._type_name(agent_type)
        if type_name not in may:
            if type_name in self.definitions:
                raise ToolRefused(f"agent_type: {agent_type!r} may not be started by you: {choose(may)}")
            raise ToolRefused(f"agent_type: {unknown('type', agent_type, may)}")
        definition = self.definitions[type_name]
        key = (type_name, kind, self.environ.get(_SUBAGENT_MODEL, ""))
        newest = self._newest.get(key)
        # The text of a skill is read from its file each time.
        if newest is None or newest.definition is not definition or newest.parent is not parent or definition.skills:
            spec = self._spawned(type_name, name, parent, kind)
            newest = self._newest[key] = SpawnedSpec(definition, parent, spec)
        return newest.spec if newest.spec.name == name else newest.spec.model_copy(update={"name": name})

    def _spawned(self, agent_type: str, name: str, parent: AgentSpec, kind: AgentKind) -> AgentSpec:
        definition = self.definitions[agent_type]
        model, models = self._model_of(definition, parent)
        settings = self.loaded.settings
        profile, rules = self._rights_of(agent_type, parent.rules)
        steps = definition.max_turns or (None if kind == "teammate" else settings.limits.subagent_steps)
        return self._spec(
            definition,
            name=name,
            kind=kind,
            tools=allowed_tools(_tools_of(definition), rules.deny),
            permission_mode=within(parent.permission_mode, profile.mode or definition.permission_mode),
            rules=rules,
            limits=Limits(steps=steps, seconds=settings.limits.seconds),
        ).model_copy(
            update={
                "parent": parent.name,
                "read_only": parent.read_only or definition.read_only,
                "model": model,
                "models": models,
                **({} if model == parent.model else {"fallback_models": (parent.model, *self.chosen.fallbacks)}),
                "folder": parent.folder,  # the parent's folder, unless the agent gets its own
                "worktree": worktree_in_use(parent),
            }
        )

    def _type_name(self, agent_type: str) -> str:
        """Return the canonical name of a type.

        The name is that of a file, Callboard's for a compatible one, or the same in lower case.
        """
        if agent_type in self.definitions or agent_type in COMPATIBLE_TYPES:
            return agent_type if agent_type in self.definitions else COMPATIBLE_TYPES[agent_type]
        small = read_name(agent_type)
        return small if small in self.definitions else agent_type

    def _ask_deadline(self, deadline: float | None) -> float | None:
        """Return the deadline of a question; None: it waits until a person answers. 0 if nobody can."""
        return deadline if self.attended or self.answerable else 0

    def _plan_deadline(self, deadline: float | None) -> float | None:
        """Return the deadline of a plan. If nobody can answer, a plan never waits forever."""
        return deadline if self.attended or self.answerable or deadline is not None else PlanSettings().deadline

    def _rights_of(self, agent_type: str, parent: PermissionRules) -> tuple[ProfileSettings, PermissionRules]:
        """Return the settings of a type, and the rules of its agents.

        The rules include the denial of tools that no agent may use.
        """
        permission = self.loaded.settings.permission
        profile = permission.agents.get(agent_type, ProfileSettings())
        nobodys = PermissionRules(deny=denied_tools(permission.deny))
        return profile, inherit_rules(parent, profile.rules).joined(nobodys)

    def _model_of(self, definition: AgentFile, parent: AgentSpec) -> tuple[str, dict[str, ModelLimits]]:
        """Return the agent's own model if it is available, otherwise its parent's, and the limits of all its models."""
        limits = {**parent.models, **self.chosen.limits}  # includes models that a person has chosen since
        own_model = self.environ.get(_SUBAGENT_MODEL) or definition.model
        return self._model(own_model, parent.model, limits)

    def _model(
        self, model: str | None, otherwise: str, limits: Mapping[str, ModelLimits]
    ) -> tuple[str, dict[str, ModelLimits]]:
        """Return the model of a type, by id or alias, and the limits of all models.

        The model is `otherwise` if the type names none, or one that this service cannot have: files of public
        collections also name models of other vendors.
        """
        settings = self.loaded.settings
        name = model if not model or model in limits else self._resolved(model, otherwise, limits)
        if not name or name == "inherit":
            return otherwise, dict(limits)
        if name in limits:
            return name, dict(limits)
        if settings.is_listed(name) or name.startswith(VENDOR_PREFIX):
            return name, {**limits, name: settings.limits_of(name)}
        return otherwise, dict(limits)

    def _resolved(self, alias: str, otherwise: str, limits: Mapping[str, ModelLimits]) -> str:
        """Return the id of an alias: a model of that family in the session, or the one in the settings.

        A scenario has only its own models.
        """
        family = alias.lower()
        if family not in FAMILIES:
            return self.loaded.settings.model_id(alias) if self.chosen.key else ""
        newest = newest_of(family, (otherwise, *limits))
        if newest or not self.chosen.key:
            return newest
        named = self.loaded.settings.model_id(family)
        return "" if named in FAMILIES else named

    def _with_skills(self, definition: AgentFile) -> str:
        """Return the agent's instructions, followed by the text of the skills that it has from the start."""
        texts = [definition.instructions]
        for name in definition.skills if self.skills is not None else ():
            try:
                skill = self.skills.load(name) if self.skills else None
            except ToolRefused:  # reported when the files are read
                continue
            body = fill_placeholders(skill.body or "", "", skill.arguments, skill.variables)[0].strip() if skill else ""
            if len(body) > LONGEST_SKILL:
                body = f"{body[:LONGEST_SKILL]}\n[The rest is cut: load_skill {name} gives all of it.]"
            texts.append(f'<skill name="{name}">\n{body}\n</skill>')
        return "\n\n".join(text for text in texts if text)

    def _spec(self, definition: AgentFile, **fields: object) -> AgentSpec:
        settings = self.loaded.settings
        recovery = settings.recovery
        base: Json = {
            "agent_type": definition.name,
            "instructions": self._with_skills(definition),
            "budget": definition.budget,
            "own": () if definition.own is None and definition.tools is not None else definition.own,
            "isolation": definition.isolation,
            "read_only": definition.read_only,
            "background": definition.background,
            "effort": definition.effort,
            "memory": definition.memory,
            "mcp": servers_of(definition),
            "mcp_denied": definition.mcp_denied,
            "model": self.chosen.name,
            "fallback_models": self.chosen.fallbacks,
            "small_model": settings.small_model,
            "models": dict(self.chosen.limits),
            "output_tokens": recovery.output_tokens,
            "output_escalated": recovery.output_escalated,
            "attempts": recovery.attempts if self.attended else recovery.unattended_attempts,
            "max_wait": recovery.max_wait,
            "first_byte": recovery.first_byte,
            "idle": recovery.idle,
            "total": recovery.total,
            "pipeline": pipeline_of(settings, definition.name),
            "context_limit": settings.context.limit,
            "todo_reminder_steps": settings.context.todo_reminder_steps,
            "react_limit": recovery.react_limit,
            "after_compact": settings.context.after_compact,
            "plan_approver": settings.plan.approver,
            "plan_deadline": self._plan_deadline(settings.plan.deadline),
            "plan_on_deadline": settings.plan.on_deadline,
            "plan_moved_base": settings.plan.moved_base,
            "stuck_after": settings.limits.stuck_after,
            "ask_deadline": self._ask_deadline(settings.ask.deadline),
        }
        spec = AgentSpec.model_validate({**base, **fields})
        return spec if self._searches(spec) else spec.model_copy(update={"tools": without_search(spec.tools)})

    def _searches(self, spec: AgentSpec) -> bool:
        """Return True if the web can be searched for an agent.

        The service searches while it replies, when no one can be asked: so a rule has to allow it before.
        """
        by = search_by(self.loaded, self.chosen)
        if by != "service":
            return bool(by)
        permission = self.loaded.settings.permission
        asked = _names_search((*permission.ask, *spec.rules.ask))
        allowed = spec.permission_mode == BYPASS or _names_search((*permission.allow, *spec.rules.allow))
        return allowed and not asked


async def lead_of(
    types: AgentTypes, options: SessionOptions, keeper: WorktreeKeeper, session: str, *, forked: str
) -> AgentSpec:
    """Return the spec of a new session's lead. A person's choice of model and effort overrides its file.

    `forked`: worktree of the session of which the new one is a fork. The fork works in it, unless the options name one.

    Raises `UsageError` for an unknown type, and if it cannot have the worktree.
    """
    chosen = options.lead
    agent_type = chosen.agent_type or "lead"
    try:
        spec = types.lead(agent_type, chosen.disallowed, model_chosen=options.model.name is not None)
    except UsageError as error:
        if not options.identity.fork:
            raise
        advice = "define it as that session did (--agents, --plugin), or choose another with --agent lead"
        raise UsageError(f"{error}. A fork begins with the type of the session's lead: {advice}") from error
    update: dict[str, object] = {}
    if effort := chosen.effort or types.loaded.settings.effort:
        update["effort"] = effort
    if chosen.thinking is not None:
        update["thinking"] = chosen.thinking
    name = ""
    if chosen.worktree is not None:
        name = await _worktree_of_lead(chosen.worktree, keeper, session)
    elif forked:
        name = await _worktree_of_fork(forked, keeper)
    if name:
        update |= {"worktree": name, "folder": str(keeper.path(name))}
    return spec.model_copy(update=update)


async def _worktree_of_lead(requested: str, keeper: WorktreeKeeper, session: str) -> str:
    """Return the name of the worktree with this name, which exists now; of a new one if the name is empty."""
    try:
        if requested:
            check_name(requested)
        name = requested or await keeper.name_for("lead", "")
        if name in {tree.name for tree in await keeper.worktrees()}:
            await keeper.open(name)
        else:
            await keeper.create(name, WorktreeActor("person", session, "", "for lead"))
    except ToolRefused as refused:
        raise UsageError(f"--worktree: {refused}") from refused
    return name


async def _worktree_of_fork(name: str, keeper: WorktreeKeeper) -> str:
    """Return the worktree of the forked session, whose folder exists now."""
    try:
        await keeper.open(name)
    except ToolRefused as refused:
        raise UsageError(
            f"the forked session works in a worktree: {refused}: let the fork work in another one (--worktree NAME)"
        ) from refused
    return name


def without_search(tools: Sequence[str]) -> tuple[str, ...]:
    """Return the tools without that for searching the web."""
    return tuple(name for name in tools if name != WEB_SEARCH)


def _names_search(texts: Iterable[str]) -> bool:
    """Return True if one of these rules is about searching the web."""
    return any(names_tool(rule, WEB_SEARCH, allow=True) for rule in readable_rules(texts))


def search_notes(loaded: LoadedSettings, chosen: ModelSelection, types: Mapping[str, AgentFile]) -> tuple[str, ...]:
    """Return a line if agent types name the tool for searching the web, and their agents do not get it."""
    named = sorted(name for name, each in types.items() if WEB_SEARCH in {*_tools_of(each)} and each.tools is not None)
    by = search_by(loaded, chosen)
    permission = loaded.settings.permission
    if not named or by == "command" or (by == "service" and _names_search(permission.allow)):
        return ()
    reason = (
        "the model service searches while it replies, so no one can be asked: allow it with the rule WebSearch"
        if by == "service"
        else "set search.command, or search.by: service if your model service can search"
    )
    return (f"WebSearch is not offered to agents of the type {', '.join(named[:5])}: {reason} (docs/tools.md)",)


def _tools_of(definition: AgentFile) -> tuple[str, ...]:
    """Return the tools that an agent's file allows and does not deny; the caller narrows them to the agent's kind."""
    denied = {name for entry in definition.denied for name in our_names(entry)}
    every = ALL_TOOLS - ON_REQUEST
    allowed = every if definition.tools is None else {name for entry in definition.tools for name in our_names(entry)}
    return tuple(sorted((allowed | (MEMORY if definition.memory else set[str]())) - denied))


def servers_of(definition: AgentFile) -> tuple[str, ...] | None:
    """Return the tools of MCP servers for a type.

    The tools are those in the type's tools list, or without one, those of the servers that the type names.
    """
    if definition.tools is not None or definition.mcp is not None or not definition.mcp_servers:
        return definition.mcp
    names: list[str] = []
    for entry in definition.mcp_servers:
        names += map(str, cast("dict[object, object]", entry)) if isinstance(entry, dict) else (str(entry),)
    return tuple(f"mcp__{normalise_name(name)}__*" for name in names)
