"""The rules of the open Agent Skills specification (agentskills.io/specification, 2026-08-09) for one skill. Pure."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import cast

FIELDS = ("name", "description", "license", "compatibility", "metadata", "allowed-tools")
"""All fields of the specification; its validator refuses any other."""
LONGEST_NAME = 64
LONGEST_DESCRIPTION = 1_024
LONGEST_COMPATIBILITY = 500
BODY_LINES = 500
"""Recommended maximum lines of a body: longer content belongs in separate files."""
_NAME = re.compile(r"[a-z0-9-]+")


@dataclass(frozen=True, slots=True)
class Problem:
    """A problem in a field; `field` is empty for the whole file. `fatal`: the validator refuses the file."""

    field: str
    text: str
    fatal: bool = True


def problems(fields: Mapping[str, object], folder: str, body: str = "") -> Iterator[Problem]:
    """Yield the problems of a front matter and body in a folder of this name."""
    yield from _name(fields.get("name"), folder)
    yield from _sized("description", fields.get("description"), LONGEST_DESCRIPTION, required=True)
    yield from _sized("compatibility", fields.get("compatibility"), LONGEST_COMPATIBILITY)
    yield from _sized("license", fields.get("license"), None)
    yield from _sized("allowed-tools", fields.get("allowed-tools"), None)
    yield from _metadata(fields.get("metadata"))
    for name in fields:
        if name not in FIELDS:
            yield Problem(name, f"is not a field of the specification: there are {', '.join(FIELDS)}")
    if not body.strip():
        yield Problem("", "has no instructions behind its front matter", fatal=False)
    if body.count("\n") > BODY_LINES:
        yield Problem("", f"is longer than {BODY_LINES} lines: move what is not always needed into references/", False)


def _name(value: object, folder: str) -> Iterator[Problem]:
    if not isinstance(value, str) or not value.strip():
        yield Problem("name", "is missing")
        return
    if len(value) > LONGEST_NAME:
        yield Problem("name", f"has {len(value)} characters; {LONGEST_NAME} are the most")
    if not _NAME.fullmatch(value):
        yield Problem("name", f"{value!r} has other characters than a-z, 0-9 and hyphens")
    if value.startswith("-") or value.endswith("-") or "--" in value:
        yield Problem("name", f"{value!r} begins or ends with a hyphen, or has two in a row")
    if value != folder:
        yield Problem("name", f"{value!r} is not the name of its folder, {folder!r}")


def _sized(name: str, value: object, most: int | None, *, required: bool = False) -> Iterator[Problem]:
    if value is None and not required:
        return
    if not isinstance(value, str) or not value.strip():
        yield Problem(name, "is missing" if value is None else "is a text that is not empty")
    elif most is not None and len(value) > most:
        yield Problem(name, f"has {len(value):,} characters; {most:,} are the most")


def _metadata(value: object) -> Iterator[Problem]:
    if value is None:
        return
    if not isinstance(value, Mapping):
        yield Problem("metadata", "is a mapping of texts")
        return
    for key, item in cast("Mapping[object, object]", value).items():
        if not isinstance(item, str):
            yield Problem(f"metadata.{key}", "is a text: put it in quotes")
