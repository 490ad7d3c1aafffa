"""Lines and JSON of the sessions that a removal removes."""

from __future__ import annotations

from callboard.cli.terminal.terminal import Block, block
from callboard.cli.views.worktrees import size_words
from callboard.core.keys import count_words
from callboard.sessions.retention import RemovalReport
from callboard.types.records import Json


def removal_json(report: RemovalReport, *, dry_run: bool) -> Json:
    """Return the report for programs."""
    return {
        "dry_run": dry_run,
        "removed": [{"session": each.session.id, "bytes": each.bytes} for each in report.removed],
        "kept": [{"session": each.session.id, "reason": each.reason} for each in report.staying],
        "blobs": report.blobs,
        "blob_bytes": report.blob_bytes,
        "busy": report.busy,
    }


def removal_lines(report: RemovalReport, *, dry_run: bool) -> Block:
    """Return a line for each session, and a summary."""
    if report.busy:
        return block("another process is removing sessions: nothing was done here", "warn")
    would = "would be removed" if dry_run else "removed"
    lines = [f"{each.session.id}  {would}  {size_words(each.bytes)}  {each.session.prompt}" for each in report.removed]
    lines += [f"{each.session.id}  stays: {each.reason}" for each in report.staying]
    size = size_words(sum(each.bytes for each in report.removed))
    lines.append(f"{count_words(len(report.removed), 'session')} {would}, {size}")
    if report.blobs:
        lines.append(f"{count_words(report.blobs, 'blob')} removed, {size_words(report.blob_bytes)}")
    return block("\n".join(lines))
