"""Collection of the facts for judging a call: parses its scripts until none is left, then looks up its paths.

Pure except for its arguments: `parse` and `look` are methods of two ports. `look` may read the disk, so this runs in a
worker thread.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping

from callboard.core.frozen import replace
from callboard.core.permissions.effects import CallFacts
from callboard.core.permissions.file_tools import FILE_TOOLS, named_paths
from callboard.core.permissions.shell_effects import analyse
from callboard.core.permissions.values import HardRules, Parsed, PathFact, PathQuery, ProposedCall, UnparsedScript

MOST_ROUNDS = 16
"""Maximum depth of scripts inside scripts. The judge asks about deeper ones."""

_HARD_RULES = HardRules()


def find_facts(
    call: ProposedCall,
    start: CallFacts,
    parse: Callable[[str], Parsed],
    look: Callable[[Iterable[PathQuery]], Mapping[PathQuery, PathFact]],
    *,
    hard_rules: HardRules = _HARD_RULES,
) -> CallFacts:
    """Return `start` with the scripts, the analysis and the paths of the call filled in.

    `hard_rules`: that of the policy for which the call will be judged, and for which the analysis is stored.
    """
    source = call.input.get("command")
    if call.name != "bash" or not isinstance(source, str):
        named = named_paths(call) if call.name in FILE_TOOLS else ()
        return replace(start, paths=look(() if isinstance(named, UnparsedScript) else [each.query for each in named]))
    scripts: dict[str, Parsed] = {**start.scripts, source: parse(source)}
    analysis = analyse(source, scripts, start.home, hard_rules)
    for _ in range(MOST_ROUNDS):
        if not analysis.missing:
            break
        scripts |= {text: parse(text) for text in analysis.missing}
        analysis = analyse(source, scripts, start.home, hard_rules)
    return replace(start, scripts=scripts, analysis=analysis, paths=look(analysis.queries))
