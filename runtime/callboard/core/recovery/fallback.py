"""Which model of the chain takes over when the one in use fails. Pure.

A model is skipped, by name and with the reason, when it could not do what is asked of it next:

- window: the conversation as it stands and the output asked for do not fit into it;
- max output: a reply was cut, and it cannot write as much as is asked for since then (before that, a lower maximum only
  lowers what is asked for);
- tools: the agent has tools and it can call none.

Thinking never stands in the way: thinking of another model is left out of what is sent, and all of it for a model that
takes none (`context.view.sending`).
"""

from __future__ import annotations

from dataclasses import dataclass

from callboard.words.specs import AgentSpec, ModelLimits

TAKES_NONE = "-"
"""Stands for a model that takes no thinking blocks, whoever thought them: no model has this name."""


@dataclass(frozen=True, slots=True)
class Demand:
    """What the next call asks of whoever makes it."""

    tokens: int = 0
    """Of the whole request: system prompt, tools, messages."""
    output: int = 0
    """Output tokens to ask for."""
    raised: bool = False
    """The output limit was raised, since a reply was cut."""


@dataclass(frozen=True, slots=True)
class Choice:
    """Who takes over; `model` is empty where nobody can."""

    model: str = ""
    skipped: tuple[str, ...] = ()
    """`name: why` of those that cannot."""


def chain_of(spec: AgentSpec) -> tuple[str, ...]:
    """The first model and its fallbacks, each once."""
    return tuple(dict.fromkeys((spec.model, *spec.fallback_models)))


def reader_of(spec: AgentSpec, model: str) -> str:
    """Whose thinking is sent to `model`: its own, or nobody's."""
    return model if spec.limits_of(model).thinking else TAKES_NONE


def next_model(in_use: str, spec: AgentSpec, demand: Demand) -> Choice:
    """The next model of the chain after the one in use that can take over."""
    chain = chain_of(spec)
    skipped: list[str] = []
    for name in chain[chain.index(in_use) + 1 :] if in_use in chain else ():
        why = unfit(spec.limits_of(name), demand, needs_tools=bool(spec.tools))
        if not why:
            return Choice(name, tuple(skipped))
        skipped.append(f"{name}: {why}")
    return Choice("", tuple(skipped))


def unfit(limits: ModelLimits, demand: Demand, *, needs_tools: bool) -> str:
    """Why a model with these limits cannot take over; empty when it can."""
    if needs_tools and not limits.tools:
        return "it cannot call tools"
    if demand.raised and limits.max_output < demand.output:
        return f"it writes {limits.max_output:,} tokens at most, and the reply needs more than it was cut at"
    whole = demand.tokens + min(demand.output, limits.max_output)
    if whole > limits.window:
        return f"its window of {limits.window:,} tokens is too small for {whole:,}"
    return ""
