"""A skill that is started, by whomever: its text, the rights that it has for the turn, or the answer of the subagent
that it ran as."""

from __future__ import annotations

from callboard.core.names import subagent_suffix
from callboard.core.toolset import tools_for
from callboard.engine.asking.lifting import skill_lifts
from callboard.engine.loop import Agent
from callboard.engine.skills.filling import Begin, Started, text_of
from callboard.ports.tool import SkillUse
from callboard.words.errors import ToolRefused
from callboard.words.events import BudgetReached, SkillLoaded
from callboard.words.skills import SkillText
from callboard.words.specs import AgentSpec, PermissionRules
from callboard.words.values import Budget


async def use_skill(agent: Agent, call: str, name: str, arguments: str) -> SkillUse:
    """A skill that a model loads by a call of this id. Raises `ToolRefused`."""
    skill = agent.host.ports.skills.load(name)
    started = Started(skill, arguments, f"{call}.skill")
    if skill.fork and agent.state.me.kind != "subagent":
        return await run_fork(agent, started, call)
    text = "\n".join([*headed(skill), "", await text_of(agent, started) or "(it has no text)"])
    return SkillUse(text, (await loaded(agent, skill, text),))


def headed(skill: SkillText) -> list[str]:
    """The lines above a skill's text."""
    lines = [f"Skill {skill.name}, folder {skill.folder}"]
    return [*lines, f"Note: {skill.problem}"] if skill.problem else lines


async def loaded(agent: Agent, skill: SkillText, text: str) -> SkillLoaded:
    """The record that its text is in the conversation, with what it says of the turn's calls. A model that is not known
    to the session, or that is asked already, changes nothing."""
    host, me = agent.host, agent.state.me
    blob = await host.ports.store.put_blob(text.encode("utf-8", "surrogatepass"))
    return SkillLoaded(
        at=host.clock.now(),
        name=skill.name,
        digest=blob,
        text=blob,
        allowed=skill.allowed,
        disallowed=skill.disallowed,
        model=skill.model if skill.model in me.models else "",
        effort=skill.effort,
    )


async def run_fork(agent: Agent, started: Started, call: str, begin: Begin | None = None) -> SkillUse:
    """Run the skill as a subagent, or find the one that this call started; what it says in the end."""
    skill = started.skill
    prompt = await text_of(agent, started, begin)
    if not prompt:
        raise ToolRefused(f"/{skill.name}: it has no text, and a subagent needs a task")
    spec = _spec_of(agent, skill, call)
    assert agent.spawner is not None, "the supervisor gives every agent its spawner"
    granted = agent.spawner.grant(spec, Budget())
    if isinstance(granted, BudgetReached):
        raise ToolRefused(f"/{skill.name}: {granted.budget} has no room for another agent")
    outcome, text = await agent.spawner.subagent(granted, prompt, call=call)
    said = text.strip() or "(it said nothing)"
    if outcome != "done":
        said = f"[status: {outcome}] The subagent of the skill {skill.name} did not finish:\n{said}"
    return SkillUse(said, is_error=outcome != "done", data={"agent": spec.name, "outcome": outcome})


def _spec_of(agent: Agent, skill: SkillText, call: str) -> AgentSpec:
    """Of the type that the skill names, with its rules for as long as it lives, and never with more than its parent."""
    assert agent.spawner is not None, "the supervisor gives every agent its spawner"
    me = agent.state.me
    name = skill.agent[:40].replace(":", "-") + subagent_suffix(call)
    spec = agent.spawner.spec_for(skill.agent, name, me)
    rules = PermissionRules(allow=tuple(lift.rule for lift in skill_lifts(agent, skill.allowed)), deny=skill.disallowed)
    update: dict[str, object] = {
        "kind": "subagent",
        "parent": me.name,
        "role": f"the skill {skill.name}",
        "tools": tools_for("subagent", spec.tools).names,
        "rules": spec.rules.joined(rules),
        "plan_required": False,
        "claims_tasks": False,
    }
    if skill.model in me.models:
        update["model"] = skill.model
    if skill.effort:
        update["effort"] = skill.effort
    return spec.model_copy(update=update)
