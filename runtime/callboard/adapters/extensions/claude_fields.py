"""Fields of settings for Claude Code: the corresponding setting of Callboard, or the reason why there is none.

Only the files are translated here. Their layers and the trust in them are decided elsewhere. The fields are those of
https://code.claude.com/docs/en/settings.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from types import MappingProxyType
from typing import Literal, cast

from callboard.core.trust.yaml_nodes import YamlNode, plain
from callboard.types.late_pattern import late_pattern
from callboard.types.lazy_dataclass import dataclass

Address = tuple[str, ...]
"""Address of a setting of Callboard: `("sandbox", "level")`."""
Verdict = Literal["honored", "ignored", "refused"]


@dataclass(frozen=True, slots=True)
class FieldValue:
    """Meaning of one field, or of one part of a field."""

    node: YamlNode
    name: str
    """Name in reports: `sandbox.enabled`."""
    verdict: Verdict = "honored"
    reason: str = ""
    settings: tuple[tuple[Address, object], ...] = ()
    """Settings of Callboard with their values."""


def _text(value: object) -> object | None:
    return value.strip() if isinstance(value, str) and value.strip() else None


def _texts(value: object) -> object | None:
    listed = cast("list[object]", value) if isinstance(value, list) else [value]
    names = [entry.strip() for entry in listed if isinstance(entry, str) and entry.strip()]
    return names if names and len(names) == len(listed) else None


def _names(value: object) -> object | None:
    """Return a mapping of texts to texts."""
    if not isinstance(value, dict):
        return None
    pairs = cast("dict[str, object]", value)
    return pairs if all(isinstance(entry, str) and entry for entry in pairs.values()) else None


def _switches(value: object) -> object | None:
    """Return a mapping of names to True or False. A list of versions counts as True."""
    if not isinstance(value, dict):
        return None
    pairs = cast("dict[str, object]", value)
    if not all(isinstance(entry, bool | list) for entry in pairs.values()):
        return None
    return {name: entry is not False for name, entry in pairs.items()}


def _days(value: object) -> object | None:
    return value if isinstance(value, int) and not isinstance(value, bool) and value >= 0 else None


def _fraction(value: object) -> object | None:
    return value if isinstance(value, int | float) and not isinstance(value, bool) and 0 < value <= 1 else None


def _count(value: object) -> object | None:
    number = value if isinstance(value, int | float) and not isinstance(value, bool) else 0
    return int(number) if number >= 1 else None


def _off(value: object) -> object | None:
    return not value if isinstance(value, bool) else None


def _notes(value: object) -> object | None:
    """Return the policy for notes: `autoMemoryEnabled: false` switches them off, true keeps the default."""
    return {True: "ask", False: "off"}[value] if isinstance(value, bool) else None


_SHOWN = frozenset({"on", "name-only", "user-invocable-only", "off"})
_EFFORTS = frozenset({"low", "medium", "high", "xhigh", "max"})


def _visibility(value: object) -> object | None:
    """Return skill -> its visibility."""
    overrides = cast("dict[str, object]", _names(value) or {"": ""})
    return overrides if all(str(visibility) in _SHOWN for visibility in overrides.values()) else None


def _effort(value: object) -> object | None:
    return value if isinstance(value, str) and value in _EFFORTS else None


def _status_line(value: object) -> object | None:
    """Return the command of a status line, and its interval in seconds."""
    entry = cast("dict[str, object]", value) if isinstance(value, dict) else {}
    command = _text(entry.get("command"))
    if entry.get("type", "command") != "command" or command is None:
        return None
    refresh = entry.get("refreshInterval")
    return {"command": command, **({"refresh": refresh} if isinstance(refresh, int | float) and refresh >= 1 else {})}


SIMPLE: Mapping[str, tuple[Address, Callable[[object], object | None], str]] = MappingProxyType(
    {
        "model": (("model",), _text, "a model's name"),
        "fallbackModel": (("fallback_models",), _texts, "a model's name, or a list of them"),
        "modelOverrides": (("model_aliases",), _names, "an object of models and their ids"),
        "effortLevel": (("effort",), _effort, "low, medium, high, xhigh or max"),
        "outputStyle": (("output_style",), _text, "the name of a style"),
        "language": (("language",), _text, "the name of a language"),
        "apiKeyHelper": (("api_key_helper",), _text, "a command"),
        "statusLine": (("status_line",), _status_line, 'an object such as {"type": "command", "command": "..."}'),
        "cleanupPeriodDays": (("cleanup_days",), _days, "a number of days"),
        "enabledPlugins": (("enabled_plugins",), _switches, "an object of plugins, each true or false"),
        "autoMemoryEnabled": (("memory", "write"), _notes, "true or false"),
        "skillOverrides": (("skills", "overrides"), _visibility, "an object of skills and their visibility"),
        "skillListingBudgetFraction": (("skills", "catalogue"), _fraction, "a number above 0, at most 1"),
        "skillListingMaxDescChars": (("skills", "description"), _count, "a number of characters"),
        "disableSkillShellExecution": (("skills", "commands"), _off, "true or false"),
    }
)
"""Fields with one corresponding setting: its address, the reading of a value, and the text on the expected value."""

RESTRICTING = frozenset({"disableSkillShellExecution"})
"""Fields that also count in an untrusted workspace, if they switch something off."""

_SCREEN = "concerns the screen of Claude Code, and has no effect here"
_ACCOUNT = "concerns the account or the updates of Claude Code, and has no effect here"
_OTHER_SERVICE = "concerns a service without the Messages API"
_MANAGED = "counts in managed settings only"
QUIET: Mapping[str, str] = MappingProxyType(
    {
        "$schema": "",
        "includeCoAuthoredBy": "Callboard adds no attribution to commits",
        "attribution": "Callboard adds no attribution to commits",
        **dict.fromkeys(
            (
                *("autoScrollEnabled", "awaySummaryEnabled", "axScreenReader", "disableDeepLinkRegistration"),
                *("editorMode", "feedbackSurveyRate", "fileCheckpointingEnabled", "hasCompletedOnboarding"),
                *("inputNeededNotifEnabled", "messageIdleNotifThresholdMs", "preferredNotifChannel"),
                *("prefersReducedMotion", "showClearContextOnPlanAccept", "showThinkingSummaries", "showTurnDuration"),
                *("skipDangerousModePermissionPrompt", "spinnerTipsEnabled", "spinnerTipsOverride", "spinnerVerbs"),
                *("syntaxHighlightingDisabled", "terminalProgressBarEnabled", "theme", "todoFeatureEnabled", "tui"),
                *("verbose", "viewMode", "voice", "voiceEnabled", "companyAnnouncements", "subagentStatusLine"),
            ),
            _SCREEN,
        ),
        **dict.fromkeys(
            (
                *("autoUpdates", "autoUpdatesChannel", "minimumVersion", "forceLoginMethod", "forceLoginOrgUUID"),
                *("oauthAccount", "primaryApiKey", "customApiKeyResponses", "feedbackDisabled"),
            ),
            _ACCOUNT,
        ),
        **dict.fromkeys(("teammateMode", "useAutoModeDuringPlan", "fastMode", "defaultShell"), "has no effect here"),
    }
)
"""Fields without an effect on agents, and the reason. Only `doctor --compat` lists them."""

LOUD: Mapping[str, str] = MappingProxyType(
    {
        **dict.fromkeys(("awsAuthRefresh", "awsCredentialExport", "gcpAuthRefresh"), _OTHER_SERVICE),
        "otelHeadersHelper": "Callboard exports no telemetry",
        "allowManagedHooksOnly": _MANAGED,
        "allowManagedPermissionRulesOnly": _MANAGED,
        "allowManagedMcpServersOnly": _MANAGED,
        "strictKnownMarketplaces": _MANAGED,
        "agent": "name the lead's type at the start: --agent NAME",
        "alwaysThinkingEnabled": "the model decides; `effortLevel` and --effort ask for more or less",
        "availableModels": "any model that the service has can be used",
        "autoCompactEnabled": "compaction is a pipeline: `context.pipeline` in settings.yaml",
        "autoMemoryDirectory": "notes are kept in Callboard's folders: `callboard memory`",
        "autoMode": "no classifier decides here, a person is asked",
        "claudeMdExcludes": "all instruction files of a folder are read",
        "extraKnownMarketplaces": "add it yourself: `callboard plugin install NAME --marketplace SOURCE`",
        "fileSuggestion": "completion reads the folder itself",
        "includeGitInstructions": "the prompt has no instructions on git",
        "plansDirectory": "plans are kept in the session: `callboard show PLAN`",
        "pluginConfigs": "options of plugins are not supported",
        "respectGitignore": "completion and searches skip ignored files",
        "worktree": "worktrees are made as docs/worktrees.md says",
    }
)
"""Other known fields that have no effect, and the reason. A session's start mentions them."""

_SANDBOX_LISTS: Mapping[str, Address] = MappingProxyType(
    {
        "filesystem.allowWrite": ("sandbox", "writable"),
        "filesystem.allowRead": ("sandbox", "readable"),
        "filesystem.denyRead": ("sandbox", "hidden"),
    }
)
_SANDBOX_WHY: Mapping[str, str] = MappingProxyType(
    {
        "excludedCommands": "every command runs in the sandbox; an approval opens what that command needs",
        "filesystem.denyWrite": "commands write only inside the workspace; deny files there with Edit(PATH) rules",
        "filesystem.disabled": "the file system is always part of the sandbox; `enabled: false` switches all of it off",
        "network.deniedDomains": "only hosts that you allow or approve can be reached",
        "network.strictAllowlist": "",
        "network.allowUnixSockets": "sockets of the machine stay closed to commands",
        "network.allowAllUnixSockets": "sockets of the machine stay closed to commands",
        "network.allowLocalBinding": "a command may always listen inside its own sandbox",
        "network.httpProxyPort": "Callboard's own proxy is used",
        "network.socksProxyPort": "Callboard's own proxy is used",
        "network.tlsTerminate": "Callboard's proxy does not open TLS",
        "ignoreViolations": "a blocked access is an error of the command",
        "enableWeakerNestedSandbox": "`callboard doctor` says which level this machine supports",
        "credentials.envVars": "",
    }
)
"""Fields of `sandbox` without a corresponding setting; an empty reason: Callboard always behaves so."""


def sandbox_values(node: YamlNode) -> Iterator[FieldValue]:
    """Yield the meaning of each part of `sandbox`."""
    for name, part in _parts(node):
        at = f"sandbox.{name}"
        value = plain(part)
        if name in ("enabled", "failIfUnavailable", "autoAllowBashIfSandboxed", "allowUnsandboxedCommands"):
            yield _switch(part, name, value)
        elif name in _SANDBOX_LISTS or name == "credentials.files":
            yield _paths(part, at, _SANDBOX_LISTS.get(name, ("sandbox", "hidden")), value)
        elif name == "network.allowedDomains":
            yield _hosts(part, at, _texts(value))
        elif name in _SANDBOX_WHY:
            reason = _SANDBOX_WHY[name]
            yield FieldValue(part, at, "ignored" if reason else "honored", reason)
        else:
            yield FieldValue(part, at, "ignored", "is not a setting that Callboard knows")


def _parts(node: YamlNode) -> Iterator[tuple[str, YamlNode]]:
    """Yield the fields of `sandbox`, with those of its sections."""
    for name, inner in node.members or ():
        if name in ("filesystem", "network", "credentials") and inner.members is not None:
            yield from ((f"{name}.{key}", part) for key, part in inner.members)
        else:
            yield name, inner


def _switch(node: YamlNode, name: str, value: object) -> FieldValue:
    at = f"sandbox.{name}"
    if not isinstance(value, bool):
        return _invalid(node, at, "true or false")
    match name, value:
        case "enabled", False:
            return FieldValue(node, at, settings=((("sandbox", "level"), 0),))
        case "failIfUnavailable", _:
            return FieldValue(node, at, settings=((("sandbox", "required"), value),))
        case "autoAllowBashIfSandboxed", True:
            reason = "commands without a question are a mode: --permission-mode sandboxed"
            return FieldValue(node, at, "ignored", reason)
        case "allowUnsandboxedCommands", True:
            return FieldValue(node, at, "ignored", "every command runs in the sandbox; an approval opens what it needs")
        case _:
            return FieldValue(node, at)


def _paths(node: YamlNode, at: str, address: Address, value: object) -> FieldValue:
    """Return the paths of a list as Callboard writes them.

    `//x` is an absolute path, and `/**` at the end means the folder.
    """
    entries = cast("list[object]", value) if isinstance(value, list) else []
    texts = [cast("dict[str, object]", entry).get("path") if isinstance(entry, dict) else entry for entry in entries]
    paths = [re.sub(r"(?<=.)/\*\*?\Z", "", text) for text in texts if isinstance(text, str) and text]
    if not paths or len(paths) < len(texts):
        return _invalid(node, at, "a list of paths")
    if patterns := [path for path in paths if set("*?[") & set(path)]:
        return FieldValue(node, at, "ignored", f"a folder or a file is expected, not a pattern: {patterns[0]}")
    return FieldValue(node, at, settings=((address, [re.sub(r"\A//+", "/", path) for path in paths]),))


def _hosts(node: YamlNode, at: str, value: object | None) -> FieldValue:
    """Return the listed hosts without patterns, which the sandbox's proxy does not know."""
    if value is None:
        return _invalid(node, at, "a list of hosts")
    hosts = cast("list[str]", value)
    exact = [host for host in hosts if "*" not in host]
    patterns = ", ".join(host for host in hosts if "*" in host)
    reason = f"hosts are listed exactly, so these are left out: {patterns}" if patterns else ""
    if not exact:
        return FieldValue(node, at, "ignored", reason)
    return FieldValue(node, at, reason=reason, settings=((("sandbox", "network", "allow"), exact),))


def _invalid(node: YamlNode, name: str, expected: str) -> FieldValue:
    return FieldValue(node, name, "ignored", f"has no value of its kind: {expected} is expected")


def simple_value(name: str, node: YamlNode) -> FieldValue:
    """Return the meaning of a field of `SIMPLE`."""
    address, read, expected = SIMPLE[name]
    value = read(plain(node))
    return _invalid(node, name, expected) if value is None else FieldValue(node, name, settings=((address, value),))


_PLACED_BEFORE = late_pattern(r"HOME|XDG_\w+|CLAUDE_CONFIG_DIR|CALLBOARD_TOOL")
"""Variables that were used before any settings file is read."""
_PERSONS_ONLY = late_pattern(
    r"ANTHROPIC_(?!MODEL\Z|SMALL_FAST_MODEL\Z|DEFAULT_[A-Z]+_MODEL\Z)\w+|CALLBOARD_\w+|CLAUDE_CODE_USE_\w+"
    r"|(?i:\w+_proxy)|SSL_CERT_\w+|\w+_CA_(?:BUNDLE|CERTS)|PATH|(?:LD|DYLD)_\w+|BASH_ENV|ENV|SHELLOPTS|IFS"
)
"""Variables that direct the key and the conversation, or that decide which programs run."""


def refused_variable(name: str, *, person: bool) -> str:
    """Return the reason why a file may not set this variable of the environment; empty if it may."""
    if not re.fullmatch(r"[A-Za-z_]\w*", name, re.ASCII):
        return "is not the name of a variable"
    if _PLACED_BEFORE.fullmatch(name):
        return "is used before this file is read: set it in your shell"
    if not person and _PERSONS_ONLY.fullmatch(name):
        return "a workspace may not set it, as it decides where your key goes or which programs run"
    return ""
