"""The runtime's own git calls, in one hardened place: nothing that a repository's configuration names is run.

`git status` and `git diff` run what `core.fsmonitor`, filters, textconv and external diffs say; all of them are
switched off here, filters by name. Git is found outside the workspace and told nothing of the environment that could
steer it. Refuses to guess: a call that fails or takes too long gives no facts.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType

from callboard.adapters.programs import Ran, clean_environment, find_program, run_program
from callboard.core.context.reminders import shown_name

_QUIET = (
    "core.fsmonitor=false",
    "core.hooksPath=/dev/null",
    "core.pager=cat",
    "core.editor=true",
    "core.askPass=",
    "core.sshCommand=false",
    "core.alternateRefsCommand=",
    "credential.helper=",
    "protocol.ext.allow=never",
    "commit.gpgSign=false",
    "tag.gpgSign=false",
    "gc.auto=0",
    "maintenance.auto=false",
    "submodule.recurse=false",
    "color.ui=false",
    "log.showSignature=false",
)
_SWITCHES: Mapping[str, tuple[str, ...]] = {
    "diff": ("--no-ext-diff", "--no-textconv"),
    "show": ("--no-ext-diff", "--no-textconv"),
    "log": ("--no-ext-diff", "--no-textconv"),
    "format-patch": ("--no-ext-diff", "--no-textconv"),
    "blame": ("--no-textconv",),
}
_HARMLESS = {"clean": "", "smudge": "", "process": "", "required": "false", "textconv": "cat", "driver": "false"}
"""What each kind of configured program is replaced by: nothing, or for a merge driver what leaves a conflict."""
_NAMES_ONLY = frozenset(
    {
        "rev-parse",
        "symbolic-ref",
        "for-each-ref",
        "update-ref",
        "rev-list",
        "ls-tree",
        "ls-files",
        "config",
        "write-tree",
    }
)
"""Commands that look at no file's content, so that no filter could run."""
_STEERING = ("GIT_PAGER", "PAGER")
_FIELDS = {"1": 7, "2": 8, "u": 9, "?": 0}
"""Fields between the kind of an entry of `git status --porcelain=v2` and its path."""
NAMES_SHOWN = 20


@dataclass(frozen=True, slots=True)
class GitFacts:
    """What a reminder says of the repository. Paths are relative to the folder that was asked about."""

    branch: str
    """Empty when no branch is checked out."""
    commit: str
    """Short; empty before the first one."""
    changed: tuple[str, ...] = ()
    untracked: tuple[str, ...] = ()
    conflicts: tuple[str, ...] = ()
    ahead: int = 0
    behind: int = 0

    def describe(self) -> str:
        """A few lines for a prompt."""
        where = f"branch {self.branch}" if self.branch else "no branch (detached)"
        lines = [f"Git: {where}, {f'at {self.commit}' if self.commit else 'no commit yet'}"]
        if self.ahead or self.behind:
            lines[0] += f", {self.ahead} ahead of and {self.behind} behind its upstream"
        for title, names in (("Conflicts", self.conflicts), ("Changed", self.changed), ("Untracked", self.untracked)):
            if names:
                more = f" and {len(names) - NAMES_SHOWN} more" if len(names) > NAMES_SHOWN else ""
                lines.append(f"{title} ({len(names)}): {', '.join(map(shown_name, names[:NAMES_SHOWN]))}{more}")
        return "\n".join(lines if len(lines) > 1 else [lines[0] + ", clean"])


@dataclass(frozen=True, slots=True)
class Git:
    """Git for one workspace. `environment` is the person's, before the allow-list."""

    workspace: Path
    environment: Mapping[str, str]

    async def run(
        self,
        arguments: Sequence[str],
        folder: Path | None = None,
        timeout: float = 30,
        given: bytes = b"",
        extra: Mapping[str, str] = MappingProxyType({}),
    ) -> Ran:
        """Run `git ARGUMENTS` in the folder (default: the workspace), `given` as its standard input.

        `extra`: variables of our own for it, such as GIT_INDEX_FILE. Raises FileNotFoundError when there is no git
        outside the workspace.
        """
        program = find_program("git", self.workspace, self.environment.get("PATH"))
        if program is None:
            raise FileNotFoundError("git was not found on PATH outside the workspace; install it")
        base = [program, "--no-pager", "-C", str(folder or self.workspace)]
        command, *rest = arguments
        options = [word for setting in _QUIET for word in ("-c", setting)]
        environment = self._environment(folder) | dict(extra)
        if command not in _NAMES_ONLY:
            environment |= await self._filters(base, environment)
        words = [*base, *options, command, *_SWITCHES.get(command, ()), *rest]
        return await run_program(words, environment, given=given, timeout=timeout)

    async def facts(self, folder: Path | None = None) -> GitFacts | None:
        """Branch, commit and what is dirty; None outside a repository, without git, and after 5 s."""
        wanted = ("status", "--porcelain=v2", "--branch", "-z", "--untracked-files=normal", "--ignore-submodules=all")
        try:
            told = await self.run(wanted, folder, timeout=5)
        except OSError:
            return None
        return _read_status(told.out.decode(errors="replace")) if told.code == 0 else None

    async def _filters(self, base: Sequence[str], environment: Mapping[str, str]) -> dict[str, str]:
        """Variables that switch off every filter and driver that any configuration names.

        Not `-c`: that ends a name at its first `=`, which a filter's name may hold.
        """
        pattern = rf"^(filter|diff|merge)\..*\.({'|'.join(_HARMLESS)})$"
        told = await run_program(
            [*base, "config", "--includes", "--null", "--name-only", "--get-regexp", pattern],
            environment,
            timeout=5,
        )
        names = sorted(set(told.out.decode(errors="surrogateescape").split("\0")) - {""})
        variables = {"GIT_CONFIG_COUNT": str(len(names))}
        for index, name in enumerate(names):
            variables[f"GIT_CONFIG_KEY_{index}"] = name
            variables[f"GIT_CONFIG_VALUE_{index}"] = _HARMLESS[name.rpartition(".")[2]]
        return variables

    def _environment(self, folder: Path | None = None) -> dict[str, str]:
        """It never looks for a repository above the workspace, nor above the folder that it is asked about."""
        kept = clean_environment(self.environment)
        known = (self.workspace, folder or self.workspace)
        above = dict.fromkeys(os.path.dirname(os.path.realpath(one)) for one in known)  # noqa: PTH120
        for name in _STEERING:
            kept.pop(name, None)
        return kept | {
            "GIT_CONFIG_NOSYSTEM": "1",
            "GIT_OPTIONAL_LOCKS": "0",
            "GIT_TERMINAL_PROMPT": "0",
            "GIT_ATTR_NOSYSTEM": "1",
            "GIT_CEILING_DIRECTORIES": ":".join(above),
            "LC_ALL": "C.UTF-8",
        }


def _read_status(text: str) -> GitFacts:
    """Read `git status --porcelain=v2 --branch -z`."""
    headers: dict[str, str] = {}
    found: dict[str, list[str]] = {"1": [], "?": [], "u": []}
    entries = iter(text.split("\0"))
    for entry in entries:
        kind, _, rest = entry.partition(" ")
        if kind == "#":
            name, _, value = rest.partition(" ")
            headers[name] = value
        if kind in _FIELDS:
            found["u" if kind == "u" else "?" if kind == "?" else "1"].append(rest.split(" ", _FIELDS[kind])[-1])
        if kind == "2":
            next(entries, None)  # the name it had before
    ahead, behind = (headers.get("branch.ab") or "+0 -0").split()
    branch, commit = headers.get("branch.head", ""), headers.get("branch.oid", "")
    return GitFacts(
        branch="" if branch == "(detached)" else branch,
        commit="" if commit == "(initial)" else commit[:10],
        changed=tuple(found["1"]),
        untracked=tuple(found["?"]),
        conflicts=tuple(found["u"]),
        ahead=int(ahead),
        behind=-int(behind),
    )
