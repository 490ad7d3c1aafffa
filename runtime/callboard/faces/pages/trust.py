"""What a workspace brings, as a person reads it before trusting it: commands, variables, URLs and rules in full. Pure.

Nothing is cut, and nothing steers the screen: what is invisible, or would turn the reading order round, is spelled out.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import groupby

from callboard.core.trust.claims import Brought, Changes, Claim, shown
from callboard.faces.terminal import Block, Line, Style

_KIND_WIDTH = 9


def brought_block(brought: Brought, changes: Changes | None = None) -> Block:
    """All claims file by file; then what is different from the content that was trusted last."""
    head = Line(f"This workspace brings what would run, or change what may run: {shown(brought.workspace)}", "strong")
    files = {claim.path for claim in brought.claims}
    quiet = sorted(set(brought.hashes) - files)
    lines = [head, *_by_file(brought.claims)]
    lines += [Line(f"  {shown(path)}", "name") for path in quiet]
    if changes is not None:
        lines += changes_lines(changes)
    return Block(tuple(lines))


def changes_lines(changes: Changes) -> list[Line]:
    """What was added, taken away and rewritten since a content was trusted."""
    lines = [Line("Different from what you trusted last:", "strong")]
    lines += [line for claim in changes.added for line in _claim_lines(claim, "+ ", "warn", where=True)]
    lines += [line for claim in changes.removed for line in _claim_lines(claim, "- ", "dim", where=True)]
    lines += [Line(f"  ~ {shown(path)}: other text or code, the same settings", "warn") for path in changes.rewritten]
    return lines if len(lines) > 1 else []


def _by_file(claims: Sequence[Claim]) -> Iterator[Line]:
    for path, group in groupby(claims, key=lambda claim: claim.path):
        yield Line(f"  {shown(path)}", "name")
        for claim in sorted(group, key=lambda one: (one.line, one.kind, one.text)):
            yield from _claim_lines(claim, "  ", "plain", where=False)


def _claim_lines(claim: Claim, mark: str, style: Style, *, where: bool) -> Iterator[Line]:
    """The first line says where and what; each further line of a text has a bar before it, and cannot pass for more."""
    place = shown(claim.where) if where else f"{claim.line or '':>4}"
    first, *others = claim.text.split("\n")
    yield Line(f"  {mark}{place} {claim.kind:<{_KIND_WIDTH}} {shown(first)}", style)
    for line in others:
        yield Line(f"  {mark}{'':>{len(place)}} {'':<{_KIND_WIDTH}}| {shown(line)}", style)
