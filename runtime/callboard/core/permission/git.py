"""Which git commands only read (docs/permissions.md, letter G). Everything else that git does asks.

Reading is allowed on a premise: the repository's own configuration runs no program. `config_is_quiet` checks that by
the list of keys that are known to be harmless; an unknown key, or an include, is not quiet.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence

from callboard.core.permission.effects import Does, Effect, read
from callboard.core.permission.options import Command, operands, value_paths
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
    "remote": (frozenset(("-v", "--verbose")), frozenset(("get-url",))),
    "stash": (frozenset[str](), frozenset(("list", "show"))),
    "worktree": (frozenset[str](), frozenset(("list",))),
    "reflog": (frozenset(("-n",)), frozenset(("show",))),
    "notes": (frozenset[str](), frozenset(("list", "show"))),
    "config": (frozenset[str](), frozenset(("--get", "get", "--get-all"))),
    "submodule": (frozenset[str](), frozenset[str]()),
}
_MUST_LIST = frozenset(("stash", "worktree", "config", "submodule"))
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
    if [arg.text for arg in args] == ["--version"]:
        return
    while args and args[0].text.startswith("-"):
        option = args.pop(0).text
        if option in _GLOBAL_HARMLESS:
            continue
        yield Does("G", f"`git {option}` changes where git works or what it runs")
        if option in _GLOBAL_WITH_VALUE and args:
            args.pop(0)
    if not args:
        yield Does("G", "`git` without a subcommand")
        return
    subcommand, rest = args[0].text, args[1:]
    if not all(arg.known for arg in args):
        yield Does("L", "a word of `git` is only known when it runs")
    elif subcommand in _READ_ONLY or _lists(subcommand, rest):
        yield from _reading(subcommand, rest)
    elif subcommand in _REMOTE or (subcommand in ("remote", "submodule", "archive")):
        yield Does("N", f"`git {subcommand}` talks to another repository")
    elif subcommand in _DESTROYS:
        yield Does("D", f"`git {subcommand}` can delete work")
    else:
        yield Does("E", f"`git {subcommand}` changes the repository")


def _lists(subcommand: str, rest: Sequence[Arg]) -> bool:
    if subcommand not in _LISTING:
        return False
    harmless, listers = _LISTING[subcommand]
    texts = [arg.text for arg in rest]
    listing = bool(texts) and texts[0] in listers
    if subcommand == "config":
        return listing and len(texts) == 2 and not _SECRET_CONFIG.search(texts[1])
    if subcommand in _MUST_LIST:
        return listing
    options = (t for t in texts if t.startswith("-"))
    if not all(t in harmless or t in listers or t.startswith(("--sort=", "--format=")) for t in options):
        return False
    return listing or any(t in listers for t in texts[:2]) or all(t.startswith("-") for t in texts)


def _reading(subcommand: str, rest: Sequence[Arg]) -> Iterator[Effect]:
    yield Does("G", GIT_PREMISE)
    for arg in rest:
        text = arg.text
        if text == "--":
            break
        word = text[2:].partition("=")[0] if text.startswith("--") else ""
        if len(word) > 1 and any(bad.startswith(word) for bad in _BAD_LONG):
            yield Does("X", f"`git {subcommand} {text}` runs a program or writes a file")
        if subcommand == "grep" and re.match(r"-[A-Za-z]*O", text):
            yield Does("X", "`git grep -O` runs a pager")
        if "%G" in text or "(signature" in text:
            yield Does("X", "the format checks signatures with a program")
        if arg.glob and text[0] in "*?[-":
            yield Does("P", "a glob can become an option of `git`", "bypass")
    yield from value_paths(rest)
    for arg in operands(rest):
        yield read(arg)
        if ":" in arg.text:  # REVISION:PATH
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
