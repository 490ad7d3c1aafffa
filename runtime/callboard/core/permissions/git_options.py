"""Options that git reads before its subcommand, and the names of git's own subcommands."""

from __future__ import annotations

import posixpath

from callboard.core.permissions.command_table import names
from callboard.core.permissions.values import Arg

_GIT_HARMLESS = frozenset(("--no-pager", "-P", "--no-optional-locks", "--literal-pathspecs", "--no-replace-objects"))
_GIT_WITH_VALUE = frozenset(("-C", "-c", "--git-dir", "--work-tree", "--namespace", "--exec-path", "--config-env"))

GIT_COMMANDS = names(
    "add am annotate apply archive bisect blame branch bugreport bundle cat-file check-attr check-ignore check- "
    "mailmap check-ref-format checkout checkout-index cherry cherry-pick clean clone column commit commit-graph "
    "commit-tree config count-objects credential daemon describe diagnose diff diff-files diff-index diff-tree "
    "difftool fast-export fast-import fetch fetch-pack filter-branch fmt-merge-msg for-each-ref for-each-repo "
    "format-patch fsck gc get-tar-commit-id grep hash-object help hook http-push index-pack init init-db interpret- "
    "trailers log ls-files ls-remote ls-tree mailinfo mailsplit maintenance merge merge-base merge-file merge-index "
    "merge-tree mergetool mktag mktree multi-pack-index mv name-rev notes pack-objects pack-refs patch-id prune "
    "prune-packed pull push range-diff read-tree rebase receive-pack reflog remote repack replace request-pull "
    "rerere reset restore rev-list rev-parse revert rm send-pack shortlog show show-branch show-index show-ref "
    "sparse-checkout stage stash status stripspace submodule switch symbolic-ref tag unpack-file unpack-objects "
    "update-index update-ref update-server-info upload-archive upload-pack var verify-commit verify-pack verify-tag "
    "version worktree write-tree"
)
"""Commands that every git has since 2.39, and for which it ignores aliases. Not `whatchanged` and `pack-redundant`: new
versions of git allow aliases of commands that they no longer recommend."""


def git_options(args: list[Arg]) -> tuple[str, list[str]]:
    """Remove the options before git's subcommand. Return the folder of `-C`, and the options that are not harmless."""
    folder = ""
    odd = list[str]()
    while args and args[0].text.startswith("-"):
        option = args.pop(0).text
        if option == "-C" and args and args[0].known and not args[0].glob:
            folder = posixpath.join(folder, args.pop(0).text)
        elif option not in _GIT_HARMLESS:
            odd.append(option)
            del args[: option in _GIT_WITH_VALUE]
    return folder, odd
