"""Slash commands that people know from the prompt line or from Claude Code, where they do not exist. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

_SIGN_IN = "Callboard has no sign-in: set ANTHROPIC_API_KEY or ANTHROPIC_AUTH_TOKEN, and see `callboard doctor`"
_SCREEN = "The terminal's own settings decide"

MISSING_COMMANDS: Mapping[str, str] = MappingProxyType(
    {
        # Commands of the prompt line, which a run has not
        "agents": "`callboard agents` lists the agent types",
        "clear": "A run begins an empty conversation unless you give -c or --resume",
        "compact": "Use it at the prompt line: `callboard -c`, then /compact",
        "config": "Use `callboard config`",
        "context": "Use `callboard context`",
        "cost": "Use `callboard cost`",
        "help": "Use `callboard --help`",
        "inbox": "Use `callboard inbox`",
        "mcp": "Use `callboard mcp list`",
        "mode": "Use --permission-mode MODE",
        "model": "Use --model NAME",
        "permissions": "Use `callboard policy rules`",
        "plans": "Use `callboard plans`",
        "resume": "Use --resume ID; `callboard sessions` lists the sessions",
        "status": "Use `callboard team` and `callboard doctor`",
        "tasks": "Use `callboard tasks`",
        "team": "Use `callboard team`",
        # Commands of Claude Code
        "add-dir": "Start with --add-dir DIR, or add the folder: `callboard config add permission.directories DIR`",
        "allowed-tools": "/permissions lists the rules; `callboard config add permission.allow RULE` adds one",
        "bashes": "/team shows who is at work; an agent stops the commands that it started",
        "bug": "Report faults in the issue tracker of Callboard",
        "branch": "`callboard run --resume ID --fork-session` continues in a copy of the session",
        "doctor": "Use `callboard doctor`",
        "export": "`callboard sessions` names the session; its transcript is in ~/.claude/projects",
        "feedback": "Report faults in the issue tracker of Callboard",
        "fork": "`callboard run --resume ID --fork-session` continues in a copy of the session",
        "hooks": "`callboard doctor --compat` lists the hooks and their files",
        "ide": "No editor is connected",
        "init": 'Ask for it in words: "Write an AGENTS.md for this project"',
        "login": _SIGN_IN,
        "logout": _SIGN_IN,
        "output-style": "Use `callboard config set output_style NAME`; new sessions use it",
        "plan": "Use /mode plan, or start with --permission-mode plan",
        "plugin": "Use `callboard plugin`",
        "pr-comments": 'Ask for it in words: "Read the comments of pull request 12"',
        "reload-plugins": "Plugins are loaded when a session begins: /new begins another conversation",
        "rename": "Name the session at its start: -n NAME",
        "review": 'Ask for it in words: "Review my changes"; a file .claude/commands/review.md makes it a command',
        "rewind": "`git` undoes changes of files; /context undo N restores what was cut from the conversation",
        "checkpoint": "`git` undoes changes of files; /context undo N restores what was cut from the conversation",
        "sandbox": "`callboard config set sandbox.level N` chooses the level; /status shows it",
        "security-review": 'Ask for it in words: "Review my changes for security faults"',
        "skills": "Use `callboard skills`",
        "stats": "Use /cost, or `callboard cost`",
        "statusline": "Use `callboard config set status_line.command COMMAND`",
        "terminal-setup": "Alt-Enter, or Enter after a backslash, begins a new line in every terminal",
        "theme": _SCREEN,
        "todos": "Use /tasks",
        "upgrade": "Use `callboard update`",
        "usage": "Use /cost, or `callboard cost`",
        "vim": "The line has the keys of Emacs and readline",
    }
)
"""Name -> what to do instead. The prompt line has the first ones itself, so that only runs miss them."""
