"""Finds the facts that a call is judged by: parses its scripts until none is left, then looks its paths up.

Pure but for what it is given: `parse` and `look` are the methods of two ports. `look` may touch the disk, so this runs
in a worker thread.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace

from callboard.core.permission.effects import queries_in
from callboard.core.permission.judge import queries_of
from callboard.core.permission.values import CallFacts, Parsed, PathFact, PathQuery, ToolCall

MOST_ROUNDS = 16
"""Scripts inside scripts are followed this deep; beyond, the judge asks."""


def find_facts(
    call: ToolCall,
    start: CallFacts,
    parse: Callable[[str], Parsed],
    look: Callable[[Iterable[PathQuery]], Mapping[PathQuery, PathFact]],
) -> CallFacts:
    """Return `start` with the scripts and paths of the call filled in."""
    source = call.input.get("command")
    scripts: dict[str, Parsed] = dict(start.scripts)
    if call.name == "bash" and isinstance(source, str):
        scripts[source] = parse(source)
    facts = replace(start, scripts=scripts)
    missing, effects = queries_of(call, facts)
    for _ in range(MOST_ROUNDS):
        if not missing:
            break
        scripts |= {text: parse(text) for text in missing}
        facts = replace(start, scripts=scripts)
        missing, effects = queries_of(call, facts)
    return replace(facts, paths=look(frozenset(queries_in(effects))))
