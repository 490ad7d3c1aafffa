"""Every documented option and method of the TypeScript SDK, and two programs on top of it, drive `callboard`.

The checks are in `typescript/*.mjs` and run in node over the published packages. `OPTIONS` and `METHODS` have a row for
each option and method in the package's types: the check that shows its effect or its refusal.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.examples.programs import warm_program
from tests.npm_packages import npm_folder

PACKAGES = (
    *("@anthropic-ai/claude-agent-sdk", "@agentclientprotocol/claude-agent-acp"),
    *("ai-sdk-provider-claude-code", "ai", "zod@4"),
)
SCRIPTS = Path(__file__).with_name("typescript")
SECONDS = 400
SCENARIO = """
models:
  rehearsal: {}
  other: {}
agents:
  lead:
    - when: {contains: touch}
      reply:
        - tool_use: {name: bash, input: {command: touch first.txt}}
    - when: {contains: ask me}
      reply:
        - tool_use: {name: ask_person, input: {question: "Which one?", options: [red, blue]}}
    - when: {contains: red}
      reply: It is red.
    - when: {contains: write it}
      reply:
        - tool_use: {name: write_file, input: {path: note.txt, content: "one\\ntwo\\n"}}
    - when: {contains: wait long}
      reply:
        - tool_use: {name: bash, input: {command: sleep 120}}
    - when: {contains: which model, model: other}
      reply: The other one.
    - when: {contains: add them}
      reply:
        - tool_use: {name: mcp__calc__add, input: {a: 2, b: 40}}
    - when: {result_of: mcp__calc__add}
      reply: '{"sum": 42}'
    - when: {contains: as a sum}
      reply: '{"sum": 42}'
    - when: {contains: which fruit}
      reply: Apples.
    - otherwise: true
      reply: All done.
"""
SESSION = "describes_the_session"
OPTIONS = {
    **dict.fromkeys(
        (
            *("additionalDirectories", "agents", "betas", "cwd", "debug", "effort", "env", "executableArgs"),
            *("fallbackModel", "forwardSubagentText", "includeHookEvents", "includePartialMessages", "managedSettings"),
            *("maxBudgetUsd", "maxTurns", "model", "pathToClaudeCodeExecutable", "permissionMode", "permissionPrompts"),
            *("perTaskStopAffordance", "persistSession", "planModeInstructions", "plugins", "promptSuggestions"),
            *("agentProgressSummaries", "sandbox", "settings", "settingSources", "skills", "stderr", "strictMcpConfig"),
            *("taskBudget", "thinking", "title", "toolAliases", "toolConfig", "verbatimPrompts", "systemPrompt"),
        ),
        SESSION,
    ),
    **dict.fromkeys(("continue", "forkSession", "resume", "resumeSessionAt", "sessionId"), "sessions_fork"),
    **dict.fromkeys(("pluginDelivery", "mcpServersDelivery"), "plugins_and_servers"),
    **dict.fromkeys(("allowedTools", "hooks", "mcpServers", "outputFormat"), "servers_hooks"),
    **dict.fromkeys(("projectConfigRoot", "extraArgs"), "unsupported_options"),
    "canUseTool": "permissions_change",
    "enableFileCheckpointing": "files_are_rewound",
}
SHARED = {
    "agent": "tests/cli/headless/test_stream_json_input.py",
    "allowDangerouslySkipPermissions": "tests/cli/headless/test_stream_json_input.py",
    "debugFile": "tests/cli/headless/test_stream_json_input.py",
    "disallowedTools": "tests/cli/headless/test_agent_sdk.py",
    "maxThinkingTokens": "tests/cli/headless/test_sdk_options.py",
    "onElicitation": "tests/cli/headless/test_sdk_servers.py",
    "permissionPromptToolName": "tests/cli/headless/test_sdk_options.py",
    "resumeDropsTurn": "tests/cli/headless/test_sdk_options.py",
    "sessionStore": "tests/cli/headless/test_sdk_options.py",
    "tools": "tests/cli/headless/test_sdk_options.py",
}
"""Options that reach Callboard exactly as those of the Python package, whose tests are named."""
OWN = frozenset(
    {
        *("abortController", "executable", "loadTimeoutMs", "sessionStoreFlush", "spawnClaudeCodeProcess"),
        *("onUserDialog", "supportedDialogKinds"),
    }
)
"""Options that the package itself handles; Callboard shows no dialogs."""
CONTROLS = "a_client_controls_its_session"
METHODS = {
    **dict.fromkeys(
        (
            *("interrupt", "setPermissionMode", "setMcpPermissionModeOverride", "setModel", "setMaxThinkingTokens"),
            *("applyFlagSettings", "updateSettings", "supportedCommands", "supportedModels", "supportedAgents"),
            *("mcpServerStatus", "getContextUsage", "readFile", "reloadPlugins", "reloadSkills", "reloadOutputStyles"),
            *("accountInfo", "seedReadState", "reconnectMcpServer", "toggleMcpServer", "readMcpResource"),
            *("setMcpServers", "stopTask", "backgroundTasks", "close"),
        ),
        CONTROLS,
    ),
    "initializationResult": "plugins_and_servers",
    "rewindFiles": "files_are_rewound",
}
UNANSWERED = frozenset({"reinitialize", "streamInput", "usage_EXPERIMENTAL_MAY_CHANGE_DO_NOT_RELY_ON_THIS_API_YET"})
"""Methods of the package itself, and those that are refused as unknown or repeated requests."""


def checks_of(script: str) -> list[str]:
    return re.findall(r"^  async (\w+)\(", (SCRIPTS / script).read_text(encoding="utf-8"), re.MULTILINE)


@pytest.fixture(scope="module")
def packages() -> Path:
    return npm_folder("agent-sdk", *PACKAGES)


@pytest.fixture
def environment(tmp_path: Path, packages: Path) -> Iterator[dict[str, str]]:
    for name in ("workspace", "tools/.claude-plugin", "tools/skills/fix"):
        (tmp_path / name).mkdir(parents=True)
    (tmp_path / "tools/.claude-plugin/plugin.json").write_text('{"name": "tools", "version": "1"}')
    (tmp_path / "tools/skills/fix/SKILL.md").write_text("---\nname: fix\ndescription: Fixes\n---\nFix it.\n")
    (tmp_path / "scenario.yaml").write_text(SCENARIO)
    values = {f"XDG_{kind}_HOME": str(tmp_path / kind.lower()) for kind in ("STATE", "DATA", "CONFIG")}
    values |= {"HOME": str(tmp_path), "PATH": os.environ["PATH"], "MODULES": str(packages)}
    values |= {"WORKSPACE": str(tmp_path / "workspace"), "SCENARIO": str(tmp_path / "scenario.yaml")}
    values |= {"PLUGIN": str(tmp_path / "tools"), "CALLBOARD": str(tmp_path / "callboard")}
    with warm_program(tmp_path / "callboard"):
        yield values


@pytest.mark.slow(keep=1)
@pytest.mark.parametrize(
    ("script", "check"),
    [(script, check) for script in ("matrix.mjs", "editors.mjs") for check in checks_of(script)],
)
def test_the_package_works_with_callboard(environment: dict[str, str], script: str, check: str) -> None:
    ran = subprocess.run(
        ["node", str(SCRIPTS / script), check],
        env=environment,
        capture_output=True,
        text=True,
        timeout=SECONDS,
        check=False,
    )
    lines = [json.loads(line) for line in ran.stdout.splitlines() if line.startswith('{"name"')]
    assert [(line["name"], line["detail"]) for line in lines] == [(check, "")], ran.stderr


def test_every_option_and_method_of_the_types_has_a_row(packages: Path) -> None:
    types = (packages / "node_modules/@anthropic-ai/claude-agent-sdk/sdk.d.ts").read_text(encoding="utf-8")
    options = _members(types, "export declare type Options = {")
    assert options == {*OPTIONS, *SHARED, *OWN}
    assert _members(types, "export declare interface Query extends") == {*METHODS, *UNANSWERED}
    names = checks_of("matrix.mjs")
    assert all(any(name.startswith(row) for name in names) for row in (*OPTIONS.values(), *METHODS.values()))


def _members(types: str, start: str) -> set[str]:
    body = types[types.index(start) :]
    lines = body[: body.index("\n}")].splitlines()
    return {match[1] for line in lines if (match := re.match(r"    (\w+)[?(:]", line))}
