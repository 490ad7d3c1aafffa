"""Choice of the fallback model when the current one fails. Pure.

The next model of the chain takes over. A model that cannot meet the next demand is skipped, and reported by name with
the reason:

- window: the conversation and the requested output do not fit into it;
- max output: a reply was cut, and the model cannot write as much as is requested since then (before that, a lower
  maximum only lowers the request);
- tools: the agent has tools, and the model cannot call tools.

Thinking is never a reason: the request to a model leaves out the thinking of other models, and all thinking if the
model accepts none (`core.context.view.messages`).
"""

from __future__ import annotations

from callboard.types.agent_spec import AgentSpec, ModelLimits
from callboard.types.lazy_dataclass import dataclass

TAKES_NONE = "-"
"""Placeholder for a model that accepts no thinking blocks of any model: no model has this name."""


@dataclass(frozen=True, slots=True)
class ModelDemand:
    """Demands of the next call on the model that makes it."""

    tokens: int = 0
    """Tokens of the whole request: system prompt, tools, messages."""
    output: int = 0
    """Output tokens to ask for."""
    raised: bool = False
    """True if the output limit was raised after a reply was cut."""


@dataclass(frozen=True, slots=True)
class FallbackModel:
    """The model that takes over; `model` is empty if none can."""

    model: str = ""
    skipped: tuple[str, ...] = ()
    """`name: reason` of the models that cannot."""


def first_model(spec: AgentSpec) -> str:
    """Return the model that the agent uses unless another one took over: that of plan mode in plan mode."""
    return spec.plan_model if spec.plan_model and spec.permission_mode == "plan" else spec.model


def chain_of(spec: AgentSpec) -> tuple[str, ...]:
    """Return the first model and its fallbacks, without duplicates."""
    return tuple(dict.fromkeys((first_model(spec), spec.model, *spec.fallback_models)))


def reader_of(spec: AgentSpec, model: str) -> str:
    """Return the model whose thinking may be sent to `model`: the model itself, or `TAKES_NONE`."""
    return model if spec.limits_of(model).thinking else TAKES_NONE


def next_model(in_use: str, spec: AgentSpec, demand: ModelDemand) -> FallbackModel:
    """Return the next model of the chain after the current one that can take over."""
    chain = chain_of(spec)
    skipped: list[str] = []
    for name in chain[chain.index(in_use) + 1 :] if in_use in chain else ():
        reason = unfit(spec.limits_of(name), demand, needs_tools=bool(spec.tools))
        if not reason:
            return FallbackModel(name, tuple(skipped))
        skipped.append(f"{name}: {reason}")
    return FallbackModel("", tuple(skipped))


def unfit(limits: ModelLimits, demand: ModelDemand, *, needs_tools: bool) -> str:
    """Return the reason why a model with these limits cannot take over; empty if it can."""
    if needs_tools and not limits.tools:
        return "it cannot call tools"
    if demand.raised and limits.max_output < demand.output:
        return f"it writes {limits.max_output:,} tokens at most, and the reply needs more than it was cut at"
    whole = demand.tokens + min(demand.output, limits.max_output)
    if whole > limits.window:
        return f"its window of {limits.window:,} tokens is too small for {whole:,}"
    return ""
