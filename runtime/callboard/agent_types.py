"""The agent types of a session, and how the spec of an agent is made of one: what its file asks for, within what the
settings and its parent grant."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import reduce
from types import MappingProxyType
from typing import cast

from callboard.adapters.agent_files import AgentFile, read_name
from callboard.assembly import Chosen
from callboard.core.agent_listing import fitted
from callboard.core.budget.tree import narrower
from callboard.core.permission.grammar import left_of, whole_tools
from callboard.core.permission.modes import inherited, within
from callboard.core.skills.substitution import filled
from callboard.core.team.moving import worktree_in_use
from callboard.core.toolset import ALL_TOOLS, MEMORY, normalised, our_names, tools_for
from callboard.ports.tool import Skills
from callboard.settings import Loaded, pipeline_of
from callboard.words.errors import SettingsError, ToolRefused, UnknownModel, UsageError
from callboard.words.settings_model import AskSettings, ProfileSettings
from callboard.words.specs import AgentSpec, Limits, ModelLimits, PermissionRules
from callboard.words.values import Budget, Json

KINDS = ("lead", "teammate", "subagent")
COMPATIBLE_TYPES: Mapping[str, str] = MappingProxyType(
    {"general-purpose": "general", "Explore": "explore", "Plan": "plan"}
)
"""Names of types that files written for Claude Code call, and ours that do the same; a file of that name wins."""
FAMILIES = ("opus", "sonnet", "haiku", "fable")
"""Aliases of models: the newest of that name."""
LONGEST_SKILL = 60_000
"""Characters of a skill that stands in an agent's instructions from the start; the rest is there to be loaded."""


class LiveTypes(Mapping[str, AgentFile]):
    """The agent types as they are now: what is looked up is what the files said last."""

    def __init__(self, definitions: Mapping[str, AgentFile]) -> None:
        self._now = dict(definitions)

    def __getitem__(self, name: str) -> AgentFile:
        return self._now[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._now)

    def __len__(self) -> int:
        return len(self._now)

    def become(self, definitions: Mapping[str, AgentFile]) -> None:
        """From here on these are the types; agents that are at work stay as they began."""
        self._now = dict(definitions)


@dataclass(frozen=True, slots=True)
class AgentTypes:
    """The agent types of a session, and how a spec is made of one."""

    definitions: Mapping[str, AgentFile]
    loaded: Loaded
    chosen: Chosen
    attended: bool
    answerable: bool = False
    """Nobody sits there, but somebody may come and answer."""
    skills: Skills | None = None
    """Where the skills are that a type has from the start; None: there are none."""
    environ: Mapping[str, str] = field(default_factory=lambda: os.environ)
    """For `CLAUDE_CODE_SUBAGENT_MODEL` and the models that aliases stand for."""

    def __post_init__(self) -> None:
        for name in self.loaded.settings.context.pipelines:
            if name not in self.definitions:
                words = f"there is no agent type {name!r}; there are: {', '.join(self.definitions)}"
                raise SettingsError(words, self.loaded.place(("context", "pipelines", name)))
        for name in self.loaded.settings.permission.agents:
            if name not in self.definitions:
                words = f"there is no agent type {name!r}; there are: {', '.join(self.definitions)}"
                raise SettingsError(words, self.loaded.place(("permission", "agents", name)))
        for name in self.loaded.settings.budgets:
            if name not in {*self.definitions, *KINDS}:
                words = f"there is no agent type or kind {name!r}; there are: {', '.join({*self.definitions, *KINDS})}"
                raise SettingsError(words, self.loaded.place(("budgets", name)))

    def budget_of(self, agent_type: str, kind: str) -> Budget:
        """What the settings grant an agent of that type and kind."""
        budgets = self.loaded.settings.budgets
        found = [budgets[name].value() for name in (agent_type, kind) if name in budgets]
        return reduce(narrower, found, Budget())

    def descriptions(self, lead: str = "lead") -> dict[str, str]:
        """What the model reads of the types that a lead of type `lead` may spawn."""
        may = self._may_spawn(lead)
        return fitted({name: one.description for name, one in self.definitions.items() if name in may})

    def _may_spawn(self, by: str) -> Sequence[str]:
        """The types that a lead of type `by` may start."""
        definition = self.definitions.get(by)
        bound = definition.may_spawn if definition is not None else None
        named = None if bound is None else {COMPATIBLE_TYPES.get(one, one) for one in bound} | set(bound)
        return [one for one in self.definitions if one != "lead" and (named is None or one in named)]

    def lead(self, agent_type: str, denied: Sequence[str] = (), *, model_chosen: bool = True) -> AgentSpec:
        """The spec of a session's lead. `model_chosen`: a person named the model, so that of the type does not count.
        Raises `UsageError` for an unknown type."""
        definition = self.definitions.get(agent_type)
        if definition is None:
            raise UsageError(f"there is no agent type {agent_type!r}; there are: {', '.join(self.definitions)}")
        wanted = None if model_chosen else definition.model
        model, models = self._model(wanted, self.chosen.name, self.chosen.limits)
        settings = self.loaded.settings
        mine, rules = self._rights_of(agent_type, PermissionRules())
        mode = mine.mode or definition.permission_mode or settings.permission.mode
        wanted = definition.tools
        if wanted is not None and definition.memory:
            wanted = (*wanted, *MEMORY)
        tools = tools_for("lead", wanted, [*definition.denied, *denied], plan_mode=mode == "plan").names
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
        """The spec of an agent that another one starts. Raises `ToolRefused` with the types that there are."""
        may = self._may_spawn(parent.agent_type if parent.kind == "lead" else "")
        known = self._known(agent_type)
        if known not in may:
            there = "may not be started by you" if known in self.definitions else "there is no such type"
            raise ToolRefused(f"agent_type: {agent_type!r}: {there}; there are: {', '.join(may)}")
        agent_type, definition = known, self.definitions[known]
        model, models = self._model_of(definition, parent)
        settings = self.loaded.settings
        kind = "teammate" if agent_type == "teammate" else "subagent"
        mine, rules = self._rights_of(agent_type, parent.rules)
        steps = definition.max_turns or (None if kind == "teammate" else settings.limits.subagent_steps)
        return self._spec(
            definition,
            name=name,
            kind=kind,
            tools=left_of(_named(definition), rules.deny),
            permission_mode=within(parent.permission_mode, mine.mode or definition.permission_mode),
            rules=rules,
            limits=Limits(steps=steps, seconds=settings.limits.seconds),
        ).model_copy(
            update={
                "parent": parent.name,
                "model": model,
                "models": models,
                **({} if model == parent.model else {"fallback_models": (parent.model, *self.chosen.fallbacks)}),
                "folder": parent.folder,  # it works where its parent does, unless it is given a place of its own
                "worktree": worktree_in_use(parent),
            }
        )

    def _known(self, agent_type: str) -> str:
        """The name of a type as we write it: a file's own, ours for a compatible one, or the same in small letters."""
        if agent_type in self.definitions or agent_type in COMPATIBLE_TYPES:
            return agent_type if agent_type in self.definitions else COMPATIBLE_TYPES[agent_type]
        small = read_name(agent_type)
        return small if small in self.definitions else agent_type

    def _ask_deadline(self, said: float | None) -> float | None:
        """Where nobody sits there nothing waits for ever: where the settings say so, as long as by default."""
        if self.attended or (self.answerable and said is not None):
            return said
        return AskSettings().deadline if self.answerable else 0

    def _rights_of(self, agent_type: str, parent: PermissionRules) -> tuple[ProfileSettings, PermissionRules]:
        """What the settings say of a type, and the rules of its agents: with the tools that nobody has at all."""
        permission = self.loaded.settings.permission
        mine = permission.agents.get(agent_type, ProfileSettings())
        nobodys = PermissionRules(deny=whole_tools(permission.deny))
        return mine, inherited(parent, mine.rules).joined(nobodys)

    def _model_of(self, definition: AgentFile, parent: AgentSpec) -> tuple[str, dict[str, ModelLimits]]:
        """Its own model where it can be had, else its parent's, and the limits of all that it knows. Where its own is
        not there for the service either, it goes on with its parent's."""
        known = {**parent.models, **self.chosen.limits}  # also of what a person chose meanwhile
        wanted = self.environ.get("CLAUDE_CODE_SUBAGENT_MODEL") or definition.model
        return self._model(wanted, parent.model, known)

    def _model(
        self, wanted: str | None, otherwise: str, known: Mapping[str, ModelLimits]
    ) -> tuple[str, dict[str, ModelLimits]]:
        """The model that a type asks for, by id or alias; `otherwise` where none is, or its limits are not known."""
        name = wanted if not wanted or wanted in known else self._unaliased(wanted, otherwise, known)
        if not name or name == "inherit":
            return otherwise, dict(known)
        if name in known:
            return name, dict(known)
        try:
            return name, {**known, name: self.loaded.settings.limits_of(name)}
        except UnknownModel:
            return otherwise, dict(known)

    def _unaliased(self, wanted: str, otherwise: str, known: Mapping[str, ModelLimits]) -> str:
        """What an alias stands for: a model of that family that the session has, else what the environment says, else
        the newest one that is known. What plays a file has its own models only."""
        if wanted not in FAMILIES:
            return wanted if self.chosen.key else ""
        mine = next((one for one in (otherwise, *known) if f"-{wanted}-" in f"{one}-"), "")
        if mine or not self.chosen.key:
            return mine
        said = self.environ.get(f"ANTHROPIC_DEFAULT_{wanted.upper()}_MODEL", "").strip()
        newest = (one for one in self.loaded.settings.models if one.startswith(f"claude-{wanted}-"))
        return said or next(newest, "")

    def _with_skills(self, definition: AgentFile) -> str:
        """Its instructions, and behind them the text of the skills that it has from the start."""
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
            "plan_on_deadline": settings.plan.on_deadline if self.attended else "refuse",
            "plan_moved_base": settings.plan.moved_base,
            "stuck_after": settings.limits.stuck_after,
            "ask_deadline": self._ask_deadline(settings.ask.deadline),
        }
        return AgentSpec.model_validate({**base, **fields})


def _named(definition: AgentFile) -> tuple[str, ...]:
    """What its file allows and does not deny; who starts it narrows that to its kind."""
    denied = {name for entry in definition.denied for name in our_names(entry)}
    asked = ALL_TOOLS if definition.tools is None else {n for entry in definition.tools for n in our_names(entry)}
    return tuple(sorted((asked | (MEMORY if definition.memory else set[str]())) - denied))


def servers_of(definition: AgentFile) -> tuple[str, ...] | None:
    """The tools of MCP servers that a type has: as its tools list says; without one, of the servers that it names."""
    if definition.tools is not None or definition.mcp is not None or not definition.mcp_servers:
        return definition.mcp
    names: list[str] = []
    for entry in definition.mcp_servers:
        names += map(str, cast("dict[object, object]", entry)) if isinstance(entry, dict) else (str(entry),)
    return tuple(f"mcp__{normalised(name)}__*" for name in names)
