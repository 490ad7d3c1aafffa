"""Paths and hosts beyond an agent's own bounds that a call needs. An approval of the call includes them.

The file tools and the sandbox keep every call inside the agent's folder. A call that is allowed by a rule, a mode or a
person carries these grants; they name the targets of the paths at the time of the decision.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from callboard.core.permissions.effects import Access, CallFacts, Effect, PathAccess, Risk, ScriptPart
from callboard.core.permissions.host_patterns import host_of
from callboard.core.permissions.judge import parts_of
from callboard.core.permissions.network import ANY, hosts_of, requested_hosts
from callboard.core.permissions.rules import WEB_FETCH, names_exactly
from callboard.core.permissions.sensitive_paths import harmless_device
from callboard.core.permissions.values import AgentPolicy, PathFact, ProposedCall, Verdict
from callboard.types.records import HostGrant, PathGrant

_GRANTABLE = frozenset({"outside", "readable", "secret", "protected"})
"""Kinds that can be granted. Never the runtime's own files and settings, and paths that are not files."""

_RANK: Sequence[Access] = ("read", "write", "delete")


def grants_of(call: ProposedCall, facts: CallFacts) -> tuple[PathGrant, ...]:
    """Return a grant for each path of a shell command or file tool call that is beyond the agent's bounds."""
    if not any(fact.place in _GRANTABLE for fact in facts.paths.values()):
        return ()
    parts = parts_of(call, facts)
    understood = all(_understood(part) for part in parts)
    grants: dict[str, PathGrant] = {}
    for effect in (effect for part in parts for effect in part.effects):
        fact = facts.paths.get(effect.query) if isinstance(effect, PathAccess) else None
        if not isinstance(effect, PathAccess) or fact is None:
            continue
        write = effect.access != "read"
        for path in _paths(fact, facts.root) if _beyond(fact, write=write) else ():
            existing = grants.get(path)
            if existing is None or _RANK.index(existing.access) < _RANK.index(effect.access):
                grants[path] = PathGrant(path=path, access=effect.access, understood=understood)
    return tuple(grant for grant in grants.values() if not any(_covers(other, grant) for other in grants.values()))


def _understood(part: ScriptPart) -> bool:
    """Return True if the part accesses named paths and does nothing else.

    A deletion is listed in addition to the deleted paths.
    """
    deletes = any(isinstance(effect, PathAccess) and effect.access == "delete" for effect in part.effects)
    return all(isinstance(effect, PathAccess) or (deletes and _is_deletion(effect)) for effect in part.effects)


def _is_deletion(effect: Effect) -> bool:
    return isinstance(effect, Risk) and effect.letter == "D"


def _beyond(fact: PathFact, *, write: bool) -> bool:
    return fact.place in _GRANTABLE and not fact.device and (write or fact.place not in ("readable", "protected"))


def _paths(fact: PathFact, root: str) -> Iterator[str]:
    """Yield the target of the path, or for a pattern all its matches outside."""
    if not fact.matches:
        yield from (fact.resolved,) if fact.resolved else ()
        return
    for path in fact.matches:
        if path and path != root and not path.startswith(f"{root}/") and not harmless_device(path):
            yield path


def _covers(folder: PathGrant, grant: PathGrant) -> bool:
    beneath = grant.path.startswith(folder.path.rstrip("/") + "/")
    return beneath and _RANK.index(folder.access) >= _RANK.index(grant.access)


_UNASKED = frozenset({"R", "mode acceptEdits", "mode sandboxed"})


def network_grants(
    call: ProposedCall, policy: AgentPolicy, facts: CallFacts, verdict: Verdict
) -> tuple[HostGrant, ...]:
    """Return the hosts that a command may reach once allowed; for a fetch, its host if an allow rule names it exactly.

    A command allowed without any of them (it only reads, or the mode lets it write inside) has no network. The mode
    `bypassPermissions` includes the whole network.
    """
    if call.name == WEB_FETCH:
        host = host_of(str(call.input.get("url"))) or ""
        return (HostGrant(host=host),) if verdict.decision != "deny" and names_exactly(policy.allow, host) else ()
    if call.name != "bash" or verdict.decision == "deny" or not facts.sandbox or facts.network_open:
        return ()
    if policy.mode == "bypassPermissions":
        return (HostGrant(host=ANY),)
    if verdict.decision == "allow" and verdict.rule in _UNASKED:
        return ()
    parts = parts_of(call, facts)
    hosts = dict.fromkeys((*hosts_of(parts, facts.remotes), *requested_hosts(call.input.get("hosts"))))
    if ANY in hosts or (hosts and facts.sandbox == 1):  # Landlock knows ports, and no hosts
        return (HostGrant(host=ANY),)
    return tuple(HostGrant(host=host) for host in hosts)
