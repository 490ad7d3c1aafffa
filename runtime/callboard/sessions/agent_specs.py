"""Agent types of a session, and the spec of an agent: the requests of its file, within the limits of the settings and
its parent."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import reduce
from types import MappingProxyType
from typing import cast

from callboard.adapters.extensions.agents import AgentFile, read_name
from callboard.config.settings import LoadedSettings, pipeline_of
from callboard.core.agent.rules.worktree import worktree_in_use
from callboard.core.budgets.tree import narrower
from callboard.core.context.system_prompt import fitted
from callboard.core.permissions.modes import inherited, within
from callboard.core.permissions.rule_check import left_of, whole_tools
from callboard.core.skills.substitution import filled
from callboard.core.tool_access import ALL_TOOLS, MEMORY, normalised, our_names, tools_for
from callboard.ports.tool import Skills
from callboard.sessions.compose import Chosen
from callboard.types.agent_spec import AgentSpec, Limits, ModelLimits, PermissionRules
from callboard.types.errors import SettingsError, ToolRefused, UsageError
from callboard.types.model_names import FAMILIES, newest_of
from callboard.types.records import Budget, Json
from callboard.types.settings import AskSettings, ProfileSettings

KINDS = ("lead", "teammate", "subagent")
COMPATIBLE_TYPES: Mapping[str, str] = MappingProxyType(
    {"general-purpose": "general", "Explore": "explore", "Plan": "plan"}
)
"""Names of types in files written for Claude Code, and Callboard's equivalents; a file with that name takes
precedence."""
VENDOR_PREFIX = "claude-"
"""Prefix of models that the service may have, listed or not."""
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

    def become(self, definitions: Mapping[str, AgentFile]) -> None:
        """Replace the types. Working agents keep the type with which they started."""
        self._now = dict(definitions)


@dataclass(frozen=True, slots=True)
class AgentTypes:
    """Agent types of a session, and the making of a spec from one."""

    definitions: Mapping[str, AgentFile]
    loaded: LoadedSettings
    chosen: Chosen
    attended: bool
    answerable: bool = False
    """True if no person is present but one may come and answer."""
    skills: Skills | None = None
    """Source of the skills that a type has from the start; None: there are none."""
    environ: Mapping[str, str] = field(default_factory=lambda: os.environ)
    """Environment with `CLAUDE_CODE_SUBAGENT_MODEL` and the models of aliases."""

    def __post_init__(self) -> None:
        for name in self.loaded.settings.context.pipelines:
            if name not in self.definitions:
                message = f"there is no agent type {name!r}; there are: {', '.join(self.definitions)}"
                raise SettingsError(message, self.loaded.place(("context", "pipelines", name)))
        for name in self.loaded.settings.permission.agents:
            if name not in self.definitions:
                message = f"there is no agent type {name!r}; there are: {', '.join(self.definitions)}"
                raise SettingsError(message, self.loaded.place(("permission", "agents", name)))
        for name in self.loaded.settings.budgets:
            if name not in {*self.definitions, *KINDS}:
                message = (
                    f"there is no agent type or kind {name!r}; there are: {', '.join({*self.definitions, *KINDS})}"
                )
                raise SettingsError(message, self.loaded.place(("budgets", name)))

    def budget_of(self, agent_type: str, kind: str) -> Budget:
        """Return the budget that the settings grant an agent of that type and kind."""
        budgets = self.loaded.settings.budgets
        budgets_of_agent = [budgets[name].value() for name in (agent_type, kind) if name in budgets]
        return reduce(narrower, budgets_of_agent, Budget())

    def descriptions(self, lead: str = "lead") -> dict[str, str]:
        """Return the descriptions, for the model, of the types that a lead of type `lead` may spawn."""
        may = self._may_spawn(lead)
        return fitted({name: definition.description for name, definition in self.definitions.items() if name in may})

    def _may_spawn(self, by: str) -> Sequence[str]:
        """Return the types that a lead of type `by` may start."""
        definition = self.definitions.get(by)
        bound = definition.may_spawn if definition is not None else None
        named = None if bound is None else {COMPATIBLE_TYPES.get(name, name) for name in bound} | set(bound)
        return [name for name in self.definitions if name != "lead" and (named is None or name in named)]

    def lead(self, agent_type: str, denied: Sequence[str] = (), *, model_chosen: bool = True) -> AgentSpec:
        """Return the spec of a session's lead. `model_chosen`: the user named the model, which overrides that of the
        type. Raises `UsageError` for an unknown type."""
        definition = self.definitions.get(agent_type)
        if definition is None:
            raise UsageError(f"there is no agent type {agent_type!r}; there are: {', '.join(self.definitions)}")
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
        return self._spec(
            definition,
            name="lead",
            kind="lead",
            tools=left_of(tools, rules.deny),
            permission_mode=mode,
            rules=rules,
            limits=Limits(steps=limits.steps, tokens=limits.tokens, seconds=limits.seconds),
            budget=narrower(definition.budget, self.budget_of(agent_type, "lead")),
            model=model,
            models=models,
        )

    def spawned(self, agent_type: str, name: str, parent: AgentSpec) -> AgentSpec:
        """Return the spec of an agent that another one starts. Raises `ToolRefused`, with the known types, for an
        unknown type."""
        may = self._may_spawn(parent.agent_type if parent.kind == "lead" else "")
        type_name = self._type_name(agent_type)
        if type_name not in may:
            fault = "may not be started by you" if type_name in self.definitions else "there is no such type"
            raise ToolRefused(f"agent_type: {agent_type!r}: {fault}; there are: {', '.join(may)}")
        agent_type = type_name
        definition = self.definitions[type_name]
        model, models = self._model_of(definition, parent)
        settings = self.loaded.settings
        kind = "teammate" if agent_type == "teammate" else "subagent"
        profile, rules = self._rights_of(agent_type, parent.rules)
        steps = definition.max_turns or (None if kind == "teammate" else settings.limits.subagent_steps)
        return self._spec(
            definition,
            name=name,
            kind=kind,
            tools=left_of(_named(definition), rules.deny),
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
                "folder": parent.folder,  # it works where its parent does, unless it is given a place of its own
                "worktree": worktree_in_use(parent),
            }
        )

    def _type_name(self, agent_type: str) -> str:
        """Return the canonical name of a type: that of a file, Callboard's for a compatible one, or the same in lower
        case."""
        if agent_type in self.definitions or agent_type in COMPATIBLE_TYPES:
            return agent_type if agent_type in self.definitions else COMPATIBLE_TYPES[agent_type]
        small = read_name(agent_type)
        return small if small in self.definitions else agent_type

    def _ask_deadline(self, deadline: float | None) -> float | None:
        """Return the deadline of a question. An unattended session never waits forever: if the settings say so, the
        default deadline applies."""
        if self.attended or (self.answerable and deadline is not None):
            return deadline
        return AskSettings().deadline if self.answerable else 0

    def _rights_of(self, agent_type: str, parent: PermissionRules) -> tuple[ProfileSettings, PermissionRules]:
        """Return the settings of a type, and the rules of its agents, including the denial of tools that no agent may
        use."""
        permission = self.loaded.settings.permission
        profile = permission.agents.get(agent_type, ProfileSettings())
        nobodys = PermissionRules(deny=whole_tools(permission.deny))
        return profile, inherited(parent, profile.rules).joined(nobodys)

    def _model_of(self, definition: AgentFile, parent: AgentSpec) -> tuple[str, dict[str, ModelLimits]]:
        """Return the agent's own model if it is available, otherwise its parent's, and the limits of all its models."""
        limits = {**parent.models, **self.chosen.limits}  # also of what a person chose meanwhile
        own_model = self.environ.get("CLAUDE_CODE_SUBAGENT_MODEL") or definition.model
        return self._model(own_model, parent.model, limits)

    def _model(
        self, model: str | None, otherwise: str, limits: Mapping[str, ModelLimits]
    ) -> tuple[str, dict[str, ModelLimits]]:
        """Return the model of a type, by id or alias; `otherwise` if it names none, or one that this service cannot
        have: files of public collections also name models of other vendors."""
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
        """Return the id of an alias: a model of that family in the session, or the one in the settings. A scenario has
        only its own models."""
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
            except ToolRefused:  # told when the files are read
                continue
            body = filled(skill.body or "", "", skill.arguments, skill.variables)[0].strip() if skill else ""
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
            "plan_deadline": settings.plan.deadline,
            "plan_on_deadline": settings.plan.on_deadline,
            "plan_moved_base": settings.plan.moved_base,
            "stuck_after": settings.limits.stuck_after,
            "ask_deadline": self._ask_deadline(settings.ask.deadline),
        }
        return AgentSpec.model_validate({**base, **fields})


def _named(definition: AgentFile) -> tuple[str, ...]:
    """Return the tools that an agent's file allows and does not deny; the caller narrows them to the agent's kind."""
    denied = {name for entry in definition.denied for name in our_names(entry)}
    allowed = ALL_TOOLS if definition.tools is None else {n for entry in definition.tools for n in our_names(entry)}
    return tuple(sorted((allowed | (MEMORY if definition.memory else set[str]())) - denied))


def servers_of(definition: AgentFile) -> tuple[str, ...] | None:
    """Return the tools of MCP servers for a type: those in its tools list, or without one, those of the servers that it
    names."""
    if definition.tools is not None or definition.mcp is not None or not definition.mcp_servers:
        return definition.mcp
    names: list[str] = []
    for entry in definition.mcp_servers:
        names += map(str, cast("dict[object, object]", entry)) if isinstance(entry, dict) else (str(entry),)
    return tuple(f"mcp__{normalised(name)}__*" for name in names)
