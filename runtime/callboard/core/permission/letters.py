"""What each letter of docs/permissions.md means, in words that a person reads in a question. Pure data."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

MEANING: Mapping[str, str] = MappingProxyType(
    {
        "R": "only reads inside the workspace",
        "G": "reads through git, whose settings in this repository could run programs",
        "E": "writes or creates files in the workspace",
        "D": "deletes or empties files",
        "X": "runs code, or a program that is not known to only read",
        "V": "sets variables that other programs heed",
        "O": "reads or changes what is outside the workspace, or is secret, or belongs to other processes",
        "N": "uses the network",
        "S": "is never run: it would destroy the machine or gain rights",
        "K": "touches Callboard's own files",
        "H": "changes files that other tools run or obey",
        "L": "what it would do is only known when it runs",
        "M": "cannot be read, or holds characters that hide",
        "P": "a pattern could become an option that runs a program",
        "F": "is always asked, whatever rules and modes say",
        "T": "needs a person's own word",
    }
)
"""Letter -> what a call of that letter does."""


def meaning_of(rule: str) -> str:
    """Why a verdict with this rule was given, in words: of a letter, of a rule of settings, of a mode, of a hook;
    empty for what is none of them."""
    if rule in MEANING:
        return MEANING[rule]
    first = rule.partition(" ")[0]
    return {
        "rule": "a rule of your settings says so",
        "mode": "the permission mode says so",
        "hook": "a hook says so",
        "check,": "the check that it runs says so",
    }.get(first, "")
