"""Effects of git commands: the commands that only read, and the tracked files whose content a command can print.

All other git commands ask (docs/permissions.md, letter G).

Reading is allowed on a premise: the repository's own configuration runs no program. `config_is_quiet` checks this with
a list of keys that are known to be harmless; an unknown key, or an include, is not quiet.

A command that prints content prints all tracked files, or those in its paths. An option that is not known to print no
content counts as printing it, and a word that is not certainly a path restricts nothing. So errors cause more asks,
never fewer.
"""

from __future__ import annotations

import posixpath
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import field, replace
from itertools import dropwhile, takewhile, zip_longest

from callboard.core.permissions import globs
from callboard.core.permissions.command_table import CODE_NAMES
from callboard.core.permissions.effects import Effect, GitContent, GitRead, PathAccess, Risk, read
from callboard.core.permissions.git_options import git_options
from callboard.core.permissions.option_parser import end_of_options, names_long, operands, value_paths
from callboard.core.permissions.values import Arg, ProgramWords
from callboard.types.late_pattern import late_pattern
from callboard.types.lazy_dataclass import dataclass

GIT_PREMISE = "git config"
"""Mark of the premise of letter G. It is lifted if the facts say that the configuration is quiet."""

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
_REASONS: Mapping[str, str] = {
    "remote": "talks to another repository, or changes which one git talks to",
    "submodule": "fetches other repositories, or runs commands in them",
    "archive": "packs all files, or fetches them from another repository",
    "config": "shows all of git's settings, or changes them",
    "help": "opens a viewer",
    "var": "shows settings that may name programs",
}
_BAD_LONG = (
    *("output", "ext-diff", "textconv", "open-files-in-pager", "exec", "upload-pack", "show-signature", "filters"),
    *("output-directory", "contents", "batch", "batch-check", "batch-command", "batch-all-objects"),
)
_LISTING: Mapping[str, tuple[frozenset[str], frozenset[str]]] = {
    "branch": (
        frozenset(("--all", "--remotes", "--verbose", "--show-current", "--no-color")),
        frozenset(("--list", "--contains", "--no-contains", "--merged", "--no-merged", "--points-at")),
    ),
    "tag": (frozenset(("--no-color",)), frozenset(("--list", "--contains", "--merged", "--points-at"))),
    "remote": (frozenset(("--verbose",)), frozenset[str]()),
}
_LISTING_SHORT: Mapping[str, re.Pattern[str]] = {
    "branch": late_pattern(r"-[arvl]+"),
    "tag": late_pattern(r"-(?:l|n\d*)"),
    "remote": late_pattern(r"-v+"),
}
"""Short options with which such a command only lists."""
_GREP_CLUSTER = late_pattern(r"-[^-efABCmO]*(?P<option>[Of])(?P<value>.*)", re.DOTALL)
"""Cluster of short options of `git grep` with `-O` or `-f`. Digits and `(` are options too (`-5`, `-(`), and the
cluster continues behind them."""
_SIGNATURE = late_pattern(r"%[-+ ]?G|\(\*?signature|^(?:--sort=)?[-*]*signature")
"""Formats and sort keys by which git starts a program that checks signatures."""
_GOOD_LONG = frozenset(("--text", "--exec-path"))
_FIRST: Mapping[str, frozenset[str]] = {
    "stash": frozenset(("list", "show")),
    "worktree": frozenset(("list",)),
    "notes": frozenset(("list", "show")),
    "remote": frozenset(("get-url",)),
}
"""Subcommands that only list if their first word is one of these."""
_DELETES_NOTHING = frozenset((("checkout", "-b"), ("checkout", "--orphan"), ("clean", "-n"), ("clean", "--dry-run")))
"""First two words of commands that delete nothing, although the subcommand can."""
_SECRET_CONFIG = late_pattern(r"(?i)extraheader|token|pass|oauth|secret|credential|insteadof|url|proxy|cookie")


def git_effects(command: ProgramWords) -> Iterator[Effect]:
    """Yield the effects of a git command. Those of every reading command include the mark `GIT_PREMISE`."""
    args = list(command.args)
    if [arg.text for arg in args] in (["--version"], ["--help"]):
        return
    folder, odd = git_options(args)
    literal = "--literal-pathspecs" in (arg.text for arg in command.args[: len(command.args) - len(args)])
    if literal and any(arg.text.startswith(":") for arg in args):
        odd.append("--literal-pathspecs")  # a path that begins with a colon is then a plain name, and excludes nothing
    yield from (Risk("G", f"`git {option}` changes where git works or what it runs") for option in odd)
    if not args:
        yield Risk("G", "`git` without a subcommand")
        return
    subcommand = args[0].text
    arguments = args[1:]
    if not all(arg.known for arg in args):
        yield Risk("L", "a word of `git` is only known when it runs")
    elif subcommand in _READ_ONLY or _lists(subcommand, arguments):
        yield from _within(folder, _reading(subcommand, arguments))
    elif subcommand in _REMOTE or (subcommand in ("remote", "submodule", "archive")):
        yield Risk("N", f"`git {subcommand}` {_REASONS.get(subcommand, 'talks to another repository')}")
    elif subcommand in _DESTROYS and tuple(arg.text for arg in args[:2]) not in _DELETES_NOTHING:
        yield Risk("D", f"`git {subcommand}` can delete work")
    else:
        yield Risk("E", f"`git {subcommand}` {_REASONS.get(subcommand, 'changes the repository, or may')}")
        yield from _within(folder, filter(None, (printed_content(subcommand, arguments),)))


def _within(folder: str, effects: Iterable[Effect]) -> Iterator[Effect]:
    """Resolve relative paths in the folder of `-C`."""
    if folder:
        yield read(Arg(folder))
        yield GitRead(folder)
    for effect in effects:
        if folder and isinstance(effect, PathAccess):
            effect = replace(effect, query=replace(effect.query, text=posixpath.join(folder, effect.query.text)))
        elif folder and isinstance(effect, GitContent):
            effect = effect.within((folder,))
        yield effect


def _lists(subcommand: str, arguments: Sequence[Arg]) -> bool:
    texts = [arg.text for arg in arguments]
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
    short = _LISTING_SHORT[subcommand]
    options = [text for text in texts if text.startswith("-")]
    if not all(
        t in harmless or t in listers or short.fullmatch(t) or t.startswith(("--sort=", "--format=")) for t in options
    ):
        return False
    lists = any(t in listers or (short.fullmatch(t) and "l" in t) for t in texts[:2])
    return lists or all(t.startswith("-") for t in texts)


def _secret(key: str) -> bool:
    return _SECRET_CONFIG.search(key) is not None


def _reading(subcommand: str, arguments: Sequence[Arg]) -> Iterator[Effect]:
    yield Risk("G", GIT_PREMISE)
    for arg in arguments[: end_of_options(arguments)]:
        yield from _of_option(subcommand, arg, arguments)
    yield from value_paths(arguments)
    if subcommand == "ls-files":
        yield from (read(arg) for arg in _exclude_files(arguments))
    if content := printed_content(subcommand, arguments):
        yield content
    if subcommand in _NAMES_ONLY:
        return
    if subcommand == "grep" and not _searches_code(arguments):
        yield read(Arg("."), tree=True, left_out="untracked")
    for arg in arguments:
        yield from _of_pathspec(arg)
    for arg in (*operands(arguments), *(Arg(arg.text) for arg in arguments if arg.text.startswith("-"))):
        if not arg.text.startswith("-") and not EXCLUDES.match(arg.text):
            yield read(arg)
        if ":" in arg.text and not MAGIC.match(arg.text):  # REVISION:PATH, -L1,5:PATH
            yield read(Arg(arg.text.rpartition(":")[2] or "."))


def _exclude_files(arguments: Sequence[Arg]) -> Iterator[Arg]:
    """Yield the pattern files of `-X FILE`, `-XFILE` and `--exclude-from FILE`."""
    for arg, following in zip_longest(arguments, arguments[1:]):
        if not arg.text.startswith("--") and (match := re.match(r"-[a-z]*X(.*)", arg.text, re.DOTALL)):
            if match[1] or following:
                yield Arg(match[1]) if match[1] else following or arg
        elif arg.text.startswith("--exclude-f") and "=" not in arg.text and following:
            yield following


def _of_option(subcommand: str, arg: Arg, arguments: Sequence[Arg]) -> Iterator[Effect]:
    text = arg.text
    if text.startswith("--") and names_long(text, _BAD_LONG) and text not in _GOOD_LONG:
        yield Risk("X", f"`git {subcommand} {text}` runs a program, writes a file, or reads what its input names")
    if text.startswith("--") and names_long(text, ("no-index", "untracked")) and subcommand in ("grep", "diff"):
        words = operands(arguments) or [Arg(".")]
        yield from (read(a, tree=True) for a in words)
        if subcommand == "grep":
            yield read(Arg("."), tree=True)
            if any(_folder_of(a) is None and not EXCLUDES.match(a.text) for a in words):
                yield Risk("O", f"`git grep {text}` may search folders that only git finds")
    if subcommand == "grep" and (cluster := _GREP_CLUSTER.match(text)):
        if cluster["option"] == "O":
            yield Risk("X", "`git grep -O` runs a pager")
        elif cluster["value"]:
            yield read(Arg(cluster["value"]))
    if _SIGNATURE.search(text):
        yield Risk("X", "the format checks signatures with a program")
    if arg.glob and text[0] in "*?[-":
        yield Risk("P", "a glob can become an option of `git`", "bypass")


def _of_pathspec(arg: Arg) -> Iterator[Effect]:
    """Yield the reads of a word that git treats as a path pattern, or as a path with options."""
    if EXCLUDES.match(arg.text):
        return  # an excluded path is not read
    pattern = MAGIC.sub("", arg.text).rpartition("/")[2]
    if globs.is_pattern(pattern) and not arg.glob and globs.means_secret(pattern, dots=False):
        yield Risk("O", f"git matches {arg.text!r} with names of secrets")
    if MAGIC.match(arg.text):
        yield read(Arg(MAGIC.sub("", arg.text) or "."))


_NAMES_ONLY = frozenset(("ls-files", "ls-tree", "status", "check-ignore", "check-attr"))
"""Git commands that show only names of files; `status -v` also shows content."""


def _searches_code(arguments: Sequence[Arg]) -> bool:
    """Return True if all paths after `--` are patterns of code files."""
    at = next((at for at, arg in enumerate(arguments) if arg.text == "--"), len(arguments))
    return bool(arguments[at + 1 :]) and all(_is_code(arg) for arg in arguments[at + 1 :])


def _is_code(arg: Arg) -> bool:
    """Return True if a path can only match files of code. The shell may expand `*.py` to `:!x.py`, which is not one."""
    return CODE_NAMES.fullmatch(arg.text) is not None and not (arg.glob and arg.text.startswith(("*", "?", "[")))


MAGIC = late_pattern(r":(?:\([^)]*\)|[/!^]+)")
"""Pattern of path options in git: `:(top)x`, `:!x`."""
EXCLUDES = late_pattern(r":(?:\(exclude\)|[!^])(?![!^/(:])")
"""Path options that exclude the path, and change nothing else."""
_BY_DEFAULT = frozenset(("diff", "show", "range-diff", "format-patch", "fast-export"))
_IF_ASKED = frozenset(("log", "whatchanged", "diff-tree", "diff-index", "diff-files", "reflog", "stash"))
_WITHOUT_CONTENT = late_pattern(
    r"--(?:(?:stat|dirstat)(?:=.*)?|numstat|shortstat|summary|name-only|name-status|raw|no-patch|quiet)|-s"
)
"""Options that replace the content."""
_SILENT = late_pattern(
    r"-(?:\d+|n\d*|[EFPRabgiqrtwz]|[BCM]\d*%?|[GLS].*)"
    r"|--(?:oneline|graph|follow|all|reverse|merges|no-merges|first-parent|cached|staged|exit-code|no-color|root"
    r"|(?:no-)?abbrev-commit|no-decorate|all-match|invert-grep|regexp-ignore-case|walk-reflogs|left-right|boundary"
    r"|cherry-(?:pick|mark)|(?:date|topo|author-date)-order|simplify-by-decoration|full-history|ancestry-path"
    r"|no-notes|source|relative-date|parents|children|no-renames|no-ext-diff|no-textconv|no-commit-id|merge-base"
    r"|no-abbrev|use-mailmap|clear-decorations|ignore-all-space"
    r"|(?:format|pretty|abbrev|decorate|decorate-refs|decorate-refs-exclude|branches|tags|remotes|author|committer"
    r"|grep|since|until|after|before|max-count|skip|date|diff-filter|color|find-renames|find-copies|encoding|glob"
    r"|exclude|no-walk|max-parents|min-parents|max-age|min-age)(?:=.*)?)",
    re.DOTALL,
)
"""Options that print no content in addition to that of other options."""
_ALONE = late_pattern(
    r"-(?:\d+|n\d+|U\d+|[EFPRabcgimprstuwz]|[BCM]\d*%?)"
    r"|--(?:[a-z][a-z-]*=.*|patch|cached|staged|stat|numstat|shortstat|summary|name-only|name-status|raw|no-patch|quiet"
    r"|oneline|graph|follow|all|reverse|merges|no-merges|first-parent|exit-code|no-color|color|cc|root|check"
    r"|word-diff|color-words|ignore-all-space|ignore-space-change|ignore-blank-lines|minimal|patience|histogram"
    r"|no-ext-diff|no-textconv|no-prefix|no-renames|full-index|binary|text|function-context|no-commit-id|stdout"
    r"|patch-with-stat|abbrev-commit|no-abbrev-commit|no-decorate|decorate|merge-base|walk-reflogs)",
    re.DOTALL,
)
"""Options that never take the next word as their value."""
_OF_ONE_FILE = late_pattern(r"[^{]*:.+", re.DOTALL)
"""`REVISION:PATH`, but not `HEAD^{/text: x}`. The named content is judged by its path."""
_VERBOSE = late_pattern(r"-[a-z]*v|--v")
_RAW = late_pattern(r".*\(\*?raw(?!:size\))", re.DOTALL)
"""Field of a format that prints the content of a referenced object."""
_OF_REFERENCES = late_pattern(
    r"--(?:all|branches|tags|remotes|glob|stdin|reflog|indexed-objects|alternate-refs)(?:=.*)?", re.DOTALL
)
"""Options that name objects of any type."""
_VALUED = late_pattern(r"-[SGn]|--(?:author|committer|grep|since|until|after|before|max-count|skip|diff-filter|date)")
"""Options that always take the next word as their value."""
_GREP_VALUED = late_pattern(r"-[^-ABCOefm]*[ABCefm]|--(?:max-depth|threads|max-count)")
_GREP_PATTERN = late_pattern(r"-[^-ABCOm]*[ef].*", re.DOTALL)
"""Options of `git grep` that give the patterns. With one of them every operand is an object or a path."""
_COMMIT = late_pattern(r".+(?:\^\d*|~\d*|\^\{(?:commit|/[^{}]*)\})", re.DOTALL)
"""Names of commits, whatever is named before the last mark."""
_IN_BRACES = late_pattern(r"\{[^{}]*\}")
"""The part of a revision that is no path: `HEAD^{/x: y}`."""
_TREE = late_pattern(r"(.+)\^\{tree\}", re.DOTALL)
"""Names of trees. Such a command as `git show` lists a tree; `git diff` prints the files in it."""
_COMPARES = frozenset(("diff", "diff-tree", "diff-index"))
"""Commands that take trees in place of commits. Their paths are then looked for in these trees."""
_NO_FILE = ("-t", "-s", "-e", "commit", "tree", "tag")


def printed_content(subcommand: str, arguments: Sequence[Arg]) -> GitContent | None:
    """Return the tracked files whose content the command can print.

    None for no content, or only for files that it names.
    """
    arg_words = (
        arguments[1:]
        if arguments and arguments[0].text in ("show", "list") and subcommand in ("stash", "reflog")
        else arguments
    )
    before_operands = takewhile(lambda arg: arg.text.startswith("-") and arg.text != "--", arguments)
    if subcommand == "diff" and any(arg.text == "--no-index" for arg in before_operands):
        return None  # it reads no repository; git looks for this option only before operands, also in option values
    if subcommand in ("status", "for-each-ref", "tag", "branch"):
        pattern = _VERBOSE if subcommand == "status" else _RAW
        return GitContent(subcommand) if any(pattern.match(arg.text) for arg in arguments) else None
    if subcommand == "cat-file":
        named = arg_words and (arg_words[0].text in _NO_FILE or all(_names_file(arg) for arg in arg_words[1:]))
        return None if named and len(arg_words) > 1 else GitContent("cat-file")
    if subcommand == "grep":
        return _grep_content(arguments)
    if subcommand == "stash" and arguments and arguments[0].text == "show":
        return GitContent(subcommand) if _stash_prints([arg.text for arg in arg_words]) else None
    return _compared(subcommand, arg_words)


def _compared(subcommand: str, arg_words: Sequence[Arg]) -> GitContent | None:
    """Return the content that a command of the families of `git diff` and `git log` can print."""
    scope = _scope(arg_words)
    compares = subcommand in _COMPARES
    if subcommand == "show" and any(_OF_REFERENCES.fullmatch(arg.text) for arg in arg_words):
        return GitContent(subcommand)
    if not _prints(subcommand, [arg.text for arg in arg_words]):
        return _of_objects(subcommand, scope.objects, scope.ended) if subcommand == "show" else None
    if subcommand in ("range-diff", "fast-export") and not scope.only_paths:
        return GitContent(subcommand)
    if compares and any(":" in _IN_BRACES.sub("", arg.text) for arg in (*scope.words, *scope.doubtful)):
        return scope.of_trees(subcommand)  # such as HEAD:src
    if subcommand != "show" and not compares:
        return scope.effect(subcommand)
    if subcommand == "show" and scope.words and not scope.doubtful and all(_names_file(arg) for arg in scope.words):
        return None
    return replace(scope.effect(subcommand), objects=_named_objects(scope.objects, scope.ended, trees=compares))


def _stash_prints(texts: Sequence[str]) -> bool:
    """Return True if `git stash show` can print content.

    Any option replaces its list of names, and must itself name a form that prints content. Without an option, the
    user's `stash.showPatch` decides.
    """
    return _prints("diff", texts)


def _of_objects(subcommand: str, args: Sequence[Arg], ended: bool) -> GitContent | None:
    """Return the effect of printing the named objects, if they are contents of files."""
    objects = _named_objects(args, ended)
    return GitContent(subcommand, restricted=True, objects=objects) if objects else None


def _named_objects(args: Sequence[Arg], ended: bool, *, trees: bool = False) -> tuple[tuple[str, str], ...]:
    """Return the names that mean the content of a file if they are not commits.

    `ended`: no name can be a path. `trees`: the content of a tree is printed too.
    """
    return tuple(
        (name, "" if ended or arg.glob or name != arg.text else name)
        for arg in args
        if not _names_file(arg)
        for name in _unsure_names(arg.text, trees=trees)
    )


def _unsure_names(text: str, *, trees: bool) -> Iterator[str]:
    """Yield the names in a revision that are not certainly commits by their spelling.

    With `trees`: those that are not certainly trees of commits.
    """
    if text.startswith(":"):
        return  # a search for a commit, or a path
    if ".." in text:
        for end in re.split(r"\.{2,}", text):
            yield from _unsure_names(end, trees=trees)
        return
    name = text.removeprefix("^")
    if tree := _TREE.fullmatch(name):
        if trees:
            yield from _unsure_names(tree[1], trees=True)
        return
    if _COMMIT.fullmatch(name) or re.fullmatch(r"[^:]+:", name):
        return
    name = re.sub(r"@\{[^{}]*\}$", "", name)
    if name not in ("", "HEAD", "@"):
        yield name


def _grep_content(arguments: Sequence[Arg]) -> GitContent | None:
    """Return the content that `git grep` can print from objects, and from outside its own folder."""
    objects, ended = _searched(arguments)
    paths = list[str]()
    for arg in (*objects, *arguments[end_of_options(arguments) + 1 :]):
        if EXCLUDES.match(arg.text) or ("." in arg.text and _is_code(arg)):
            continue
        folder = None if _names_file(arg) else _folder_of(arg)
        if folder is None:
            return GitContent("grep")
        paths.append(folder or ".")
    named = _named_objects(objects, ended)
    return GitContent("grep", tuple(paths), restricted=True, objects=named) if paths or named else None


def _searched(arguments: Sequence[Arg]) -> tuple[list[Arg], bool]:
    """Return the operands of `git grep` that may be objects to search, and True if a `--` follows them."""
    searched = list[Arg]()
    patterns = 1
    value = False
    for arg in arguments:
        if value:
            value = False
        elif arg.text == "--":
            return searched[patterns:], True
        elif arg.text.startswith("-"):
            value = _GREP_VALUED.fullmatch(arg.text) is not None
            patterns = 0 if _GREP_PATTERN.fullmatch(arg.text) else patterns
        else:
            searched.append(arg)
    return searched[patterns:], False


def _prints(subcommand: str, texts: Sequence[str]) -> bool:
    """Return True if content may be printed with these options."""
    if subcommand not in _BY_DEFAULT and subcommand not in _IF_ASKED:
        return False
    replaced = False
    before = ""
    for text in texts:
        free = not _takes_value(before)  # the word is not the value of the option before it
        if text == "--" and free:
            break
        if text.startswith("-") and text not in ("-", "--"):
            instead = _WITHOUT_CONTENT.fullmatch(text) is not None
            if not instead and not _SILENT.fullmatch(text):
                return True
            replaced |= instead and free
        before = text
    return subcommand not in _IF_ASKED and not (replaced and subcommand in ("diff", "show"))


def _takes_value(text: str) -> bool:
    return text.startswith("-") and text not in ("-", "--") and not _ALONE.fullmatch(text)


def _names_file(arg: Arg) -> bool:
    one = _OF_ONE_FILE.fullmatch(arg.text) and not re.search(r"\.\.[^/]", arg.text)  # not a range of two files
    return bool(one) and not MAGIC.match(arg.text)


@dataclass(slots=True)
class _Scope:
    """Paths among the words of a command."""

    only_paths: bool = False
    """True if the words after a certain `--` are all paths, and there are no other operands."""
    words: list[Arg] = field(default_factory=list[Arg])
    """Operands before `--`: revisions, or paths if there is no `--`."""
    doubtful: list[Arg] = field(default_factory=list[Arg])
    """Operands that may be values of options."""
    objects: list[Arg] = field(default_factory=list[Arg])
    """Operands of both kinds that are not certainly values of options."""
    paths: list[Arg] = field(default_factory=list[Arg])
    """Operands after `--`."""
    ended: bool = False
    whole: bool = False

    def effect(self, subcommand: str) -> GitContent:
        if self.whole:
            return GitContent(subcommand)
        without = tuple(text for arg in self.paths if (text := _left_out(arg)))
        named = [arg for arg in self.paths if not EXCLUDES.match(arg.text)]
        if self.ended:
            places = [_place(arg) for arg in named]
            if None in places or not places:
                return GitContent(subcommand, without=without)
            return GitContent(subcommand, tuple(text for text in places if text), restricted=True, without=without)
        if any(_is_pattern(arg) for arg in (*self.words, *self.doubtful)):
            return GitContent(subcommand)
        doubtful = tuple(text for arg in self.doubtful if (text := _place(arg)))
        return GitContent(subcommand, words=tuple(arg.text for arg in self.words), doubtful=doubtful)

    def of_trees(self, subcommand: str) -> GitContent:
        """Return the content that a comparison of folders or files of commits can print, whatever its other paths."""
        places = [_within_commit(arg) for arg in self.words]
        if len(places) != 2 or self.doubtful or self.whole or not all(places):
            return GitContent(subcommand)
        return GitContent(subcommand, restricted=True, trees=tuple(place for place in places if place))


def _scope(arg_words: Sequence[Arg]) -> _Scope:
    scope = _Scope()
    sure = True
    valued = False
    for arg in arg_words:
        if scope.ended:
            scope.paths.append(arg)
        elif arg.text == "--" and sure:
            scope.ended = True
        elif arg.text.startswith("-") and arg.text not in ("-", "--"):
            scope.whole |= arg.text.startswith(("--full-d", "--stdin"))
            valued = sure and _VALUED.fullmatch(arg.text) is not None
            sure = not _takes_value(arg.text)
            continue
        else:
            if not valued:
                scope.objects.append(arg)
            (scope.words if sure else scope.doubtful).append(arg)
            sure = True
        valued = False
    scope.only_paths = scope.ended and not scope.words and not scope.doubtful
    return scope


def _left_out(arg: Arg) -> str:
    """Return the path that `:!PATH` excludes; empty for any other word."""
    match = EXCLUDES.match(arg.text)
    path = arg.text[match.end() :] if match else ""
    parts = path.split("/")
    # Git reads `..` textually as the folder above in the name, but a folder that is a link has another parent.
    unsure = arg.glob or ".." in parts or any(globs.is_pattern(part) for part in parts) or "\\" in path
    return "" if unsure else path


def _place(arg: Arg) -> str | None:
    """Return the folder or file that contains a git path; empty for code only, None for everything."""
    if "." in arg.text and _is_code(arg):
        return ""
    return None if arg.glob else _folder_of(arg) or None


def _folder_of(arg: Arg) -> str | None:
    """Return the folder or file that a git path begins with; empty for the current folder, None if it can be any."""
    if arg.text.startswith(":") or not arg.text or _climbs(arg.text):
        return None
    if arg.glob and arg.text.startswith(("*", "?", "[")):
        return None
    parts = takewhile(lambda part: not globs.is_pattern(part) and "\\" not in part, arg.text.split("/"))
    return "/".join(parts)


def _climbs(path: str) -> bool:
    """Return True if a name precedes `..`. Git removes both, also where the name is a pattern or a link."""
    parts = (part for part in path.split("/") if part not in ("", "."))
    return ".." in dropwhile(lambda part: part == "..", parts)


def _is_pattern(arg: Arg) -> bool:
    """Return True if git may treat a word without `--` before it as a pattern of paths, or as a path with options."""
    text = arg.text
    return (
        arg.glob or text.startswith(":") or "\\" in text or _climbs(text) or globs.is_pattern(_IN_BRACES.sub("", text))
    )


def _within_commit(arg: Arg) -> str:
    """Return the path of `REVISION:PATH`; empty for any other word, and for a path that may mean all."""
    path = re.sub(r"^(?::[0-3]|[^:]*):", "", arg.text) if _names_file(arg) and not arg.glob else ""
    parts = [part for part in path.split("/") if part not in ("", ".")]
    return "" if ".." in parts else "/".join(parts)
