"""Data behind `callboard policy`: the judge of a workspace, its rules and hooks, their examples, and their faults.

No session is hosted here. Settings are only read and checked, and hooks are only named, not run. So `test` and `lint`
read the workspace's own files even if it is not trusted.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import cast

from pydantic import ValidationError

from callboard.adapters.extensions.agents import AgentFile, load_agents
from callboard.adapters.extensions.discovery import ExtensionPaths
from callboard.adapters.extensions.hook_commands import missing_programs
from callboard.adapters.extensions.plugins import read_plugins
from callboard.adapters.extensions.yaml import Address, YamlDocument, dotted_address, load_document
from callboard.adapters.processes.sandbox.machine import examine
from callboard.adapters.processes.sandbox.sandbox import choose
from callboard.adapters.shell.policy_judge import Explainer, JudgedCall, parse_rules
from callboard.config.hooks import add_front_matter, add_plugins, fill_registry, hook_notes
from callboard.config.settings import LoadedSettings, load_settings, rules_of
from callboard.config.trust import stored_trust
from callboard.core.hooks.matching import lint_matcher, matcher_notes
from callboard.core.permissions.call_input import (
    MODES,
    EnteredCall,
    InputRules,
    InvalidCall,
    ToolTraits,
    call_of_words,
    read_line,
)
from callboard.core.permissions.explain import CallExplanation, explain_call
from callboard.core.permissions.lint import (
    CheckedExample,
    Example,
    LintFinding,
    WrittenRule,
    call_of,
    lint_rules,
    sample_of,
)
from callboard.core.permissions.modes import inherit_rules, within
from callboard.core.permissions.rule_check import Kind
from callboard.core.permissions.rules import parse_rule
from callboard.core.permissions.values import HardRules, Mode, Rule, Verdict
from callboard.core.validation import fault_words
from callboard.engine.hooks.registry import HookRegistry
from callboard.sessions.compose import all_tools
from callboard.sessions.enabled_plugins import plugins_in_force
from callboard.sessions.places import WorkspacePaths, find_places
from callboard.types.agent_spec import PermissionRules
from callboard.types.choices import unknown
from callboard.types.errors import UsageError
from callboard.types.hook_answers import Caller, PreToolUse
from callboard.types.lazy_dataclass import dataclass
from callboard.types.records import Json, ToolCall
from callboard.types.settings import ExampleSetting, ProfileSettings


def known_tools(workspace: Path) -> dict[str, ToolTraits]:
    """Return the known facts about each tool of the runtime."""
    specs = (tool.spec for tool in all_tools({}, workspace).values())
    return {spec.name: ToolTraits(spec.effect, _texts(spec.input_schema), spec.destructive) for spec in specs}


def _texts(schema: Json) -> frozenset[str]:
    return frozenset(name for name, of in schema.get("properties", {}).items() if of.get("type") == "string")


def sandbox_level(workspace: Path) -> int:
    """Return the best sandbox level (0 to 3) that this machine supports for commands.

    A person at the terminal gets this level.
    """
    return choose(None, examine(workspace, os.environ), (), attended=True, any_level=True).level


class WorkspaceJudge:
    """Judge of one workspace. Raises `WorkspaceUnusable` for a missing folder."""

    def __init__(self, workspace: Path, force: EffectiveSettings | None = None) -> None:
        """Build the judge. `force`: source of the hard rules on programs and of the trust in git's settings."""
        places = find_places(workspace, writable=False)
        self.known = known_tools(places.workspace)
        level = cache(lambda: sandbox_level(places.workspace))
        own = (places.state, places.config)
        if force is None:
            self._explainer = Explainer(places.workspace, own, self.known, level=level)
        else:
            self._explainer = Explainer(
                places.workspace, own, self.known, hard_rules=force.hard_rules, level=level, git_trusted=force.git
            )

    def judge(self, call: EnteredCall) -> JudgedCall:
        """Judge a call without running it. Raises `InvalidCall` for an invalid folder."""
        return self._explainer.judge(call)

    def line(self, line: bytes) -> Verdict:
        """Judge the call on a line of JSON. Never raises: a line that cannot be read is denied."""
        try:
            return self.judge(read_line(line, self.known)).verdict
        except InvalidCall as wrong:
            return Verdict("deny", "input", f"the call cannot be read: {wrong}")
        except Exception as bug:  # noqa: BLE001 - a caller that feeds thousands of lines gets an answer to each of them
            return Verdict("deny", "bug", f"a bug in Callboard: {type(bug).__name__}: {bug}"[:300])


@dataclass(frozen=True, slots=True)
class EffectiveSettings:
    """Settings, permissions and hooks that would be in force in a session started now."""

    places: WorkspacePaths
    loaded: LoadedSettings
    trusted: bool
    agents: Mapping[str, tuple[Mode, PermissionRules]]
    """Mode of each agent type, and its rules in addition to the general ones. Agents that the lead starts have no more
    permissions than the lead."""
    hooks: HookRegistry
    git: Callable[[str], bool]
    """Function of a folder that returns True if a person has trusted the programs in its repository's git settings."""
    read_only: frozenset[str] = frozenset()
    """Agent types that only read."""
    inert: str = ""
    """Line for a person on the content of the workspace that has no effect because it is not trusted."""

    @property
    def hard_rules(self) -> HardRules:
        """Return the programs that are never run, or that always require approval."""
        permission = self.loaded.settings.permission
        return HardRules(frozenset(permission.never), frozenset(permission.always_ask), permission.classic_dd)

    def rights(self, agent_type: str) -> tuple[Mode, InputRules]:
        """Return the mode and all rules of an agent of this type. Raises `UsageError` with the existing types."""
        if agent_type not in self.agents:
            raise UsageError(unknown("agent type", agent_type, self.agents))
        mode, own = self.agents[agent_type]
        return mode, InputRules(
            allow=(*self._of_all("allow"), *parse_rules(own.allow, f"permission.agents.{agent_type}")),
            ask=(*self._of_all("ask"), *parse_rules(own.ask, f"permission.agents.{agent_type}")),
            deny=(*self._of_all("deny"), *parse_rules(own.deny, f"permission.agents.{agent_type}")),
            read_only=agent_type in self.read_only,
        )

    def _of_all(self, kind: str) -> Sequence[Rule]:
        texts: Sequence[str] = getattr(self.loaded.settings.permission, kind)
        return parse_rules(texts, f"permission.{kind}", self.loaded.rule_bases(kind))

    def hooks_of(self, call: EnteredCall, agent_type: str) -> Sequence[str]:
        """Return the hooks that would run before the call, in order."""
        folder = str(self.places.workspace / call.folder)
        by = Caller(agent_type=agent_type, permission_mode=call.mode, folder=folder)
        event = PreToolUse(ToolCall(id="", use_id="", name=call.tool, input=dict(call.input)), by)
        return [hook.by for hook in self.hooks.about(event)]


def in_force(workspace: Path, *, trust: bool = False) -> EffectiveSettings:
    """Read settings, agent types and hooks. `trust`: as if the workspace were trusted.

    Raises `SettingsError`, `WorkspaceUnusable`.
    """
    places = find_places(workspace, writable=False)
    trust_state = stored_trust(places.workspace, places.config)
    trust_state = replace(trust_state, how="flag") if trust else trust_state
    trusted = trust_state.trusted
    workspace_claims = trust_state.workspace_claims
    loaded = load_settings(os.environ, workspace=places.workspace, trusted=trusted, workspace_claims=workspace_claims)
    enabled, _ = plugins_in_force(loaded, places)
    files = ExtensionPaths(
        places.workspace,
        places.config,
        Path.home(),
        trusted=trusted,
        workspace_claims=workspace_claims,
        plugins=read_plugins(enabled)[0],
    )
    definitions = load_agents(files).items
    hooks = fill_registry(
        loaded, places.workspace, dict(os.environ), trusted=trusted, workspace_claims=workspace_claims
    )
    add_front_matter(hooks, loaded, files, definitions.values())
    add_plugins(hooks, loaded, files)
    read_only = frozenset(name for name, definition in definitions.items() if definition.read_only)
    return EffectiveSettings(
        places, loaded, trusted, _rights(definitions, loaded), hooks, trust_state.git, read_only, trust_state.inert
    )


def _rights(definitions: Mapping[str, AgentFile], loaded: LoadedSettings) -> dict[str, tuple[Mode, PermissionRules]]:
    permission = loaded.settings.permission
    lead: tuple[Mode, PermissionRules] = (permission.mode, PermissionRules())
    rights: dict[str, tuple[Mode, PermissionRules]] = {}
    for name in sorted(definitions, key=lambda each: each != "lead"):
        profile = permission.agents.get(name, ProfileSettings())
        mode = profile.mode or definitions[name].permission_mode
        if name == "lead":
            lead = (mode or permission.mode, profile.rules)
        rights[name] = lead if name == "lead" else (within(lead[0], mode), inherit_rules(lead[1], profile.rules))
    return rights


@dataclass(frozen=True, slots=True)
class CallQuestion:
    """A call that a person asks about, as typed. Empty: the mode of the agent type, and the folder of the workspace."""

    text: str
    tool: str = "bash"
    mode: str = ""
    agent_type: str = "lead"
    folder: str = ""


@dataclass(frozen=True, slots=True)
class ExplainedCall:
    """Decision on a call as it would be made now."""

    report: CallExplanation
    hooks: Sequence[str]
    """Hooks that would run before it."""
    rules: int
    """Number of rules in force for the agent type."""


def explain_question(force: EffectiveSettings, question: CallQuestion) -> ExplainedCall:
    """Judge a call without running it. Raises `UsageError` for a call that cannot be read. Reads the disk."""
    explaining = WorkspaceJudge(force.places.workspace, force)
    mode, rules = force.rights(question.agent_type)
    if question.mode and question.mode not in MODES:
        raise UsageError(unknown("mode", question.mode, MODES))
    try:
        tool, fields = call_of_words(question.tool, question.text, explaining.known)
        call = EnteredCall(tool, fields, MODES[question.mode or mode], rules, question.folder)
        judged = explaining.judge(call)
    except InvalidCall as wrong:
        raise UsageError(f"the call cannot be read: {wrong}") from wrong
    report = explain_call(judged.verdict, judged.call, judged.policy, judged.facts)
    count = len(rules.allow) + len(rules.ask) + len(rules.deny)
    return ExplainedCall(report, force.hooks_of(call, question.agent_type), count)


def written_rules(force: EffectiveSettings) -> list[WrittenRule]:
    """Return the rules of the settings with their places, also those of agent types and schedules."""
    return list(_rules(force))


TESTS = Path(".callboard") / "policy-tests.yaml"
"""Path of the examples: a list, or a mapping with the single field `examples`."""


def examples_of(force: EffectiveSettings) -> list[Example]:
    """Return the examples of the settings, then those of the workspace's file.

    Raises `SettingsError` for an invalid one.
    """
    examples: list[Example] = []
    for number, each in enumerate(force.loaded.settings.permission.examples):
        examples.append(_example(each, force.loaded.place(("permission", "examples", number))))
    file = force.places.workspace / TESTS
    if file.is_file():
        examples += _of_file(load_document(file))
    return examples


def try_examples(force: EffectiveSettings, explaining: WorkspaceJudge) -> Iterator[CheckedExample]:
    """Yield each example with its current decision. Raises `SettingsError`."""
    for example in examples_of(force):
        yield CheckedExample(example, _verdict(example, force, explaining))


def _verdict(example: Example, force: EffectiveSettings, explaining: WorkspaceJudge) -> Verdict:
    try:
        mode, rules = force.rights(example.agent)
        return explaining.judge(call_of(example, mode, rules, explaining.known)).verdict
    except (InvalidCall, UsageError) as wrong:
        return Verdict("deny", "input", f"the call cannot be read: {wrong}")


def _of_file(document: YamlDocument) -> Iterator[Example]:
    data = document.data
    start = cast("Address", ())
    if isinstance(data, dict) and set(cast("dict[str, object]", data)) == {"examples"}:
        data, start = cast("dict[str, object]", data)["examples"], ("examples",)
    if data is None:
        return
    if not isinstance(data, list):
        raise document.error("policy tests are a list of examples: `- {call: git push, decision: ask}`", start)
    for number, each in enumerate(cast("list[object]", data)):
        at: Address = (*start, number)
        try:
            yield _example(ExampleSetting.model_validate(each), document.place(at))
        except ValidationError as wrong:
            first = wrong.errors(include_url=False, include_input=False)[0]
            raise document.error(fault_words(first["type"], first["msg"]), (*at, *first["loc"][:1])) from wrong


def _example(setting: ExampleSetting, place: str) -> Example:
    return Example(setting.call, setting.decision, place, setting.by, setting.mode, setting.agent, setting.folder)


Tree = Mapping[str, object]

_OF_ALL = len(("permission", "allow", 0))
"""Length of the address of a rule for all agents; the address of a rule for one type, or for schedules, is longer."""


def lint(force: EffectiveSettings, explaining: WorkspaceJudge) -> list[LintFinding]:
    """Return all findings: on rules, then on hooks, then the notes of the files on ignored fields."""
    written = list(_rules(force))
    findings = lint_rules(written)
    reported = {(finding.place, finding.text) for finding in findings}
    without = (_without_effect(rule, explaining) for rule in written)
    findings += [
        finding for finding in without if finding is not None and (finding.place, finding.text) not in reported
    ]
    places = {f"{finding.place}: " for finding in findings}
    return [*findings, *_hooks(force), *_notes(force, tuple(places))]


def _rules(force: EffectiveSettings) -> Iterator[WrittenRule]:
    loaded = force.loaded
    for address, text in rules_of(loaded.settings):
        scope = str(address[-3]) if len(address) > _OF_ALL else ""
        yield WrittenRule(text, cast("Kind", address[-2]), loaded.place(address), scope)


def _without_effect(written: WrittenRule, explaining: WorkspaceJudge) -> LintFinding | None:
    """Return a finding if a rule does not decide even the simplest call that it names, as judged now."""
    sample = sample_of(written)
    if sample is None:
        return None
    rule = (parse_rule(written.text),)
    rules = {"allow": InputRules(allow=rule), "ask": InputRules(ask=rule), "deny": InputRules(deny=rule)}[written.kind]
    try:
        verdict = explaining.judge(EnteredCall(sample.tool, sample.input, rules=rules)).verdict
    except InvalidCall:
        return None
    fits = {"allow": ("allow",), "ask": ("ask", "deny"), "deny": ("deny",)}[written.kind]
    if verdict.decision in fits:
        return None
    does = {"allow": "allows", "ask": "asks for", "deny": "denies"}[written.kind]
    reason = f"it {does} nothing: `{sample.shown}` still gets {verdict.decision} ({verdict.rule}: {verdict.why})"
    return LintFinding(written.place, "no-effect", f"{written.kind} {written.text}", reason)


# Hooks


def _hooks(force: EffectiveSettings) -> Iterator[LintFinding]:
    for where, event, address, group in _groups(force):
        matcher = group.get("matcher", "")
        if isinstance(matcher, str):
            at = where((*address, "matcher"))
            yield from (
                LintFinding(at, "matcher", f"{event} {matcher}", reason) for reason in lint_matcher(event, matcher)
            )
            yield from (
                LintFinding(at, "note", f"{event} {matcher}", reason) for reason in matcher_notes(event, matcher)
            )
        for number, handler in enumerate(_list(group.get("hooks"))):
            yield from _scripts(force, handler, where((*address, "hooks", number)))


def _scripts(force: EffectiveSettings, handler: Tree, place: str) -> Iterator[LintFinding]:
    command = handler.get("command")
    args = handler.get("args")
    if handler.get("type", "command") != "command" or not isinstance(command, str):
        return
    arguments = [str(word) for word in cast("Sequence[object]", args)] if isinstance(args, list) else None
    for reason in missing_programs(command, arguments, force.places.workspace):
        yield LintFinding(place, "dead-script", command.partition("\n")[0], reason)


class _Where:
    """Locations of the hooks of one file."""

    def __init__(self, force: EffectiveSettings, file: str, offsets: Mapping[str, int]) -> None:
        self._loaded = force.loaded
        self._file = file
        self._offsets = offsets

    def __call__(self, address: Address) -> str:
        """Return file, line and field; for a file of another format, file and field."""
        if self._file:
            return f"{self._file}: {dotted_address(address)}"
        hooks, event, number, *path = address
        moved = (hooks, event, cast("int", number) + self._offsets.get(str(event), 0), *path)
        return self._loaded.place(moved)


def _groups(force: EffectiveSettings) -> Iterator[tuple[_Where, str, Address, Tree]]:
    """Yield every group of handlers in settings.

    Groups in Callboard's format come first, the person's before the workspace's; then those written for Claude Code.
    """
    offsets: dict[str, int] = {}
    for hooks in force.loaded.hooks.values():
        yield from _hooks_of_file(_Where(force, "", dict(offsets)), hooks)
        for event, groups in hooks.items():
            offsets[event] = offsets.get(event, 0) + len(groups)
    for settings_file in force.loaded.claude:
        try:
            document: object = json.loads(settings_file.raw or b"{}")
        except (ValueError, RecursionError):
            continue  # a file that is not JSON is reported in the notes
        hooks = cast("Tree", document).get("hooks") if isinstance(document, dict) else None
        if isinstance(hooks, dict):
            yield from _hooks_of_file(_Where(force, settings_file.path, {}), cast("Tree", hooks))


def _hooks_of_file(where: _Where, hooks: Tree) -> Iterator[tuple[_Where, str, Address, Tree]]:
    for event, groups in hooks.items():
        for number, group in enumerate(_list(groups)):
            yield where, event, ("hooks", event, number), group


def _list(value: object) -> list[Tree]:
    """Return the mappings of a list; the reader of hooks reports other values."""
    if not isinstance(value, list | tuple):
        return []
    return [cast("Tree", entry) for entry in cast("Sequence[object]", value) if isinstance(entry, dict)]


def _notes(force: EffectiveSettings, covered: tuple[str, ...]) -> Iterator[LintFinding]:
    """Yield the notes made when the files were read.

    Notes on rules and matchers are left out, because they are checked more closely here.
    """
    for note in hook_notes(force.loaded, force.places.workspace, dict(os.environ)):
        if not note.field.endswith("matcher"):
            yield LintFinding(f"{note.path}: {note.field}".rstrip(": "), "hook", note.verdict, note.reason)
    for line in force.loaded.notes:
        if line.startswith(covered):
            continue
        place, _, reason = line.partition(": ")
        yield LintFinding(place, "setting", "", reason)
