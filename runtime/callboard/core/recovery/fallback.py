"""Choice of the model in the chain that takes over when the current one fails. Pure.

A model is skipped, by name and with the reason, if it cannot meet the next demand:

- window: the conversation and the requested output do not fit into it;
- max output: a reply was cut, and the model cannot write as much as is requested since then (before that, a lower
  maximum only lowers the request);
- tools: the agent has tools and the model can call none.

Thinking is never a reason: the thinking of another model is left out of the request, and all thinking for a model that
accepts none (`context.view.sending`).
"""

from __future__ import annotations

from dataclasses import dataclass

from callboard.types.agent_spec import AgentSpec, ModelLimits

TAKES_NONE = "-"
"""Placeholder for a model that accepts no thinking blocks of any model: no model has this name."""


@dataclass(frozen=True, slots=True)
class Demand:
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


def chain_of(spec: AgentSpec) -> tuple[str, ...]:
    """Return the first model and its fallbacks, without duplicates."""
    return tuple(dict.fromkeys((spec.model, *spec.fallback_models)))


def reader_of(spec: AgentSpec, model: str) -> str:
    """Return the model whose thinking may be sent to `model`: the model itself, or `TAKES_NONE`."""
    return model if spec.limits_of(model).thinking else TAKES_NONE


def next_model(in_use: str, spec: AgentSpec, demand: Demand) -> FallbackModel:
    """Return the next model of the chain after the current one that can take over."""
    chain = chain_of(spec)
    skipped: list[str] = []
    for name in chain[chain.index(in_use) + 1 :] if in_use in chain else ():
        reason = unfit(spec.limits_of(name), demand, needs_tools=bool(spec.tools))
        if not reason:
            return FallbackModel(name, tuple(skipped))
        skipped.append(f"{name}: {reason}")
    return FallbackModel("", tuple(skipped))


def unfit(limits: ModelLimits, demand: Demand, *, needs_tools: bool) -> str:
    """Return the reason why a model with these limits cannot take over; empty if it can."""
    if needs_tools and not limits.tools:
        return "it cannot call tools"
    if demand.raised and limits.max_output < demand.output:
        return f"it writes {limits.max_output:,} tokens at most, and the reply needs more than it was cut at"
    whole = demand.tokens + min(demand.output, limits.max_output)
    if whole > limits.window:
        return f"its window of {limits.window:,} tokens is too small for {whole:,}"
    return ""
