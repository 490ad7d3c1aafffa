"""Hooks round a summary: PreCompact may skip it, PostCompact is told of it.

One without which the next request would not fit is not theirs to skip: only cutting the oldest exchanges off would be
left. They are told of it all the same. A skipped one is no failure; it is asked for again when the view has changed.
"""

from __future__ import annotations

from callboard.core.context.counting import room
from callboard.core.context.view.conversation import held
from callboard.core.state import AgentState
from callboard.engine.loop import Agent
from callboard.engine.tools.calls import caller, notice
from callboard.words import events as ev
from callboard.words import hooks as hk
from callboard.words.context import SummaryWanted

NEEDED = "the conversation would not fit without it"


async def skipped(agent: Agent, wanted: SummaryWanted) -> bool:
    """Ask the hooks; what they would not have is recorded as skipped (True)."""
    event = hk.PreCompact(_trigger(wanted), wanted.focus, caller(agent))
    verdict = await agent.host.ports.hooks.fire(event)
    notice(agent, verdict.notices)
    if not verdict.block:
        return False
    why = f"{verdict.by or 'a hook'} would not have it: {verdict.block}"
    if _needed(agent.state, wanted):
        notice(agent, (f"{why}; {NEEDED}",))
        return False
    await agent.record(ev.SummaryFailed(at=agent.host.clock.now(), why=why, skipped=wanted))
    return True


def _needed(state: AgentState, wanted: SummaryWanted) -> bool:
    """What a person asked for by hand can wait; else it is needed where the view is over its room."""
    if wanted.trigger == "manual":
        return False
    return wanted.trigger == "reactive" or held(state.conversation) > room(state)


def summarised(agent: Agent, wanted: SummaryWanted, text: str) -> None:
    """The summary stands in the view: tell of it, and let SessionStart hooks have their word anew."""
    host, life = agent.host, (agent.name, agent.state.incarnation)
    if host.begun.get(life):
        host.begun[life] = False
    host.inform(hk.PostCompact(_trigger(wanted), text, caller(agent)))


def _trigger(wanted: SummaryWanted) -> hk.Trigger:
    return "manual" if wanted.trigger == "manual" else "auto"
