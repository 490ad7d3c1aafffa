"""Content of a workspace that would run something or extend rights (claims), and its digest. Pure.

A person trusts the content by its digest.

Trust applies to a pair: the real path of a workspace, and the digest of its content. The digest covers every file that
is read as configuration, byte for byte, every script that a command in them names, and the git settings that are not
known to be harmless. A change to any of them changes the digest, and the person is asked again (docs/trust.md).

Claims are hooks, servers, rules, variables and commands of configuration files, each in full with its line. Everything
that a person would want to see is listed, including settings that this version ignores: trust applies to the content,
and the next version may use more of it. Rules that only tighten (deny, ask) are not claims. `printable` escapes
everything in a text that would be invisible, or would look like something else.

The words of a command that may name a file are found generously: every run of characters that a path can contain, at
any position. Other code checks that such a file exists; its content is then part of the digest. Commands inside such a
file are not followed.
"""

from __future__ import annotations

import hashlib
import json
import posixpath
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import field
from itertools import zip_longest
from typing import Literal

from callboard.core.skills.substitution import commands_in
from callboard.core.trust.yaml_nodes import Members, YamlNode, plain
from callboard.types.late_pattern import late_pattern
from callboard.types.lazy_dataclass import dataclass

ClaimKind = Literal[
    "hook",
    "command",
    "server",
    "url",
    "variable",
    "rule",
    "mode",
    "folder",
    "agent",
    "skill",
    "schedule",
    "setting",
    "git",
    "script",
    "unread",
]
"""Kinds of a claim. `script`: a file that would be run; `unread`: a file that is not used, and the reason."""

_BLANK = frozenset("\u115f\u1160\u2800\u3164\uffa0")
"""Characters that count as printable but show nothing."""


@dataclass(frozen=True, slots=True, order=True)
class Claim:
    """One item that a workspace could use once it is trusted."""

    path: str
    """Path of its file, relative to the workspace; absolute for a file outside of it."""
    kind: ClaimKind
    text: str
    """Full text of the command, variable, URL, rule or setting, as in the file."""
    line: int = field(default=0, compare=False)
    """Line number from 1; 0: the whole file. Claims that differ only in their lines are equal."""

    @property
    def where(self) -> str:
        """Return `file:line`, or the file."""
        return f"{self.path}:{self.line}" if self.line else self.path


@dataclass(frozen=True, slots=True)
class WorkspaceClaims:
    """Configuration, scripts and claims of a workspace, read once.

    This content is shown, trusted and used, not later versions of the files.
    """

    workspace: str
    """Real path of the workspace."""
    claims: tuple[Claim, ...] = ()
    hashes: Mapping[str, str] = field(default_factory=dict[str, str])
    """File (relative to the workspace) -> SHA-256 of its bytes, for configuration and scripts."""
    content: Mapping[str, bytes] = field(default_factory=dict[str, bytes])
    """Bytes of the configuration files."""
    scripts: frozenset[str] = frozenset()
    """Files of `hashes` that are run, not read. They are checked again before a hook runs them."""

    @property
    def digest(self) -> str:
        """Return 64 hexadecimal digits."""
        return digest_of(self.claims, self.hashes)

    @property
    def nothing(self) -> bool:
        """Return True if nothing needs to be trusted."""
        return not self.claims and not self.hashes

    def text(self, path: str) -> str | None:
        """Return the text of a configuration file; None if it is missing or is not UTF-8."""
        raw = self.content.get(path)
        try:
            return None if raw is None else raw.decode("utf-8-sig")
        except UnicodeDecodeError:
            return None

    def fault(self, path: str) -> str:
        """Return the reason why a file is not used; empty if it is, or does not exist."""
        return next((claim.text for claim in self.claims if claim.path == path and claim.kind == "unread"), "")

    def files_below(self, folder: str) -> tuple[str, ...]:
        """Return the configuration files beneath a folder (`.callboard/agents`), sorted."""
        return tuple(sorted(path for path in self.content if path.startswith(folder + "/")))


@dataclass(frozen=True, slots=True)
class TrustDecision:
    """A person's approval of one content of one workspace."""

    workspace: str
    digest: str
    at: float
    """Seconds since 1970."""
    claims: tuple[Claim, ...] = ()
    hashes: Mapping[str, str] = field(default_factory=dict[str, str])


@dataclass(frozen=True, slots=True)
class ClaimChanges:
    """Differences from the content that was last trusted."""

    added: tuple[Claim, ...] = ()
    removed: tuple[Claim, ...] = ()
    rewritten: tuple[str, ...] = ()
    """Files with changed bytes, although none of their claims changed."""


def digest_of(claims: Iterable[Claim], hashes: Mapping[str, str]) -> str:
    """Return the digest of a content, independent of the order of reading. Line numbers do not count."""
    claim_rows = sorted([claim.path, claim.kind, claim.text] for claim in claims)
    encoded = json.dumps([claim_rows, sorted(hashes.items())], separators=(",", ":"))
    return hashlib.sha256(encoded.encode()).hexdigest()


def hash_of(raw: bytes) -> str:
    """Return the digest of one file."""
    return hashlib.sha256(raw).hexdigest()


def changes_since(before: TrustDecision, now: WorkspaceClaims) -> ClaimChanges:
    """Return the changes that a person who trusted `before` has not seen yet."""
    old = set(before.claims)
    new = set(now.claims)
    touched = {claim.path for claim in old ^ new}
    others = {path for path, _ in set(before.hashes.items()) ^ set(now.hashes.items())}
    return ClaimChanges(
        added=tuple(claim for claim in now.claims if claim not in old),
        removed=tuple(claim for claim in before.claims if claim not in new),
        rewritten=tuple(sorted(others - touched)),
    )


def printable(text: str) -> str:
    """Return the text with invisible characters and terminal controls escaped.

    Escaped characters are controls, bidirectional marks, and unusual spaces.
    """
    if text.isprintable() and not _BLANK & set(text):
        return text
    return "".join(
        character if character.isprintable() and character not in _BLANK else _spelled(character) for character in text
    )


def _spelled(character: str) -> str:
    return "\\n" if character == "\n" else character.encode("unicode_escape").decode()


_PROJECT = late_pattern(r"\$\{?CLAUDE_PROJECT_DIR\}?/?|\$\{?PWD\}?/|\$\(pwd\)/|\$\(git rev-parse --show-toplevel\)/")
_SEPARATORS = late_pattern(r"""[\s"'`;|&<>(){}=,:\[\]]+""")
_FILE = r"""(?:"[^"\n]*"|'[^'\n]*'|[^\s"'`;|&<>(){}])+"""
_WRITTEN = late_pattern(
    rf"""(?<![\\"'=<>-])[0-9&]?>>?\|?[ \t]*{_FILE}|(?<![\w./-])tee(?:[ \t]+-[\w-]+)*[ \t]+{_FILE}"""
)
"""Redirections of output, and `tee`, with the file that they write."""
_LONGEST = 1_000
MOST = 200
"""Maximum number of words of one command that are looked up."""
_PACKAGE = ("package.json", ".npmrc")
_PYTHON = ("pyproject.toml",)
_RECIPES: Mapping[str, tuple[str, ...]] = {
    "npm": _PACKAGE,
    "pnpm": (*_PACKAGE, ".pnpmfile.cjs"),
    "yarn": (*_PACKAGE, ".yarnrc", ".yarnrc.yml"),
    "bun": (*_PACKAGE, "bunfig.toml"),
    "deno": ("deno.json", "deno.jsonc", "package.json"),
    "make": ("GNUmakefile", "makefile", "Makefile"),
    "gmake": ("GNUmakefile", "makefile", "Makefile"),
    "just": ("justfile", ".justfile", "Justfile"),
    "task": ("Taskfile.yml", "Taskfile.yaml", "taskfile.yml", "taskfile.yaml"),
    "uv": (*_PYTHON, "uv.toml"),
    "poetry": (*_PYTHON, "poetry.toml"),
    "pdm": (*_PYTHON, "pdm.toml"),
    "hatch": (*_PYTHON, "hatch.toml"),
    "pipenv": ("Pipfile",),
}
"""Files of the current folder from which these programs take their commands."""


def recipe_files(command: str) -> list[str]:
    """Return the files of the workspace whose recipes the command may run, each once, in order.

    Such commands are `npm run x` and `make x`.
    """
    candidates = [word for word in _SEPARATORS.split(command) if word]
    recipes: dict[str, None] = {}
    for word, after in zip_longest(candidates, candidates[1:], fillvalue=""):
        name = posixpath.basename(word)
        if name != "npm" or after not in ("exec", "x"):  # those start packages in an empty folder
            recipes |= dict.fromkeys(_RECIPES.get(name, ()))
    return list(recipes)


def named_files(command: str, workspace: str) -> list[str]:
    """Return the paths relative to the workspace that the command may run or read, each once, in order.

    Files that it only writes are left out: the first run of a hook that keeps a log would end the trust.
    """
    text = _WRITTEN.sub(" ", _PROJECT.sub("./", command).replace(workspace.rstrip("/") + "/", "./"))
    quoted = re.findall(r'"([^"]+)"|\'([^\']+)\'', text)  # a quoted name may contain spaces
    candidates = [*_SEPARATORS.split(text), *(first or other for first, other in quoted), text.strip()]
    paths: dict[str, None] = {}
    for word in candidates:
        clean = word.replace("\\ ", " ").strip()
        if not clean or len(clean) > _LONGEST or clean.startswith(("/", "~", "-", "$")) or "\0" in clean:
            continue
        path = posixpath.normpath(clean)
        if path != "." and not path.startswith("../") and path != "..":
            paths[path] = None
    return list(paths)[:MOST]


_TIGHTENS = frozenset({"ask", "deny", "never", "always_ask", "disableBypassPermissionsMode", "disableAutoMode"})
_COMMANDS = frozenset({"apiKeyHelper", "awsAuthRefresh", "awsCredentialExport", "otelHeadersHelper", "statusLine"})


def settings_claims(path: str, document: YamlNode) -> list[Claim]:
    """Return the claims of the runtime's `settings.yaml`: each value that is set, hooks and allow rules separately."""
    claims: list[Claim] = []
    for name, node in _members(document):
        if name == "hooks":
            claims += hook_claims(path, node)
        elif name == "permission":
            claims += _permission_claims(path, node)
        else:
            claims += [Claim(path, "setting", f"{at} = {value}", line) for at, value, line in _leaves(node, name)]
    return claims


def claude_claims(path: str, document: YamlNode) -> list[Claim]:
    """Return the claims of a `.claude/settings.json` or `settings.local.json`."""
    claims: list[Claim] = []
    for name, node in _members(document):
        if name == "hooks":
            claims += hook_claims(path, node)
        elif name == "permissions":
            claims += _permission_claims(path, node)
        elif name == "env":
            claims += _variables(path, node)
        elif name not in _TIGHTENS:
            kind: ClaimKind = "command" if name in _COMMANDS else "setting"
            claims += [Claim(path, kind, f"{at} = {value}", line) for at, value, line in _leaves(node, name)]
    return claims


def _permission_claims(path: str, node: YamlNode) -> Iterator[Claim]:
    for name, inner in _members(node):
        kinds: dict[str, ClaimKind] = {"allow": "rule", "mode": "mode", "defaultMode": "mode"}
        kind = kinds.get(name, "folder" if name == "additionalDirectories" else "setting")
        if name not in _TIGHTENS:
            label = {"rule": "allow ", "mode": "", "folder": ""}.get(kind, f"permission.{name} = ")
            yield from (Claim(path, kind, label + _text(item), item.line) for item in _items(inner))


def hook_claims(path: str, hooks: YamlNode, *, of: str = "") -> list[Claim]:
    """Return the claims of a `hooks` mapping: event -> groups of a matcher and handlers.

    Values of another shape are listed as they are.
    """
    claims: list[Claim] = []
    for event, groups in _members(hooks, otherwise="hooks"):
        for group in _items(groups):
            claims += _group_claims(path, f"{of}{event}", group)
    return claims


def _group_claims(path: str, event: str, group: YamlNode) -> Iterator[Claim]:
    fields = dict(_members(group))
    handlers = fields.get("hooks")
    if handlers is None or handlers.items is None:
        yield Claim(path, "hook", f"{event}: {_text(group)}", group.line)
        return
    matcher = fields.get("matcher")
    when = f"{event}({_text(matcher)})" if matcher is not None and matcher.value else event
    for handler in _items(handlers):
        yield _handler_claim(path, when, handler)


def _handler_claim(path: str, when: str, handler: YamlNode) -> Claim:
    fields = dict(_members(handler))
    kind_field = next((name for name in ("command", "url", "prompt") if name in fields), "")
    if not kind_field:
        return Claim(path, "hook", f"{when}: {_text(handler)}", handler.line)
    others = {name: plain(node) for name, node in fields.items() if name not in (kind_field, "type")}
    kind: ClaimKind = "url" if kind_field == "url" else "hook"
    text = f"{when}: {_text(fields[kind_field])}{_json_suffix(others)}"
    return Claim(path, kind, text, fields[kind_field].line)


def server_claims(path: str, servers: YamlNode, *, of: str = "") -> list[Claim]:
    """Return the claims of `mcpServers`: name -> the command or URL, with variables and headers."""
    claims: list[Claim] = []
    for name, server in _members(servers, otherwise="mcpServers"):
        fields = dict(_members(server))
        if not fields:
            claims.append(Claim(path, "server", f"{of}{name}: {_text(server)}", server.line))
            continue
        if "env" in fields:
            claims += _variables(path, fields["env"], of=f"{of}{name}: ")
        if "command" in fields:
            command_line = [_text(fields["command"]), *(_text(item) for item in _items(fields.get("args")))]
            claims.append(Claim(path, "server", f"{of}{name}: {' '.join(command_line)}", fields["command"].line))
        if "url" in fields:
            claims.append(Claim(path, "url", f"{of}{name}: {_text(fields['url'])}", fields["url"].line))
        if "headersHelper" in fields:
            helper = fields["headersHelper"]
            claims.append(Claim(path, "command", f"{of}{name}: headersHelper: {_text(helper)}", helper.line))
        others = {key: plain(node) for key, node in fields.items() if key not in _SERVER_FIELDS}
        if others or not {"command", "url"} & fields.keys():
            claims.append(Claim(path, "server", f"{of}{name}:{_json_suffix(others)}", server.line))
    return claims


_SERVER_FIELDS = frozenset({"env", "command", "args", "url", "headersHelper", "type"})


def agent_claims(path: str, document: YamlNode) -> list[Claim]:
    """Return the claims of an agent file's front matter: its tools and mode, its hooks and servers."""
    fields = dict(_members(document))
    name = _text(fields["name"]) if "name" in fields else ""
    claims = [_listed(path, "agent", name, fields)]
    if "hooks" in fields:
        claims += hook_claims(path, fields["hooks"])
    for item in _items(fields.get("mcpServers")):
        claims += server_claims(path, item) if item.members is not None else []
    return claims


def skill_claims(path: str, document: YamlNode, body: str, first_line: int) -> list[Claim]:
    """Return the claims of a `SKILL.md`, or of a command's file.

    The claims are the rights that the skill would get, its hooks, and the commands that run when it is loaded.

    `first_line`: line of the body in its file.
    """
    fields = dict(_members(document))
    *_, folder, file = ("", *path.split("/"))
    name = folder or file if file == "SKILL.md" else file.removesuffix(".md")
    claims = [_listed(path, "skill", name, fields)]
    if "hooks" in fields:
        claims += hook_claims(path, fields["hooks"])
    for match in commands_in(body):
        claims.append(Claim(path, "command", match.command, first_line + body.count("\n", 0, match.start)))
    return claims


_QUIET_FIELDS = frozenset(
    {"name", "description", "when_to_use", "argument-hint", "color", "license", "compatibility", "hooks"}
)


def _listed(path: str, kind: ClaimKind, name: str, fields: dict[str, YamlNode]) -> Claim:
    others = {key: plain(node) for key, node in fields.items() if key not in _QUIET_FIELDS}
    return Claim(path, kind, f"{name}{_json_suffix(others)}" if name or others else "(no front matter)", 1)


def schedule_claims(path: str, document: YamlNode, body: str) -> list[Claim]:
    """Return the claims of a schedule's file: all of it, since it is a prompt that runs unattended."""
    return [Claim(path, "schedule", f"{_text(document)} {body.strip()}".strip(), 1)]


def _variables(path: str, node: YamlNode, *, of: str = "") -> Iterator[Claim]:
    for name, value in _members(node, otherwise="env"):
        yield Claim(path, "variable", f"{of}{name}={_text(value)}", value.line)


def _members(node: YamlNode | None, otherwise: str = "") -> Members:
    """Return the members of a mapping.

    Any other value becomes the single member `otherwise`, so that it is still listed.
    """
    if node is not None and node.members is not None:
        return node.members
    return ((otherwise, node),) if otherwise and node is not None and plain(node) is not None else ()


def _items(node: YamlNode | None) -> tuple[YamlNode, ...]:
    """Return the items of a list; any other value counts as a list of one."""
    if node is None or plain(node) is None:
        return ()
    return (node,) if node.items is None else node.items


def _text(node: YamlNode) -> str:
    return node.value if isinstance(node.value, str) else _json(plain(node))


def _json(value: object) -> str:
    return json.dumps(value, ensure_ascii=False)


def _json_suffix(others: dict[str, object]) -> str:
    return f" {_json(others)}" if others else ""


def _leaves(node: YamlNode, at: str) -> Iterator[tuple[str, str, int]]:
    if node.members:
        for name, inner in node.members:
            yield from _leaves(inner, f"{at}.{name}")
    else:
        yield at, _text(node), node.line
