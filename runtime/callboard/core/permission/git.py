"""Which git commands only read (docs/permissions.md, letter G). Everything else that git does asks.

Reading is allowed on a premise: the repository's own configuration runs no program. `config_is_quiet` checks that by
the list of keys that are known to be harmless; an unknown key, or an include, is not quiet.
"""

from __future__ import annotations

import posixpath
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace

from callboard.core.permission.effects import Does, Effect, GitIn, Touch, read
from callboard.core.permission.options import Command, end_of_options, names_long, operands, value_paths
from callboard.core.permission.words import Arg

GIT_PREMISE = "git config"
"""The letter's mark of the premise: lifted where the facts say that the configuration is quiet."""

_READ_ONLY = frozenset(
    [
        *(
            "status",
            "diff",
            "log",
            "show",
            "blame",
            "annotate",
            "shortlog",
            "describe",
            "rev-parse",
            "rev-list",
            "grep",
        ),
        *(
            "ls-files",
            "ls-tree",
            "cat-file",
            "name-rev",
            "merge-base",
            "diff-tree",
            "diff-index",
            "diff-files",
            "cherry",
        ),
        *("for-each-ref", "show-ref", "count-objects", "whatchanged", "range-diff", "check-ignore", "check-attr"),
        *("version", "show-branch", "check-ref-format"),
    ]
)
_REMOTE = frozenset(
    ("fetch", "pull", "push", "clone", "ls-remote", "remote-https", "send-email", "request-pull", "svn")
)
_DESTROYS = frozenset(("clean", "gc", "prune", "rm", "reset", "filter-branch", "checkout", "restore"))
_GLOBAL_HARMLESS = frozenset(("--no-pager", "-P", "--no-optional-locks", "--literal-pathspecs", "--no-replace-objects"))
_GLOBAL_WITH_VALUE = frozenset(("-C", "-c", "--git-dir", "--work-tree", "--namespace", "--exec-path", "--config-env"))
_BAD_LONG = (
    *("output", "ext-diff", "textconv", "open-files-in-pager", "exec", "upload-pack", "show-signature", "filters"),
    *("output-directory", "contents"),
)
_LISTING: Mapping[str, tuple[frozenset[str], frozenset[str]]] = {
    "branch": (
        frozenset(("-a", "-r", "-v", "-vv", "--all", "--remotes", "--verbose", "--show-current", "--no-color", "-av")),
        frozenset(("-l", "--list", "--contains", "--no-contains", "--merged", "--no-merged", "--points-at")),
    ),
    "tag": (frozenset(("-n", "--no-color")), frozenset(("-l", "--list", "--contains", "--merged", "--points-at"))),
    "remote": (frozenset(("-v", "--verbose")), frozenset[str]()),
}
_GOOD_LONG = frozenset(("--text", "--exec-path"))
_FIRST: Mapping[str, frozenset[str]] = {
    "stash": frozenset(("list", "show")),
    "worktree": frozenset(("list",)),
    "notes": frozenset(("list", "show")),
    "remote": frozenset(("get-url",)),
}
"""Subcommands whose first word says that they only list."""
_SECRET_CONFIG = re.compile(r"(?i)extraheader|token|password|secret|credential|insteadof|url")
_QUIET_KEY = re.compile(
    r"core\.(?:repositoryformatversion|filemode|bare|logallrefupdates|ignorecase|precomposeunicode|symlinks|autocrlf|eol)"
    r"|(?:remote|branch|submodule|user|init|push|pull|merge|rebase|color|advice|gc|fetch)\..*"
    r"|extensions\.(?:noop|objectformat|refstorage)"
)
_LOUD_KEY = re.compile(
    r"(?:submodule\..*\.update|remote\..*\.(?:uploadpack|receivepack|vcs|proxy)|merge\..*\.driver|gc\..*hook)"
)


def git_effects(command: Command) -> Iterator[Effect]:
    """Yield what a git command does. The mark `GIT_PREMISE` stands in the effects of every reading one."""
    args = list(command.args)
    if [arg.text for arg in args] in (["--version"], ["--help"]):
        return
    folder, odd = _global_options(args)
    yield from (Does("G", f"`git {option}` changes where git works or what it runs") for option in odd)
    if not args:
        yield Does("G", "`git` without a subcommand")
        return
    subcommand, rest = args[0].text, args[1:]
    if not all(arg.known for arg in args):
        yield Does("L", "a word of `git` is only known when it runs")
    elif subcommand in _READ_ONLY or _lists(subcommand, rest):
        yield from _within(folder, _reading(subcommand, rest))
    elif subcommand in _REMOTE or (subcommand in ("remote", "submodule", "archive")):
        yield Does("N", f"`git {subcommand}` talks to another repository")
    elif subcommand in _DESTROYS:
        yield Does("D", f"`git {subcommand}` can delete work")
    else:
        yield Does("E", f"`git {subcommand}` changes the repository")


def _global_options(args: list[Arg]) -> tuple[str, list[str]]:
    """Take the options before the subcommand off. Return the folder that `-C` names, and what is not harmless."""
    folder, odd = "", list[str]()
    while args and args[0].text.startswith("-"):
        option = args.pop(0).text
        if option == "-C" and args and args[0].known and not args[0].glob:
            folder = posixpath.join(folder, args.pop(0).text)
        elif option not in _GLOBAL_HARMLESS:
            odd.append(option)
            del args[: option in _GLOBAL_WITH_VALUE]
    return folder, odd


def _within(folder: str, effects: Iterator[Effect]) -> Iterator[Effect]:
    """Put relative paths into the folder that `-C` names."""
    if folder:
        yield read(Arg(folder))
        yield GitIn(folder)
    for effect in effects:
        if folder and isinstance(effect, Touch):
            effect = replace(effect, query=replace(effect.query, text=posixpath.join(folder, effect.query.text)))
        yield effect


def _lists(subcommand: str, rest: Sequence[Arg]) -> bool:
    texts = [arg.text for arg in rest]
    if subcommand == "config":
        got = texts[1:] if texts[:1] in (["--get"], ["get"], ["--get-all"]) else texts
        return len(got) == 1 and re.fullmatch(r"\w[\w-]*(\.[\w.-]+)+", got[0]) is not None and not _secret(got[0])
    if subcommand == "reflog":
        return not texts or texts[0] in ("show", "exists", "HEAD") or texts[0].startswith("-")
    if subcommand == "symbolic-ref":
        plain = [text for text in texts if text not in ("--short", "-q", "--quiet")]
        return len(plain) == 1 and not plain[0].startswith("-")
    if texts and texts[0] in _FIRST.get(subcommand, ()):
        return True
    if subcommand not in _LISTING:
        return False
    harmless, listers = _LISTING[subcommand]
    options = (t for t in texts if t.startswith("-"))
    if not all(t in harmless or t in listers or t.startswith(("--sort=", "--format=")) for t in options):
        return False
    return any(t in listers for t in texts[:2]) or all(t.startswith("-") for t in texts)


def _secret(key: str) -> bool:
    return _SECRET_CONFIG.search(key) is not None


def _reading(subcommand: str, rest: Sequence[Arg]) -> Iterator[Effect]:
    yield Does("G", GIT_PREMISE)
    for arg in rest[: end_of_options(rest)]:
        text = arg.text
        if text.startswith("--") and names_long(text, _BAD_LONG) and text not in _GOOD_LONG:
            yield Does("X", f"`git {subcommand} {text}` runs a program or writes a file")
        if text.startswith("--") and names_long(text, ("no-index", "untracked")) and subcommand in ("grep", "diff"):
            yield from (read(a, tree=True) for a in operands(rest) or (Arg("."),))
            yield from (read(Arg("."), tree=True) for _ in range(subcommand == "grep"))
        if subcommand == "grep" and re.match(r"-[A-Za-z]*O", text):
            yield Does("X", "`git grep -O` runs a pager")
        if "%G" in text or "(signature" in text:
            yield Does("X", "the format checks signatures with a program")
        if arg.glob and text[0] in "*?[-":
            yield Does("P", "a glob can become an option of `git`", "bypass")
    yield from value_paths(rest)
    for arg in (*operands(rest), *(Arg(arg.text) for arg in rest if arg.text.startswith("-"))):
        if not arg.text.startswith("-"):
            yield read(arg)
        if ":" in arg.text:  # REVISION:PATH, -L1,5:PATH
            yield read(Arg(arg.text.rpartition(":")[2] or "."))


def config_is_quiet(text: str) -> bool:
    """Whether a repository's configuration file names nothing that git would run, include or redirect."""
    section = ""
    for line in text.splitlines():
        line = line.strip()
        if not line or line[0] in "#;":
            continue
        if line.endswith("\\"):
            return False
        header = re.fullmatch(r'\[([A-Za-z0-9.-]+)(?:\s+"([^"\\]*)")?\]', line)
        if header:
            section = header[1].lower() + (f".{header[2]}" if header[2] is not None else "")
            continue
        key = re.match(r"([A-Za-z][A-Za-z0-9-]*)\s*(?:=|$)", line)
        name = f"{section}.{key[1].lower()}" if key and section else ""
        if not setting_is_quiet(name):
            return False
    return True


def setting_is_quiet(name: str) -> bool:
    """Whether a setting of this name (section and key in lower case) makes git run, include or redirect nothing."""
    return bool(_QUIET_KEY.fullmatch(name)) and not _LOUD_KEY.fullmatch(name)
