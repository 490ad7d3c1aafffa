"""Which words of a command may name a file of the workspace that it runs: that file's content counts as well. Pure.

Words are found generously: every run of characters that a path can hold, wherever it stands. Whether there is such a
file is looked up elsewhere. What such a file runs in its turn is not followed.
"""

from __future__ import annotations

import posixpath
import re

_PROJECT = re.compile(r"\$\{?CLAUDE_PROJECT_DIR\}?/?|\$\{?PWD\}?/|\$\(pwd\)/|\$\(git rev-parse --show-toplevel\)/")
_SEPARATORS = re.compile(r"""[\s"'`;|&<>(){}=,:\[\]]+""")
_LONGEST = 1_000
MOST = 200
"""Words of one command that are looked up."""


def named_files(command: str, workspace: str) -> list[str]:
    """Paths relative to the workspace that the command may mean, each once, in their order."""
    text = _PROJECT.sub("./", command).replace(workspace.rstrip("/") + "/", "./")
    quoted = re.findall(r'"([^"]+)"|\'([^\']+)\'', text)  # a name may hold blanks where it stands in quotes
    words = [*_SEPARATORS.split(text), *(one or other for one, other in quoted), text.strip()]
    found: dict[str, None] = {}
    for word in words:
        clean = word.replace("\\ ", " ").strip()
        if not clean or len(clean) > _LONGEST or clean.startswith(("/", "~", "-", "$")) or "\0" in clean:
            continue
        path = posixpath.normpath(clean)
        if path != "." and not path.startswith("../") and path != "..":
            found[path] = None
    return list(found)[:MOST]
