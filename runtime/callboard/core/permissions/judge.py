"""Permission judge: a pure function from a call, the rules in force and the facts, to a verdict.

The order is fixed (docs/permissions.md, "The order"): commands that are never run and the runtime's own files; deny
rules; the floor's asks and ask rules; allow rules; built-in decisions; the mode. Commands are judged part by part by
their effects, and the worst part decides. A check on a command is not a security boundary: it informs consent, and the
sandbox enforces limits.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from callboard.core.messaging.authority import missing_authority, person_only_reason
from callboard.core.permissions import rules
from callboard.core.permissions.effects import (
    SETTINGS_FOLDER,
    Analysis,
    CallFacts,
    Ease,
    GitContent,
    GitRead,
    GitSweep,
    NamedInCode,
    PathAccess,
    Risk,
    RunsProjectFile,
    ScriptPart,
)
from callboard.core.permissions.file_tools import FILE_TOOLS, named_paths
from callboard.core.permissions.git import GIT_PREMISE
from callboard.core.permissions.host_patterns import host_of
from callboard.core.permissions.hosts import is_local
from callboard.core.permissions.modes import SANDBOX_NEEDED
from callboard.core.permissions.network import requested_hosts
from callboard.core.permissions.rule_match import (
    UNKNOWN,
    absolute,
    doubtful_object,
    first_on_files,
    first_on_others,
    first_on_shell,
    folder_not_listed,
    printed_secrets,
)
from callboard.core.permissions.rules import WEB_FETCH, WEB_TOOLS
from callboard.core.permissions.sensitive_paths import critical, hard_to_see, harmless_device, raw_device
from callboard.core.permissions.shell_effects import analysis_in
from callboard.core.permissions.values import (
    AgentPolicy,
    PathFact,
    PathQuery,
    ProposedCall,
    Rule,
    UnparsedScript,
    Verdict,
)

_ORDER: Mapping[Ease, int] = {"mode": 0, "rule": 1, "bypass": 2, "named": 3, "person": 4, "never": 5}
_READS = Verdict("allow", "R", "it only reads inside the workspace")


def judge_call(call: ProposedCall, policy: AgentPolicy, facts: CallFacts) -> Verdict:
    """Decide one call. Never raises: a call that is not understood asks."""
    verdict = _judge_any(call, policy, facts)
    if policy.read_only and verdict.decision != "deny" and (reason := _changes(call, facts)):
        return Verdict("deny", READ_ONLY, f"agents of this type only read, in every mode: {reason}")
    return verdict


READ_ONLY = "read-only type"
_OWN_RECORDS = frozenset({"remember", "forget", "task_stop"})
"""Tools that only change the agent's own files or processes."""


def _changes(call: ProposedCall, facts: CallFacts) -> str:
    """Return the reason why a call does more than read inside the workspace (letter R); empty if it only reads."""
    if call.name != "bash":
        changes = call.effect in ("reconcile", "unknown") and call.name not in _OWN_RECORDS
        return f"{call.name} changes things" if changes else ""
    analysis = analysis_in(facts, str(call.input.get("command")), AgentPolicy().hard_rules)
    worst = _worst([finding for part in analysis.parts for finding in _verdicts(part, facts)])
    return worst.why if worst is not None else ""


def _judge_any(call: ProposedCall, policy: AgentPolicy, facts: CallFacts) -> Verdict:
    if policy.mode == "plan" and call.name not in WEB_TOOLS:
        policy = replace(policy, allow=())  # before a plan is approved, only reads are allowed
    if call.name == "bash":
        return _judge_shell(call, policy, facts)
    if call.name in FILE_TOOLS:
        return _judge_files(call, policy, facts)
    return _judge_other(call, policy, facts)


def only_reads(source: str, facts: CallFacts) -> bool:
    """Return True if every part of the script only reads inside the workspace (letter R). Unknown parts give False."""
    analysis = analysis_in(facts, source, AgentPolicy().hard_rules)
    return not any(_verdicts(part, facts) for part in analysis.parts)


def against(part: ScriptPart, facts: CallFacts) -> Sequence[Risk]:
    """Return the objections to one part of a script, regardless of rules; empty if the part only reads inside."""
    return _verdicts(part, facts)


# Shell commands.


def _judge_shell(call: ProposedCall, policy: AgentPolicy, facts: CallFacts) -> Verdict:
    source = call.input.get("command")
    if not isinstance(source, str):
        return Verdict("deny", "M", "the command is not text")
    analysis = analysis_in(facts, source, policy.hard_rules)
    findings = [(part, _verdicts(part, facts)) for part in analysis.parts]
    if hosts := requested_hosts(call.input.get("hosts")):
        findings.append((ScriptPart(()), [Risk("N", f"it asks for the network: {', '.join(hosts)}", "bypass")]))
    every = [finding for _, objections in findings for finding in objections]
    if denied := _worst([d for d in every if d.ease == "never"]):
        return Verdict("deny", denied.letter, denied.why)
    if verdict := _deny_rules_on_shell(call, policy, facts, analysis):
        return verdict
    if asking := _worst([d for d in every if d.ease == "person"]):
        return _in_mode(asking, policy)
    if verdict := _ask_rules_on_shell(call, policy, facts, analysis):
        return _in_mode_asked(verdict, policy)
    allow = [rule for rule in policy.allow if rules.names_tool(rule, "bash", allow=True)]
    by = [(d, _lifted_by(d, part, allow)) for part, objections in findings for d in objections]
    if remaining := [d for d, rule in by if rule is None]:
        return _inside(remaining, policy, facts)
    return _allowed_by([rule for _, rule in by if rule]) if every else _READS


def _lifted_by(finding: Risk, part: ScriptPart, allow: Sequence[Rule]) -> Rule | None:
    if finding.ease == "named":
        return next((rule for rule in allow if rules.covers_delete(rule, part)), None)
    if _ORDER[finding.ease] > _ORDER["rule"]:
        return None
    return next((rule for rule in allow if rules.covers(rule, part)), None)


def _allowed_by(lifting: Sequence[Rule]) -> Verdict:
    names = dict.fromkeys(rule.source for rule in lifting)
    return Verdict("allow", f"rule {', '.join(names)}", "a rule allows it")


def _deny_rules_on_shell(
    call: ProposedCall, policy: AgentPolicy, facts: CallFacts, analysis: Analysis
) -> Verdict | None:
    rule_match = first_on_shell(policy.deny, call, facts, analysis)
    if rule_match is None:
        return None
    rule, match = rule_match
    if match == "yes":
        return Verdict("deny", f"rule {rule.source}", "a deny rule matches")
    return _in_mode(Risk("L", f"it may be what the rule {rule.source} denies", "person"), policy)


def _ask_rules_on_shell(
    call: ProposedCall, policy: AgentPolicy, facts: CallFacts, analysis: Analysis
) -> Verdict | None:
    if rule_match := first_on_shell(policy.ask, call, facts, analysis):
        return Verdict("ask", f"rule {rule_match[0].source}", "an ask rule matches")
    if folder := folder_not_listed(policy.allow, facts, analysis):
        return Verdict("ask", "rule Cd", f"it works in {folder}, which no Cd rule allows")
    return None


def _verdicts(part: ScriptPart, facts: CallFacts) -> list[Risk]:
    """Return the objections to a part; empty for a part that only reads."""
    objections: list[Risk] = []
    for effect in part.effects:
        if isinstance(effect, PathAccess):
            fact = facts.paths.get(effect.query, UNKNOWN)
            objections += _of_touch(effect, fact, facts)
        elif isinstance(effect, GitRead):
            objections += _of_git(effect, facts)
        elif isinstance(effect, GitContent):
            objections += _of_content(effect, facts)
        elif isinstance(effect, RunsProjectFile):
            objections += _of_files(effect, facts)
        elif isinstance(effect, NamedInCode):
            objections += _of_code(effect, facts)
        elif isinstance(effect, GitSweep):
            objections += _of_sweep(effect, facts)
        elif effect != Risk("G", GIT_PREMISE):
            objections.append(effect)
        elif not facts.git_quiet:
            objections.append(Risk("G", "this repository may make git run a program or fetch"))
    return objections


def _of_code(named: NamedInCode, facts: CallFacts) -> list[Risk]:
    """Return a denial if code names the runtime's own files: an agent may try to approve its own request.

    For the settings, return an ask that no rule and no mode lifts. Programs read and run the files of skills.
    """
    path = named.query.text
    fact = facts.paths.get(named.query, UNKNOWN)
    if fact.place == "own":
        return [Risk("K", f"code that it runs names the runtime's own files: {path}", "never")]
    if fact.place == "settings" and _WITH_PROGRAMS.isdisjoint(fact.resolved.split("/")):
        return [Risk("K", f"it names the runtime's settings, and may change them: {path}", "person")]
    return []


_WITH_PROGRAMS = frozenset({"skills", "plugins"})


def _of_sweep(sweep: GitSweep, facts: CallFacts) -> list[Risk]:
    """Return an ask, which no rule and no mode lifts, if git can change or delete the runtime's settings."""
    fact = facts.paths.get(sweep.query, UNKNOWN)
    if not (fact.beneath or fact.beneath_cut if sweep.tracked else fact.holds_own):
        return []
    advice = f"`-e {SETTINGS_FOLDER}` leaves them out" if sweep.command == "clean" else "name the paths that you need"
    return [Risk("K", f"`git {sweep.command}` can change or delete the runtime's settings: {advice}", "person")]


def _of_content(content: GitContent, facts: CallFacts) -> list[Risk]:
    """Return an ask if a tracked file that git can print may contain a secret."""
    secret = next(iter(printed_secrets(content, facts)), None)
    if secret is None:
        return []
    can = f"`git {content.subcommand}` can print"
    if not secret:
        return [Risk("O", f"{can} files that cannot be listed: git's index cannot be read")]
    name = secret.removeprefix(f"{facts.root}/")
    if doubtful := doubtful_object(content, facts):
        advice = f"`{doubtful}` can mean the content of a file; if it is a commit, write `{doubtful}^0`"
    else:
        advice = f"name the paths that you need after `--`, or leave it out with `-- . ':!{name}'`"
    return [Risk("O", f"{can} {name}, which is tracked and may hold a secret: {advice}")]


def _of_files(effect: RunsProjectFile, facts: CallFacts) -> list[Risk]:
    """Return an ask if a file that names commands for a program is in the program's start folder, or above it."""
    for query in effect.queries:
        fact = facts.paths.get(query, UNKNOWN)
        if fact.exists or fact.place == "malformed":
            return [Risk("X", f"`{effect.program}` runs what {query.text} names")]
    return []


def _of_git(git_folder: GitRead, facts: CallFacts) -> list[Risk]:
    """Return an ask if git's folder is not certainly part of the agent's own repository."""
    path = absolute(facts.root, git_folder.folder)
    roots = (facts.root, f"{facts.root}/.git", f"{facts.root}/HEAD")
    beneath = {query: absolute(facts.root, query.text) for query in git_folder.queries}
    own = [q for q, at in beneath.items() if at.startswith(facts.root + "/") and at not in (*roots, path)]
    facts_of_own = [facts.paths.get(query, UNKNOWN) for query in own]
    itself = facts.paths.get(PathQuery(git_folder.folder), UNKNOWN)
    if path != facts.root and not (path.startswith(facts.root + "/") and itself.resolved == path):
        return [Risk("G", f"`git` would work outside the agent's own folder: {path}")]
    if any(fact.exists or fact.place == "malformed" for fact in facts_of_own):
        return [Risk("G", f"{path} may be a repository with a configuration of its own")]
    return []


def _of_touch(touch: PathAccess, fact: PathFact, facts: CallFacts) -> list[Risk]:
    if touch.access == "read" and fact.place == "inside":
        return []
    path = absolute(facts.root, touch.query.text)
    if harmless_device(path):
        return []
    if touch.access != "read" and (raw_device(path) or raw_device(fact.resolved) or fact.device):
        return [Risk("S", f"it writes to a device or a switch of the kernel: {path}", "never")]
    if touch.access == "delete" and (critical(path, facts.home, glob=touch.query.glob) or fact.critical):
        return [Risk("S", f"it deletes {path}", "never")]
    if touch.access == "delete" and fact.holds_own:
        return [Risk("K", f"it deletes the runtime's own files, or what sessions load, with {path}", "never")]
    if touch.access != "read" and fact.loaded and fact.place != "own":
        return [Risk("K", f"it changes what sessions load: {path}", "never")]
    if touch.access == "delete" and touch.ease == "named" and (refused := _not_inside(touch, fact, facts)):
        return [refused]
    return _of_place(touch, fact, path)


def _not_inside(touch: PathAccess, fact: PathFact, facts: CallFacts) -> Risk | None:
    """Return the ask that no rule lifts: for paths outside the workspace, and for the workspace itself."""
    path = absolute(facts.root, touch.query.text)
    deleted = fact.matches[2:] if touch.query.glob else (path, fact.resolved)  # the first two: the pattern's folder
    if facts.root in deleted:
        return Risk("D", "it deletes the whole workspace", "person")
    if fact.place in ("outside", "readable"):
        return Risk("O", f"it deletes what is outside the workspace: {path}", "person")
    return None


def _of_place(touch: PathAccess, fact: PathFact, path: str) -> list[Risk]:
    read = touch.access == "read"
    reason = f": {fact.why}" if fact.why else ""
    if fact.place == "own" or (fact.place == "settings" and not read):
        return [Risk("K", f"it touches the runtime's own files: {path}", "never")]
    if fact.place == "malformed":
        return [Risk("M", f"the path {path!r} cannot be judged{reason}", "person")]
    if not read and any(p == "/etc" or p.startswith("/etc/") for p in (path, fact.resolved)):
        return [Risk("F", f"it writes to /etc: {path}", "person")]
    if fact.place == "secret":
        return [Risk("O", f"{path} may hold a secret{reason}", "rule" if read else "bypass")]
    if fact.place == "outside" or (fact.place == "readable" and not read):
        return [Risk("O", f"it {'reads' if read else 'changes what is'} outside the workspace: {path}", "rule")]
    if fact.place == "protected" and not read:
        return [Risk("H", f"other tools run or obey {path}", "bypass")]
    if read:
        return []
    letter = "D" if touch.access == "delete" and touch.ease != "mode" else "E"
    return [Risk(letter, f"it changes {path}", touch.ease)]


def _worst(findings: Sequence[Risk]) -> Risk | None:
    return max(findings, key=lambda finding: _ORDER[finding.ease], default=None)


# File tools.


def _judge_files(call: ProposedCall, policy: AgentPolicy, facts: CallFacts) -> Verdict:
    named = named_paths(call)
    if isinstance(named, UnparsedScript):
        return Verdict("deny", "path", named.why)
    path_facts = [(n, facts.paths.get(n.query, UNKNOWN)) for n in named]
    plain_facts = [
        fact for n, fact in path_facts if not n.query.glob
    ]  # additional matches of a pattern are only listed: M
    if bad := next((fact for fact in plain_facts if fact.place == "malformed" or fact.device), None):
        return Verdict("deny", "path", f"the path cannot be used: {bad.why or 'it is no file'}")
    findings = [d for n, fact in path_facts for d in _of_touch(PathAccess(n.access, n.query), fact, facts)]
    if odd := next((seen for n, _ in path_facts if (seen := hard_to_see(n.query.text))), ""):
        findings.append(Risk("M", f"its path holds a character that is hard to see: {odd}", "bypass"))
    if denied := _worst([d for d in findings if d.ease == "never"]):
        return Verdict("deny", denied.letter, denied.why)
    if rule := first_on_files(policy.deny, call, path_facts, facts, allow=False):
        return Verdict("deny", f"rule {rule.source}", "a deny rule matches")
    if asking := _worst([d for d in findings if d.ease == "person"]):
        return _in_mode(asking, policy)
    if rule := first_on_files(policy.ask, call, path_facts, facts, allow=False):
        return _in_mode_asked(Verdict("ask", f"rule {rule.source}", "an ask rule matches"), policy)
    covered = first_on_files(policy.allow, call, path_facts, facts, allow=True)
    if remaining := [d for d in findings if not (covered and _ORDER[d.ease] <= _ORDER["rule"])]:
        return _inside(remaining, policy, facts)
    return _allowed_by([covered]) if covered and findings else _READS


# All other tools.


def _judge_other(call: ProposedCall, policy: AgentPolicy, facts: CallFacts) -> Verdict:
    if rule := first_on_others(policy.deny, call, allow=False):
        return Verdict("deny", f"rule {rule.source}", "a deny rule matches")
    if call.name == WEB_FETCH and (refusal := _unfetchable(call, policy)):
        return refusal
    if reason := person_only_reason(call.name, call.input) or missing_authority(call.name, call.input, call.authority):
        return _in_mode(Risk("T", reason, "person"), policy)
    if facts.person_only:
        return _in_mode(Risk("F", "the tool's server requires a person's answer for each call", "person"), policy)
    if rule := first_on_others(policy.ask, call, allow=False):
        return _in_mode_asked(Verdict("ask", f"rule {rule.source}", "an ask rule matches"), policy)
    if rule := first_on_others(policy.allow, call, allow=True):
        return Verdict("allow", f"rule {rule.source}", "a rule allows it")
    return _judge_unruled(call, policy, facts)


def _judge_unruled(call: ProposedCall, policy: AgentPolicy, facts: CallFacts) -> Verdict:
    """Decide a call that no rule decides."""
    if call.name.startswith("mcp__"):
        return _in_mode(Risk("F", _of_server(call, facts)), policy)
    if call.name in WEB_TOOLS:
        host = host_of(str(call.input.get("url"))) if call.name == WEB_FETCH else None
        return _in_mode(Risk("N", f"it reads from {host}" if host else WEB_TOOLS[call.name]), policy)
    if call.effect in ("read", "store", "attach"):
        return Verdict("allow", "built-in", "it changes nothing but the runtime's own records")
    if call.name in NOTE_TOOLS:
        return _in_mode(Risk("E", "later turns and sessions read the note", "rule"), policy)
    ease: Ease = "mode" if call.effect == "reconcile" else "rule"
    return _in_mode(Risk("X", f"what {call.name} changes is not known", ease), policy)


def _unfetchable(call: ProposedCall, policy: AgentPolicy) -> Verdict | None:
    """Return the denial of a fetch whose host cannot be read, or that no allow rule names although it is local."""
    url = call.input.get("url")
    host = host_of(url) if isinstance(url, str) else None
    if host is None:
        return Verdict("deny", "M", "the host of its address cannot be read for certain")
    if not is_local(host) or rules.names_exactly(policy.allow, host):
        return None
    advice = f"only an allow rule WebFetch(domain:{host}) permits it"
    return Verdict("deny", "N", f"{host} is this machine or in its network: {advice}")


def _of_server(call: ProposedCall, facts: CallFacts) -> str:
    """Return the reason why an MCP server's tool asks. The server's annotation informs the person and lifts nothing."""
    if facts.destructive:
        return "the tool's server annotates it as destructive"
    if call.effect == "read":
        return "only its server states that it only reads"
    return "the tool's server does not annotate it as read-only"


NOTE_TOOLS = frozenset({"remember", "forget"})
"""Tools that change memory notes."""


# The mode.


_LEAVES_SANDBOX = frozenset({"N", "O", "H", "M"})
"""Letters of effects that a sandbox does not permit: the network, paths outside, secrets, and files that others run
later."""


def _inside(findings: Sequence[Risk], policy: AgentPolicy, facts: CallFacts) -> Verdict:
    """Decide a call of the shell or of a file tool, which runs inside the sandbox or inside the workspace."""
    worst = max(findings, key=lambda finding: _ORDER[finding.ease])
    if policy.mode != "sandboxed" or worst.ease in ("named", "person", "never"):
        return _in_mode(worst, policy)
    if facts.sandbox < SANDBOX_NEEDED:
        short = f"the sandbox is of level {facts.sandbox}, and the mode sandboxed needs {SANDBOX_NEEDED}"
        return Verdict("ask", worst.letter, f"{worst.why}; {short}")
    leaves = next((finding for finding in findings if finding.letter in _LEAVES_SANDBOX), None)
    if leaves is not None:
        return Verdict("ask", leaves.letter, leaves.why)
    return Verdict("allow", "mode sandboxed", f"{worst.why}, in a sandbox of level {facts.sandbox}")


def _in_mode(finding: Risk, policy: AgentPolicy) -> Verdict:
    mode = policy.mode
    rank = _ORDER[finding.ease]
    if mode == "acceptEdits" and finding.ease == "mode" and finding.letter == "E":
        return Verdict("allow", "mode acceptEdits", finding.why)
    if mode == "bypassPermissions" and rank <= _ORDER["bypass"]:
        return Verdict("allow", "mode bypassPermissions", finding.why)
    return _in_mode_asked(Verdict("ask", finding.letter, finding.why), policy)


IN_PLAN_MODE = "in plan mode only reading is allowed, until a plan that you hand in with submit_plan is approved"
READS_IN_TURN = (
    "in plan mode only reading is allowed, and you cannot hand in a plan for approval in this turn: "
    "read what you need, and report your plan as text"
)


def _in_mode_asked(verdict: Verdict, policy: AgentPolicy) -> Verdict:
    """Return the verdict; in the modes that do not ask, an ask becomes a denial."""
    if policy.mode == "plan":
        return replace(
            verdict, decision="deny", why=f"{verdict.why}; {IN_PLAN_MODE if policy.plans else READS_IN_TURN}"
        )
    if policy.mode == "dontAsk":
        return replace(verdict, decision="deny", why=f"{verdict.why}; the mode dontAsk asks nobody")
    return verdict


def parts_of(call: ProposedCall, facts: CallFacts) -> Sequence[ScriptPart]:
    """Return the parts of a shell command or file tool call; empty for other calls."""
    if call.name == "bash":
        source = call.input.get("command")
        return analysis_in(facts, source, AgentPolicy().hard_rules).parts if isinstance(source, str) else ()
    named = named_paths(call) if call.name in FILE_TOOLS else ()
    return (
        () if isinstance(named, UnparsedScript) else [ScriptPart(tuple(PathAccess(n.access, n.query) for n in named))]
    )
