"""Content of a workspace, as a person reads it before trusting it: commands, variables, URLs and rules in full. Pure.

Nothing is cut. Characters that control the screen, are invisible, or reverse the reading order are spelled out.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import groupby

from callboard.cli.terminal.terminal import Block, Line, Style
from callboard.core.trust.claims import Claim, ClaimChanges, WorkspaceClaims, printable

_KIND_WIDTH = 9


def claims_block(workspace_claims: WorkspaceClaims, changes: ClaimChanges | None = None) -> Block:
    """Return all claims file by file, then the differences from the content that was trusted last."""
    head = Line(
        f"This workspace has content that would run, or change what may run: {printable(workspace_claims.workspace)}",
        "strong",
    )
    files = {claim.path for claim in workspace_claims.claims}
    quiet = sorted(set(workspace_claims.hashes) - files)
    lines = [head, *claim_lines(workspace_claims.claims)]
    lines += [Line(f"  {printable(path)}", "name") for path in quiet]
    if changes is not None:
        lines += changes_lines(changes)
    return Block(tuple(lines))


def changes_lines(changes: ClaimChanges) -> list[Line]:
    """Return the additions, removals and changes since a content was trusted."""
    lines = [Line("Different from what you trusted last:", "strong")]
    lines += [line for claim in changes.added for line in _claim_lines(claim, "+ ", "warn", where=True)]
    lines += [line for claim in changes.removed for line in _claim_lines(claim, "- ", "dim", where=True)]
    lines += [
        Line(f"  ~ {printable(path)}: other text or code, the same settings", "warn") for path in changes.rewritten
    ]
    return lines if len(lines) > 1 else []


def claim_lines(claims: Sequence[Claim]) -> Iterator[Line]:
    """Yield all claims file by file, each with its line."""
    for path, group in groupby(claims, key=lambda claim: claim.path):
        yield Line(f"  {printable(path)}", "name")
        for claim in sorted(group, key=lambda entry: (entry.line, entry.kind, entry.text)):
            yield from _claim_lines(claim, "  ", "plain", where=False)


def _claim_lines(claim: Claim, mark: str, style: Style, *, where: bool) -> Iterator[Line]:
    """Yield the lines of a claim.

    The first one contains its location and content; each further line begins with a bar, so that it cannot be mistaken
    for another claim.
    """
    place = printable(claim.where) if where else f"{claim.line or '':>4}"
    first, *others = claim.text.split("\n")
    yield Line(f"  {mark}{place} {claim.kind:<{_KIND_WIDTH}} {printable(first)}", style)
    for line in others:
        yield Line(f"  {mark}{'':>{len(place)}} {'':<{_KIND_WIDTH}}| {printable(line)}", style)
