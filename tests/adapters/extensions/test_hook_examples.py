"""Hooks from public documentation and its users, re-created as real settings files and scripts.

The tests assert the documented behavior: blocked calls, allowed calls, and the readers of each output.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from callboard.adapters.extensions.hook_fields import HookOrigin
from callboard.adapters.extensions.hooks import load_hooks
from callboard.engine.hooks.registry import HookRegistry
from callboard.types import hook_answers as hk
from callboard.types.records import ToolCall

pytestmark = pytest.mark.anyio


@pytest.fixture
def anyio_backend() -> str:
    """Run on asyncio only: `test_hook_commands.py` runs processes on both event loops."""
    return "asyncio"


VALIDATE = """\
import json, re, sys
RULES = [
    (r"^grep\\b(?!.*\\|)", "use rg instead of grep"),
    (r"^find\\s+\\S+\\s+-name\\b", "use rg --files instead of find"),
]
try:
    data = json.load(sys.stdin)
except json.JSONDecodeError as e:
    print(f"Error: Invalid JSON input: {e}", file=sys.stderr)
    sys.exit(1)
if data.get("tool_name", "") != "Bash":
    sys.exit(1)
issues = [m for p, m in RULES if re.search(p, data.get("tool_input", {}).get("command", ""))]
if issues:
    for m in issues:
        print(f"- {m}", file=sys.stderr)
    sys.exit(2)
"""
PROTECT = (
    "python3 -c \"import json, sys; d=json.load(sys.stdin); p=d.get('tool_input',{}).get('file_path','');"
    " sys.exit(2 if any(x in p for x in ['.env', 'package-lock.json', '.git/']) else 0)\""
)
APPROVE_DOCS = """\
import json, sys
data = json.load(sys.stdin)
path = data.get("tool_input", {}).get("file_path", "")
if data["tool_name"] == "Read" and path.endswith((".md", ".mdx", ".txt", ".json")):
    print(json.dumps({"decision": "approve", "reason": "Documentation file auto-approved", "suppressOutput": True}))
"""
SAFE_RM = """\
import json, sys
data = json.load(sys.stdin)
command = data["tool_input"]["command"]
if command.startswith("rm "):
    data["tool_input"]["command"] = "trash " + command[3:]
    out = {"hookEventName": "PreToolUse", "permissionDecision": "ask", "permissionDecisionReason": "moved to the trash"}
    print(json.dumps({"hookSpecificOutput": out | {"updatedInput": data["tool_input"]}}))
"""
SECRETS = """\
import json, re, sys
prompt = json.load(sys.stdin)["prompt"]
if re.search(r"(?i)\\b(password|secret|key|token)\\s*[:=]", prompt):
    print(json.dumps({"decision": "block", "reason": "Prompt contains potential secrets"}))
    sys.exit(0)
print("Current time: noon")
"""
KEEP_GOING = """\
input=$(cat)
case "$input" in *'"stop_hook_active": true'*) exit 0;; esac
echo '{"decision": "block", "reason": "Run the tests first"}'
"""
BLOCK_RM = """\
if grep -q 'rm -rf'; then
  cat <<'END'
{"hookSpecificOutput": {"hookEventName": "PreToolUse", "permissionDecision": "deny",
 "permissionDecisionReason": "Destructive command blocked by hook"}}
END
fi
"""
TEST_GATE = 'echo "Tests not passing. Fix failing tests before completing" >&2; exit 2'
NO_PLAN = """echo '{"hookSpecificOutput": {"hookEventName": "PermissionRequest", "decision": {"behavior": "deny",
 "message": "ask in the channel first", "interrupt": true}}}'"""
YES_NPM = """echo '{"hookSpecificOutput": {"hookEventName": "PermissionRequest", "decision": {"behavior": "allow",
 "updatedInput": {"command": "npm run lint"}}}}'"""


def registry_of(folder: Path, hooks: dict[str, Any], **settings: Any) -> HookRegistry:
    """Return the registry of hooks in a `.claude/settings.json`."""
    path = folder / ".claude" / "settings.json"
    path.parent.mkdir(exist_ok=True)
    path.write_text(json.dumps({"hooks": hooks, **settings}))
    read = load_hooks(path, HookOrigin(str(folder)))
    assert [note for note in read.notes if note.verdict == "refused"] == []
    registry = HookRegistry()
    for entry in read.entries:
        registry.add(entry.event, entry.handler, entry.matcher, terms=entry.terms)
    return registry


def script(folder: Path, name: str, text: str) -> str:
    """Write a script into `.claude/hooks`, and return the command as settings files usually give it."""
    path = folder / ".claude" / "hooks" / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    return f'{"python3" if name.endswith(".py") else "bash"} "$CLAUDE_PROJECT_DIR"/.claude/hooks/{name}'


def group(command: str, matcher: str | None = None, **fields: Any) -> list[dict[str, Any]]:
    handler = {"type": "command", "command": command, **fields}
    return [{"hooks": [handler]} | ({} if matcher is None else {"matcher": matcher})]


def bash(command: str, folder: Path) -> hk.PreToolUse:
    call = ToolCall(id="c", use_id="toolu_1", name="bash", input={"command": command})
    return hk.PreToolUse(call, hk.Caller(session="s1", folder=str(folder)))


def file(tool: str, path: str, folder: Path) -> hk.PreToolUse:
    call = ToolCall(id="c", use_id="toolu_1", name=tool, input={"path": path})
    return hk.PreToolUse(call, hk.Caller(session="s1", folder=str(folder)))


async def test_a_validator_blocks_with_exit_code_2(tmp_path: Path) -> None:
    registry = registry_of(tmp_path, {"PreToolUse": group(script(tmp_path, "validate.py", VALIDATE), "Bash")})
    verdict = await registry.pre_tool_use(bash("grep foo .", tmp_path))
    assert (verdict.decision, verdict.why) == ("deny", "- use rg instead of grep")
    assert (await registry.pre_tool_use(bash("rg foo", tmp_path))).decision is None
    assert (await registry.pre_tool_use(file("read_file", "a", tmp_path))).notices == (), "the matcher excludes it"


async def test_a_one_liner_protects_files_by_absolute_path(tmp_path: Path) -> None:
    registry = registry_of(tmp_path, {"PreToolUse": group(PROTECT, "Edit|Write")})
    for tool, path, decision in (
        ("write_file", ".env", "deny"),
        ("edit_file", "web/package-lock.json", "deny"),
        ("edit_file", "src/a.py", None),
        ("read_file", ".env", None),
    ):
        assert (await registry.pre_tool_use(file(tool, path, tmp_path))).decision == decision


async def test_the_old_form_approves(tmp_path: Path) -> None:
    registry = registry_of(tmp_path, {"PreToolUse": group(script(tmp_path, "docs.py", APPROVE_DOCS), "Read")})
    verdict = await registry.pre_tool_use(file("read_file", "README.md", tmp_path))
    assert (verdict.decision, verdict.why) == ("allow", "Documentation file auto-approved")
    assert (await registry.pre_tool_use(file("read_file", "key.pem", tmp_path))).decision is None


async def test_an_input_is_rewritten_and_asked_for(tmp_path: Path) -> None:
    registry = registry_of(tmp_path, {"PreToolUse": group(script(tmp_path, "rm.py", SAFE_RM), "Bash")})
    verdict = await registry.pre_tool_use(bash("rm -r build", tmp_path))
    assert (verdict.decision, verdict.input) == ("ask", {"command": "trash -r build"})
    assert verdict.why == "moved to the trash"


async def test_a_prompt_is_blocked_or_gets_context(tmp_path: Path) -> None:
    registry = registry_of(tmp_path, {"UserPromptSubmit": group(script(tmp_path, "secrets.py", SECRETS))})
    here = hk.Caller(folder=str(tmp_path))
    blocked = await registry.user_prompt_submit(hk.UserPromptSubmit("my password: x", by=here))
    assert blocked.block == "Prompt contains potential secrets"
    passed = await registry.user_prompt_submit(hk.UserPromptSubmit("fix the bug", by=here))
    assert (passed.block, passed.context) == ("", ("Current time: noon",))


async def test_a_stop_hook_keeps_it_going_once(tmp_path: Path) -> None:
    registry = registry_of(tmp_path, {"Stop": group(script(tmp_path, "stop.sh", KEEP_GOING))})
    here = hk.Caller(folder=str(tmp_path))
    assert (await registry.stop(hk.Stop(by=here))).go_on == "Run the tests first"
    assert (await registry.stop(hk.Stop(blocks=1, by=here))).go_on == ""


async def test_if_runs_only_for_what_its_rule_names(tmp_path: Path) -> None:
    command = f"echo ran >> {tmp_path}/ran; " + script(tmp_path, "rm.sh", BLOCK_RM)
    registry = registry_of(tmp_path, {"PreToolUse": group(command, "Bash", **{"if": "Bash(rm *)"})})
    for line, decision in (
        ("ls -la", None),
        ("rm -rf build", "deny"),
        ("cd build && rm -rf .", "deny"),
        ("echo $(rm -rf x)", "deny"),
        ("A=1 rm -rf x", "deny"),
        ("echo 'rm -rf x'", None),
        ('"unclosed', None),
    ):
        assert (await registry.pre_tool_use(bash(line, tmp_path))).decision == decision, line
    assert (tmp_path / "ran").read_text().count("ran") == 5, "the four commands, and the one that cannot be parsed"


@pytest.mark.parametrize(
    ("command", "told"),
    [
        ("notify-send 'Claude Code' 'Awaiting your input'", "127"),
        ("exit 1", "exit code 1"),
        ("echo text; exit 3", "exit code 3"),
        ("kill -TERM $$", "signal 15"),
        ("sleep 30", "no answer within 0.3 s"),
        ("""echo '{"hookSpecificOutput": {"permissionDecision": "deny"}}'""", "hookSpecificOutput"),
        ("""echo '{"continue": "no"}'""", "continue"),
    ],
)
async def test_what_fails_lets_the_call_proceed_and_is_told(tmp_path: Path, command: str, told: str) -> None:
    """The documented default of these files; `onFailure: block` denies the call, and so do Callboard's own settings."""
    fields = {"timeout": 0.3} if "sleep" in command else {}
    for closed, decision in (({}, None), ({"onFailure": "block"}, "deny")):
        registry = registry_of(tmp_path, {"PreToolUse": group(command, "*", **fields, **closed)})
        verdict = await registry.pre_tool_use(bash("ls", tmp_path))
        assert verdict.decision == decision
        assert told in verdict.notices[0]


@pytest.mark.parametrize("text", ["{broken", '["allow"]', '"deny"', "deny", "", "{} trailing"])
async def test_broken_json_with_exit_code_0_says_nothing(tmp_path: Path, text: str) -> None:
    registry = registry_of(tmp_path, {"PreToolUse": group(f"printf %s '{text}'")})
    assert await registry.pre_tool_use(bash("ls", tmp_path)) == hk.PreVerdict()


async def test_all_hooks_of_an_event_run_and_the_strictest_wins(tmp_path: Path) -> None:
    def decide(what: str) -> dict[str, Any]:
        out = {"hookEventName": "PreToolUse", "permissionDecision": what, "permissionDecisionReason": what}
        return {"type": "command", "command": f"echo '{json.dumps({'hookSpecificOutput': out})}'; echo x >> ran"}

    for said, decision in ((("allow", "ask"), "ask"), (("allow", "defer"), "ask"), (("ask", "deny", "allow"), "deny")):
        registry = registry_of(tmp_path, {"PreToolUse": [{"hooks": [decide(one) for one in said]}]})
        assert (await registry.pre_tool_use(bash("ls", tmp_path))).decision == decision
    assert (tmp_path / "ran").read_text() == "x\n" * 7


async def test_continue_false_stops_and_wins(tmp_path: Path) -> None:
    say = """echo '{"continue": false, "stopReason": "budget of the day is spent", "systemMessage": "stopped"}'"""
    registry = registry_of(tmp_path, {"PreToolUse": group(say), "Stop": group(say), "UserPromptSubmit": group(say)})
    here = hk.Caller(folder=str(tmp_path))
    verdict = await registry.pre_tool_use(bash("ls", tmp_path))
    assert (verdict.decision, verdict.halt) == ("deny", "budget of the day is spent")
    assert verdict.notices[0].endswith(": stopped")
    assert (await registry.stop(hk.Stop(by=here))).halt
    assert (await registry.user_prompt_submit(hk.UserPromptSubmit("x", by=here))).halt


async def test_results_are_told_beside_and_failures_have_an_event_of_their_own(tmp_path: Path) -> None:
    hooks = {
        "PostToolUse": group("cat > told; echo 'lint: line 3' >&2; exit 2", "Write"),
        "PostToolUseFailure": group("cat > failed; echo 'is the service up?' >&2; exit 2"),
    }
    registry = registry_of(tmp_path, hooks)
    call = ToolCall(id="c", use_id="toolu_1", name="write_file", input={"path": "a.py", "content": "x"})
    here = hk.Caller(folder=str(tmp_path))
    done = hk.HookToolResult(({"type": "text", "text": "written"},))
    assert (await registry.post_tool_use(hk.PostToolUse(call, done, 0.5, here))).context == ("lint: line 3",)
    told = json.loads((tmp_path / "told").read_text())
    assert told["tool_input"] == {"file_path": f"{tmp_path}/a.py", "content": "x"}
    assert told["tool_response"]["filePath"] == f"{tmp_path}/a.py"
    failed = await registry.fire(hk.PostToolUseFailure(call, "disk full", by=here))
    assert failed.context == ("is the service up?",)
    assert json.loads((tmp_path / "failed").read_text())["error"] == "disk full"


async def test_a_question_is_answered_in_the_persons_place(tmp_path: Path) -> None:
    hooks = group(NO_PLAN, "Write") + group(YES_NPM, "Bash") + group("echo no >&2; exit 2", "Read")
    registry = registry_of(tmp_path, {"PermissionRequest": hooks})

    def asked(event: hk.PreToolUse) -> hk.PermissionRequest:
        return hk.PermissionRequest(event.call, "mode default", "it changes a", by=event.by)

    denied = await registry.permission_request(asked(file("write_file", "a", tmp_path)))
    assert (denied.decision, denied.why, denied.halt) == (
        "deny",
        "ask in the channel first",
        "ask in the channel first",
    )
    allowed = await registry.permission_request(asked(bash("npm run build", tmp_path)))
    assert (allowed.decision, allowed.input) == ("allow", {"command": "npm run lint"})
    undecided = await registry.permission_request(asked(file("read_file", ".env", tmp_path)))
    assert undecided.decision is None, "exit code 2 does not block this event: the person is asked"


async def test_the_other_moments_block_by_exit_code_2_or_json(tmp_path: Path) -> None:
    keep = """echo '{"decision": "block", "reason": "commit first"}'"""
    hooks = {
        "TaskCompleted": group(TEST_GATE),
        "TaskCreated": group("""echo '{"continue": false}'"""),
        "TeammateIdle": group("echo 'the build artefact is missing' >&2; exit 2"),
        "PreCompact": group(keep, "auto"),
        "PostToolBatch": group(keep),
        "WorktreeCreate": group("exit 1"),
        "SessionStart": group("echo 'branch: main'", "startup|resume"),
        "SubagentStart": group("echo text is for the log", "explore"),
        "Notification": group("echo 'seen' >&2; exit 2", "idle_prompt"),
    }
    registry = registry_of(tmp_path, hooks)
    here = hk.Caller("s1", "alice", "teammate", "coder", folder=str(tmp_path))
    fired = {
        type(event).__name__: await registry.fire(event)
        for event in (
            hk.TaskCompleted("t1", "ship", by=here),
            hk.TaskCreated("t1", "ship", by=here),
            hk.TeammateIdle(by=here),
            hk.PreCompact("auto", by=here),
            hk.PostToolBatch((), by=here),
            hk.WorktreeCreate("alice", by=here),
            hk.SessionStart("resume", by=here),
            hk.SubagentStart(by=here),
            hk.Notification("waits", "idle_prompt", by=here),
        )
    }
    assert {name: verdict.block for name, verdict in fired.items() if verdict.block} == {
        "TaskCompleted": "Tests not passing. Fix failing tests before completing",
        "TeammateIdle": "the build artefact is missing",
        "PreCompact": "commit first",
        "PostToolBatch": "commit first",
        "WorktreeCreate": "exit code 1: it said nothing",
    }
    assert fired["TaskCreated"].notices[0].endswith("`continue: false` has no effect at TaskCreated")
    assert fired["SessionStart"].context == ("branch: main",)
    assert fired["Notification"].notices[0].endswith(": seen")
    assert (await registry.fire(hk.SessionStart("clear", by=here))).context == (), "the matcher names two other sources"
    assert (await registry.fire(hk.PreCompact("manual", by=here))).block == ""


async def test_a_silent_log_of_every_call_in_any_agent(tmp_path: Path) -> None:
    code = "import json,sys; d=json.load(sys.stdin); print(d.get('agent_id', 'lead'), d['tool_name'])"
    line = f'python3 -c "{code}" >> log'
    registry = registry_of(tmp_path, {"PreToolUse": group(line, "")})
    for kind, name in (("lead", "lead"), ("teammate", "alice"), ("subagent", "s-1")):
        by = hk.Caller("s1", name, kind, "coder", folder=str(tmp_path))
        assert await registry.pre_tool_use(hk.PreToolUse(bash("ls", tmp_path).call, by)) == hk.PreVerdict()
    assert (tmp_path / "log").read_text().splitlines() == ["lead Bash", "alice Bash", "s-1 Bash"]


async def test_disable_all_hooks_leaves_none(tmp_path: Path) -> None:
    registry = registry_of(tmp_path, {"PreToolUse": group("exit 2")}, disableAllHooks=True)
    assert not registry.has("PreToolUse")


async def test_what_is_huge_is_cut_and_the_cut_is_marked(tmp_path: Path) -> None:
    registry = registry_of(tmp_path, {"UserPromptSubmit": group("head -c 50000 /dev/zero | tr '\\0' y")})
    (text,) = (await registry.user_prompt_submit(hk.UserPromptSubmit("x", by=hk.Caller(folder=str(tmp_path))))).context
    assert len(text) == 10_000
    assert text.endswith("50,000 characters]")
