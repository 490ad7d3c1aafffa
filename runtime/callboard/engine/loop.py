"""The loop of an agent's life; read this first. `live` begins each step that `decide` returns, until the life is over.

The loop decides nothing and never does long work. Each step starts an operation in the agent's task group
(`callboard.engine.step_handlers`). The end of an operation is an event, which is journalled before it changes the state
(`record`). So an agent receives mail, interrupts and answers even while a tool runs for ten minutes.
"""

from __future__ import annotations

from callboard.core.agent.decide import decide
from callboard.engine.agent_runtime import AgentRuntime
from callboard.engine.facts import facts_of
from callboard.types.steps import LifeDone


async def live(agent: AgentRuntime) -> LifeDone:
    """Run an agent's life until `decide` returns `LifeDone`. The agent holds its lock, except between turns."""
    with agent.lock:
        while True:
            step = decide(agent.state, facts_of(agent.runtime, agent.state, agent.running_operations()))
            if isinstance(step, LifeDone):
                return step
            await agent.begin(step)
