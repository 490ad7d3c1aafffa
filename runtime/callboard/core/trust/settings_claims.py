"""What files of configuration claim: hooks, servers, rules, variables, commands, each in full with its line. Pure.

Whatever a person would want to have seen is listed, also what this version does not honour: trust is for the content,
and the next version may honour more of it. Rules that only tighten (deny, ask) are no claims.
"""

from __future__ import annotations

import json
from collections.abc import Iterator

from callboard.core.skills.commands import commands_in
from callboard.core.trust.claims import Claim, ClaimKind
from callboard.core.trust.nodes import Members, Node, plain

_TIGHTENS = frozenset({"ask", "deny", "never", "always_ask", "disableBypassPermissionsMode", "disableAutoMode"})
_COMMANDS = frozenset({"apiKeyHelper", "awsAuthRefresh", "awsCredentialExport", "otelHeadersHelper", "statusLine"})


def settings_claims(path: str, document: Node) -> list[Claim]:
    """Of our `settings.yaml`: each value that was set, hooks and allow rules as such."""
    claims: list[Claim] = []
    for name, node in _members(document):
        if name == "hooks":
            claims += hook_claims(path, node)
        elif name == "permission":
            claims += _permission_claims(path, node)
        else:
            claims += [Claim(path, "setting", f"{at} = {told}", line) for at, told, line in _leaves(node, name)]
    return claims


def claude_claims(path: str, document: Node) -> list[Claim]:
    """Of a `.claude/settings.json` or `settings.local.json`."""
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
            claims += [Claim(path, kind, f"{at} = {told}", line) for at, told, line in _leaves(node, name)]
    return claims


def _permission_claims(path: str, node: Node) -> Iterator[Claim]:
    for name, inner in _members(node):
        kinds: dict[str, ClaimKind] = {"allow": "rule", "mode": "mode", "defaultMode": "mode"}
        kind = kinds.get(name, "folder" if name == "additionalDirectories" else "setting")
        if name not in _TIGHTENS:
            label = {"rule": "allow ", "mode": "", "folder": ""}.get(kind, f"permission.{name} = ")
            yield from (Claim(path, kind, label + _text(one), one.line) for one in _items(inner))


def hook_claims(path: str, hooks: Node, *, of: str = "") -> list[Claim]:
    """Of a `hooks` mapping: event -> groups of a matcher and handlers. What has another shape is told as it is."""
    claims: list[Claim] = []
    for event, groups in _members(hooks, otherwise="hooks"):
        for group in _items(groups):
            claims += _group_claims(path, f"{of}{event}", group)
    return claims


def _group_claims(path: str, event: str, group: Node) -> Iterator[Claim]:
    fields = dict(_members(group))
    handlers = fields.get("hooks")
    if handlers is None or handlers.items is None:
        yield Claim(path, "hook", f"{event}: {_text(group)}", group.line)
        return
    matcher = fields.get("matcher")
    when = f"{event}({_text(matcher)})" if matcher is not None and matcher.value else event
    for handler in _items(handlers):
        yield _handler_claim(path, when, handler)


def _handler_claim(path: str, when: str, handler: Node) -> Claim:
    fields = dict(_members(handler))
    what = next((name for name in ("command", "url", "prompt") if name in fields), "")
    if not what:
        return Claim(path, "hook", f"{when}: {_text(handler)}", handler.line)
    others = {name: plain(node) for name, node in fields.items() if name not in (what, "type")}
    kind: ClaimKind = "url" if what == "url" else "hook"
    words = f"{when}: {_text(fields[what])}{_more(others)}"
    return Claim(path, kind, words, fields[what].line)


def server_claims(path: str, servers: Node, *, of: str = "") -> list[Claim]:
    """Of `mcpServers`: name -> what is started or connected to, by which variables and headers."""
    claims: list[Claim] = []
    for name, server in _members(servers, otherwise="mcpServers"):
        fields = dict(_members(server))
        if not fields:
            claims.append(Claim(path, "server", f"{of}{name}: {_text(server)}", server.line))
            continue
        if "env" in fields:
            claims += _variables(path, fields["env"], of=f"{of}{name}: ")
        if "command" in fields:
            words = [_text(fields["command"]), *(_text(one) for one in _items(fields.get("args")))]
            claims.append(Claim(path, "server", f"{of}{name}: {' '.join(words)}", fields["command"].line))
        if "url" in fields:
            claims.append(Claim(path, "url", f"{of}{name}: {_text(fields['url'])}", fields["url"].line))
        if "headersHelper" in fields:
            helper = fields["headersHelper"]
            claims.append(Claim(path, "command", f"{of}{name}: headersHelper: {_text(helper)}", helper.line))
        others = {key: plain(node) for key, node in fields.items() if key not in _SERVER_FIELDS}
        if others or not {"command", "url"} & fields.keys():
            claims.append(Claim(path, "server", f"{of}{name}:{_more(others)}", server.line))
    return claims


_SERVER_FIELDS = frozenset({"env", "command", "args", "url", "headersHelper", "type"})


def agent_claims(path: str, document: Node) -> list[Claim]:
    """Of an agent file's front matter: what it may use and in which mode, its hooks and servers."""
    fields = dict(_members(document))
    name = _text(fields["name"]) if "name" in fields else ""
    claims = [_listed(path, "agent", name, fields)]
    if "hooks" in fields:
        claims += hook_claims(path, fields["hooks"])
    for one in _items(fields.get("mcpServers")):
        claims += server_claims(path, one) if one.members is not None else []
    return claims


def skill_claims(path: str, document: Node, body: str, first_line: int) -> list[Claim]:
    """Of a `SKILL.md`, or of a command's file: what it would be granted, its hooks, and the commands that run when it
    is loaded.

    `first_line`: of the body in its file.
    """
    fields = dict(_members(document))
    *_, folder, file = ("", *path.split("/"))
    name = folder or file if file == "SKILL.md" else file.removesuffix(".md")
    claims = [_listed(path, "skill", name, fields)]
    if "hooks" in fields:
        claims += hook_claims(path, fields["hooks"])
    for found in commands_in(body):
        claims.append(Claim(path, "command", found.command, first_line + body.count("\n", 0, found.start)))
    return claims


_QUIET_FIELDS = frozenset(
    {"name", "description", "when_to_use", "argument-hint", "color", "license", "compatibility", "hooks"}
)


def _listed(path: str, kind: ClaimKind, name: str, fields: dict[str, Node]) -> Claim:
    others = {key: plain(node) for key, node in fields.items() if key not in _QUIET_FIELDS}
    return Claim(path, kind, f"{name}{_more(others)}" if name or others else "(no front matter)", 1)


def schedule_claims(path: str, document: Node, body: str) -> list[Claim]:
    """Of a schedule's file: all of it, since it is a prompt that nobody is there to see."""
    return [Claim(path, "schedule", f"{_text(document)} {body.strip()}".strip(), 1)]


def _variables(path: str, node: Node, *, of: str = "") -> Iterator[Claim]:
    for name, value in _members(node, otherwise="env"):
        yield Claim(path, "variable", f"{of}{name}={_text(value)}", value.line)


def _members(node: Node | None, otherwise: str = "") -> Members:
    """The members of a mapping. What is none has the one member `otherwise`, so that it is told all the same."""
    if node is not None and node.members is not None:
        return node.members
    return ((otherwise, node),) if otherwise and node is not None and plain(node) is not None else ()


def _items(node: Node | None) -> tuple[Node, ...]:
    """The items of a list; what is none counts as a list of one."""
    if node is None or plain(node) is None:
        return ()
    return (node,) if node.items is None else node.items


def _text(node: Node) -> str:
    return node.value if isinstance(node.value, str) else _json(plain(node))


def _json(value: object) -> str:
    return json.dumps(value, ensure_ascii=False)


def _more(others: dict[str, object]) -> str:
    return f" {_json(others)}" if others else ""


def _leaves(node: Node, at: str) -> Iterator[tuple[str, str, int]]:
    if node.members:
        for name, inner in node.members:
            yield from _leaves(inner, f"{at}.{name}")
    else:
        yield at, _text(node), node.line
