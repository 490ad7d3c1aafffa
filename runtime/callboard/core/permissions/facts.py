"""Collection of the facts for judging a call: parses its scripts until none is left, then looks up its paths.

Pure except for its arguments: `parse` and `look` are methods of two ports. `look` may read the disk, so this runs in a
worker thread.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace

from callboard.core.permissions.effects import CallFacts, queries_in
from callboard.core.permissions.judge import parts_of
from callboard.core.permissions.shell_effects import analyse
from callboard.core.permissions.values import Floor, Parsed, PathFact, PathQuery, ProposedCall

MOST_ROUNDS = 16
"""Maximum depth of scripts inside scripts. Below it, the judge asks."""

_FLOOR = Floor()


def find_facts(
    call: ProposedCall,
    start: CallFacts,
    parse: Callable[[str], Parsed],
    look: Callable[[Iterable[PathQuery]], Mapping[PathQuery, PathFact]],
    *,
    floor: Floor = _FLOOR,
) -> CallFacts:
    """Return `start` with the scripts, the analysis and the paths of the call filled in. `floor`: that of the policy
    that the call will be judged by, for which the analysis is kept."""
    source = call.input.get("command")
    if call.name != "bash" or not isinstance(source, str):
        effects = (effect for part in parts_of(call, start) for effect in part.effects)
        return replace(start, paths=look(frozenset(queries_in(effects))))
    scripts: dict[str, Parsed] = {**start.scripts, source: parse(source)}
    analysis = analyse(source, scripts, start.home, floor)
    for _ in range(MOST_ROUNDS):
        if not analysis.missing:
            break
        scripts |= {text: parse(text) for text in analysis.missing}
        analysis = analyse(source, scripts, start.home, floor)
    return replace(start, scripts=scripts, analysis=analysis, paths=look(analysis.queries))
