"""The permission judge: a pure function from a call, the rules in force and the facts found, to a verdict.

The order is fixed (docs/permissions.md, letter Q): what is never run and the runtime's own files; deny rules; the
floor's asks and ask rules; allow rules; what is built in; last the mode. Commands are judged part by part by what they
do; the worst part decides. A check on a command is no boundary: it gives consent its meaning, the sandbox bounds.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace

from callboard.core.bus.authority import for_person, lacking
from callboard.core.permission import rules
from callboard.core.permission.analysis import Analysis, analyse
from callboard.core.permission.effects import Does, Ease, Effect, GitIn, Part, Touch
from callboard.core.permission.filetools import FILE_TOOLS, named_paths
from callboard.core.permission.git import GIT_PREMISE
from callboard.core.permission.modes import SANDBOX_NEEDED
from callboard.core.permission.never import critical, harmless_device, raw_device
from callboard.core.permission.paths import hard_to_see
from callboard.core.permission.scopes import (
    UNKNOWN,
    absolute,
    first_on_files,
    first_on_others,
    first_on_shell,
    folder_not_listed,
)
from callboard.core.permission.values import CallFacts, PathFact, PathQuery, Policy, Rule, ToolCall, Unparsed, Verdict

_ORDER: Mapping[Ease, int] = {"mode": 0, "rule": 1, "bypass": 2, "person": 3, "never": 4}
_READS = Verdict("allow", "R", "it only reads inside the workspace")


def judge_call(call: ToolCall, policy: Policy, facts: CallFacts) -> Verdict:
    """Decide one call. Never raises: what is not understood asks."""
    if policy.mode == "plan":
        policy = replace(policy, allow=())  # nothing but reading is allowed before a plan is approved
    if call.name == "bash":
        return _judge_shell(call, policy, facts)
    if call.name in FILE_TOOLS:
        return _judge_files(call, policy, facts)
    return _judge_other(call, policy, facts)


def only_reads(source: str, facts: CallFacts) -> bool:
    """Whether every part of the script only reads inside the workspace (letter R). What is unknown is False."""
    analysis = analyse(source, facts.scripts, facts.home, Policy().floor)
    return not any(_verdicts(part, facts) for part in analysis.parts)


def against(part: Part, facts: CallFacts) -> Sequence[Does]:
    """What stands against one part of a script, whatever the rules say; nothing for one that only reads inside."""
    return _verdicts(part, facts)


# Shell commands.


def _judge_shell(call: ToolCall, policy: Policy, facts: CallFacts) -> Verdict:
    source = call.input.get("command")
    if not isinstance(source, str):
        return Verdict("deny", "M", "the command is not text")
    analysis = analyse(source, facts.scripts, facts.home, policy.floor)
    findings = [(part, _verdicts(part, facts)) for part in analysis.parts]
    every = [finding for _, found in findings for finding in found]
    if denied := _worst([d for d in every if d.ease == "never"]):
        return Verdict("deny", denied.letter, denied.why)
    if verdict := _deny_rules_on_shell(call, policy, facts, analysis):
        return verdict
    if asked := _worst([d for d in every if d.ease == "person"]):
        return _in_mode(asked, policy)
    if verdict := _ask_rules_on_shell(call, policy, facts, analysis):
        return _in_mode_asked(verdict, policy)
    allow = [rule for rule in policy.allow if rules.names_tool(rule, "bash", allow=True)]
    by = [(d, _lifted_by(d, part, allow)) for part, found in findings for d in found]
    if left := [d for d, rule in by if rule is None]:
        return _inside(left, policy, facts)
    return _allowed_by([rule for _, rule in by if rule]) if every else _READS


def _lifted_by(finding: Does, part: Part, allow: Sequence[Rule]) -> Rule | None:
    if _ORDER[finding.ease] > _ORDER["rule"]:
        return None
    return next((rule for rule in allow if rules.covers(rule, part)), None)


def _allowed_by(lifting: Sequence[Rule]) -> Verdict:
    names = dict.fromkeys(rule.source for rule in lifting)
    return Verdict("allow", f"rule {', '.join(names)}", "a rule allows it")


def _deny_rules_on_shell(call: ToolCall, policy: Policy, facts: CallFacts, analysis: Analysis) -> Verdict | None:
    found = first_on_shell(policy.deny, call, facts, analysis)
    if found is None:
        return None
    rule, match = found
    if match == "yes":
        return Verdict("deny", f"rule {rule.source}", "a deny rule matches")
    return _in_mode(Does("L", f"it may be what the rule {rule.source} denies", "person"), policy)


def _ask_rules_on_shell(call: ToolCall, policy: Policy, facts: CallFacts, analysis: Analysis) -> Verdict | None:
    if found := first_on_shell(policy.ask, call, facts, analysis):
        return Verdict("ask", f"rule {found[0].source}", "an ask rule matches")
    if folder := folder_not_listed(policy.allow, facts, analysis):
        return Verdict("ask", "rule Cd", f"it works in {folder}, which no Cd rule allows")
    return None


def _verdicts(part: Part, facts: CallFacts) -> list[Does]:
    """Return what stands against a part: nothing for one that only reads."""
    found: list[Does] = []
    for effect in part.effects:
        if isinstance(effect, Touch):
            fact = facts.paths.get(effect.query, UNKNOWN)
            found += _of_touch(effect, fact, facts)
        elif isinstance(effect, GitIn):
            found += _of_git(effect, facts)
        elif effect != Does("G", GIT_PREMISE):
            found.append(effect)
        elif not facts.git_quiet:
            found.append(Does("G", "the repository's own git configuration was not found to run nothing"))
    return found


def _of_git(there: GitIn, facts: CallFacts) -> list[Does]:
    """Ask where a folder that git works in is not plainly a part of the agent's own repository."""
    path = absolute(facts.root, there.folder)
    roots = (facts.root, f"{facts.root}/.git", f"{facts.root}/HEAD")
    beneath = {query: absolute(facts.root, query.text) for query in there.queries}
    own = [q for q, at in beneath.items() if at.startswith(facts.root + "/") and at not in (*roots, path)]
    facts_of_own = [facts.paths.get(query, UNKNOWN) for query in own]
    itself = facts.paths.get(PathQuery(there.folder), UNKNOWN)
    if path != facts.root and not (path.startswith(facts.root + "/") and itself.resolved == path):
        return [Does("G", f"`git` would work outside the agent's own folder: {path}")]
    if any(fact.exists or fact.place == "malformed" for fact in facts_of_own):
        return [Does("G", f"{path} may be a repository with a configuration of its own")]
    return []


def _of_touch(touch: Touch, fact: PathFact, facts: CallFacts) -> list[Does]:
    path = absolute(facts.root, touch.query.text)
    if harmless_device(path):
        return []
    if touch.access != "read" and (raw_device(path) or raw_device(fact.resolved) or fact.device):
        return [Does("S", f"it writes to a device or a switch of the kernel: {path}", "never")]
    if touch.access == "delete" and (critical(path, facts.home, glob=touch.query.glob) or fact.critical):
        return [Does("S", f"it deletes {path}", "never")]
    if touch.access == "delete" and fact.holds_own:
        return [Does("K", f"it deletes the runtime's own files with {path}", "never")]
    return _of_place(touch, fact, path)


def _of_place(touch: Touch, fact: PathFact, path: str) -> list[Does]:
    read = touch.access == "read"
    why = f": {fact.why}" if fact.why else ""
    if fact.place == "own" or (fact.place == "settings" and not read):
        return [Does("K", f"it touches the runtime's own files: {path}", "never")]
    if fact.place == "malformed":
        return [Does("M", f"the path {path!r} cannot be judged{why}", "person")]
    if not read and any(p == "/etc" or p.startswith("/etc/") for p in (path, fact.resolved)):
        return [Does("F", f"it writes to /etc: {path}", "person")]
    if fact.place == "secret":
        return [Does("O", f"{path} may hold a secret{why}", "rule" if read else "bypass")]
    if fact.place == "outside" or (fact.place == "readable" and not read):
        return [Does("O", f"it {'reads' if read else 'changes what is'} outside the workspace: {path}", "rule")]
    if fact.place == "protected" and not read:
        return [Does("H", f"other tools run or obey {path}", "bypass")]
    if read:
        return []
    letter = "D" if touch.access == "delete" and touch.ease != "mode" else "E"
    return [Does(letter, f"it changes {path}", touch.ease)]


def _worst(findings: Sequence[Does]) -> Does | None:
    return max(findings, key=lambda finding: _ORDER[finding.ease], default=None)


# File tools.


def _judge_files(call: ToolCall, policy: Policy, facts: CallFacts) -> Verdict:
    named = named_paths(call)
    if isinstance(named, Unparsed):
        return Verdict("deny", "path", named.why)
    found = [(n, facts.paths.get(n.query, UNKNOWN)) for n in named]
    one = [fact for n, fact in found if not n.query.glob]  # what a pattern matches beside others is only listed: M
    if bad := next((fact for fact in one if fact.place == "malformed" or fact.device), None):
        return Verdict("deny", "path", f"the path cannot be used: {bad.why or 'it is no file'}")
    findings = [d for n, fact in found for d in _of_touch(Touch(n.access, n.query), fact, facts)]
    if odd := next((seen for n, _ in found if (seen := hard_to_see(n.query.text))), ""):
        findings.append(Does("M", f"its path holds a character that is hard to see: {odd}", "bypass"))
    if denied := _worst([d for d in findings if d.ease == "never"]):
        return Verdict("deny", denied.letter, denied.why)
    if rule := first_on_files(policy.deny, call, found, facts, allow=False):
        return Verdict("deny", f"rule {rule.source}", "a deny rule matches")
    if asked := _worst([d for d in findings if d.ease == "person"]):
        return _in_mode(asked, policy)
    if rule := first_on_files(policy.ask, call, found, facts, allow=False):
        return _in_mode_asked(Verdict("ask", f"rule {rule.source}", "an ask rule matches"), policy)
    covered = first_on_files(policy.allow, call, found, facts, allow=True)
    if left := [d for d in findings if not (covered and _ORDER[d.ease] <= _ORDER["rule"])]:
        return _inside(left, policy, facts)
    return _allowed_by([covered]) if covered and findings else _READS


# All other tools.


def _judge_other(call: ToolCall, policy: Policy, facts: CallFacts) -> Verdict:
    if rule := first_on_others(policy.deny, call, allow=False):
        return Verdict("deny", f"rule {rule.source}", "a deny rule matches")
    if why := for_person(call.name, call.input) or lacking(call.name, call.input, call.authority):
        return _in_mode(Does("T", why, "person"), policy)
    if facts.person_only:
        return _in_mode(Does("F", "the tool's server wants a person to answer for each call", "person"), policy)
    if rule := first_on_others(policy.ask, call, allow=False):
        return _in_mode_asked(Verdict("ask", f"rule {rule.source}", "an ask rule matches"), policy)
    if rule := first_on_others(policy.allow, call, allow=True):
        return Verdict("allow", f"rule {rule.source}", "a rule allows it")
    if call.name.startswith("mcp__"):
        return _in_mode(Does("F", _of_server(call, facts)), policy)
    if call.effect in ("read", "store", "attach"):
        return Verdict("allow", "built-in", "it changes nothing but the runtime's own records")
    if call.name in NOTE_TOOLS:
        return _in_mode(Does("E", "later turns and sessions read what is noted", "rule"), policy)
    ease: Ease = "mode" if call.effect == "reconcile" else "rule"
    return _in_mode(Does("X", f"what {call.name} changes is not known", ease), policy)


def _of_server(call: ToolCall, facts: CallFacts) -> str:
    """Why a tool of an MCP server asks. What its server says of it is a hint for the person, and lifts nothing."""
    if facts.destructive:
        return "the tool's server annotates it as destructive"
    if call.effect == "read":
        return "that it only reads is its server's word"
    return "the tool's server does not annotate it as read-only"


NOTE_TOOLS = frozenset({"remember", "forget"})
"""Tools that change notes of memory."""


# The mode.


_LEAVES_SANDBOX = frozenset({"N", "O", "H", "M"})
"""What a sandbox is not there to allow: the network, what lies outside, secrets, and what others run later."""


def _inside(findings: Sequence[Does], policy: Policy, facts: CallFacts) -> Verdict:
    """Decide a call of the shell or of a file tool, which runs inside the sandbox or inside the workspace."""
    worst = max(findings, key=lambda finding: _ORDER[finding.ease])
    if policy.mode != "sandboxed" or worst.ease in ("person", "never"):
        return _in_mode(worst, policy)
    if facts.sandbox < SANDBOX_NEEDED:
        short = f"the sandbox is of level {facts.sandbox}, and the mode sandboxed needs {SANDBOX_NEEDED}"
        return Verdict("ask", worst.letter, f"{worst.why}; {short}")
    leaves = next((finding for finding in findings if finding.letter in _LEAVES_SANDBOX), None)
    if leaves is not None:
        return Verdict("ask", leaves.letter, leaves.why)
    return Verdict("allow", "mode sandboxed", f"{worst.why}, in a sandbox of level {facts.sandbox}")


def _in_mode(finding: Does, policy: Policy) -> Verdict:
    mode, rank = policy.mode, _ORDER[finding.ease]
    if mode == "acceptEdits" and finding.ease == "mode" and finding.letter == "E":
        return Verdict("allow", "mode acceptEdits", finding.why)
    if mode == "bypassPermissions" and rank <= _ORDER["bypass"]:
        return Verdict("allow", "mode bypassPermissions", finding.why)
    return _in_mode_asked(Verdict("ask", finding.letter, finding.why), policy)


def _in_mode_asked(verdict: Verdict, policy: Policy) -> Verdict:
    """Turn an ask into a denial in the modes that do not ask."""
    if policy.mode == "plan":
        return replace(verdict, decision="deny", why=f"{verdict.why}; in plan mode only reading is allowed")
    if policy.mode == "dontAsk":
        return replace(verdict, decision="deny", why=f"{verdict.why}; the mode dontAsk asks nobody")
    return verdict


def queries_of(call: ToolCall, facts: CallFacts) -> tuple[tuple[str, ...], Iterable[Effect]]:
    """Return the scripts that are not parsed yet, and the effects whose paths are to be looked up."""
    if call.name == "bash":
        source = call.input.get("command")
        if not isinstance(source, str):
            return (), ()
        analysis = analyse(source, facts.scripts, facts.home, Policy().floor)
        return analysis.missing, [effect for part in analysis.parts for effect in part.effects]
    named = named_paths(call) if call.name in FILE_TOOLS else ()
    return (), () if isinstance(named, Unparsed) else [Touch(n.access, n.query) for n in named]
