"""Collection of the facts for judging a call: parses its scripts until none is left, then looks up its paths.

Pure except for its arguments: `parse` and `look` are methods of two ports. `look` may read the disk, so this runs in a
worker thread.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace

from callboard.core.permissions.effects import queries_in
from callboard.core.permissions.judge import queries_of
from callboard.core.permissions.values import CallFacts, Parsed, PathFact, PathQuery, ProposedCall

MOST_ROUNDS = 16
"""Maximum depth of scripts inside scripts. Below it, the judge asks."""


def find_facts(
    call: ProposedCall,
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
