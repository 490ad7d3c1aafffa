"""Every error of ours, in one tree. A branch says who can act on it.

    CallboardError
    ├── PersonCanAct          configuration, credentials, trust, budget: the message says what to change
    │   ├── UsageError            the command line or an API call was wrong                      exit 2
    │   ├── SettingsError         a settings, agent, skill, scenario or schedule file is wrong   exit 3
    │   ├── CredentialsMissing    no key for the model service                                   exit 3
    │   ├── UnknownModel          no such model, or no limits and prices known for it            exit 3
    │   ├── WorkspaceUnusable     the workspace or a state folder cannot be read or written      exit 3
    │   ├── AnswerNeeded          a request that nobody can answer reached its deadline          exit 4
    │   ├── LimitReached          steps, tokens, cost or time are used up                        exit 5
    │   ├── ContextOverflow       the conversation does not fit, even after compaction           exit 5
    │   ├── SessionHosted         another live process hosts the session                         exit 3
    │   └── SessionTakenOver      a person made another process its host                         exit 3
    ├── ModelCanAct           what a tool refuses: becomes an error result, never leaves the tool
    │   └── ToolRefused
    ├── RuntimeCanAct         handled inside: retry, compact, take the next
    │   ├── CallFault             a model call failed; carries a `Fault`
    │   ├── CannotCount           the service did not count a request: estimate
    │   └── Conflict              compare-and-swap lost: read again
    └── NobodyCanAct          stop now, keep what there is
        ├── StoreDamaged          a record or the file is damaged; says where, and where it was set aside
        ├── StoreFull             no room, or the file system refuses to write                   exit 3
        ├── Fenced                this process lost its lease; another one writes now            exit 3
        └── ModelUnavailable      attempts used up                                               exit 6

Bugs are not wrapped: any other exception that reaches the command line is ours to mend (exit 70).
"""

from __future__ import annotations

from typing import cast


class CallboardError(Exception):
    """An error of ours: `str(error)` says what, where and what to do. `exit_code` is the command line's."""

    exit_code: int = 1


class PersonCanAct(CallboardError):
    """A person can mend this: by a setting, a key, an answer, a larger budget."""


class UsageError(PersonCanAct):
    """The command line, or a call of the API, asks for what does not exist or fit together."""

    exit_code = 2


class SettingsError(PersonCanAct):
    """A file that a person wrote is wrong. `where` is `file:line: field`, as far as known."""

    exit_code = 3

    def __init__(self, what: str, where: str = "") -> None:
        super().__init__(f"{where}: {what}" if where else what)
        self.where = where


class CredentialsMissing(PersonCanAct):
    """No key for the model service was found; the message names the variables that were looked at."""

    exit_code = 3


class UnknownModel(PersonCanAct):
    """The model's limits and prices are not known; the message names the setting that states them."""

    exit_code = 3


class WorkspaceUnusable(PersonCanAct):
    """The workspace or one of our folders cannot be used: missing, read-only, not ours, a network file system."""

    exit_code = 3


class AnswerNeeded(PersonCanAct):
    """A request that nobody could answer reached its deadline."""

    exit_code = 4


class LimitReached(PersonCanAct):
    """A limit that a person set is reached. `limit` names it (`steps`, `tokens`, `cost_usd`, `seconds`)."""

    exit_code = 5

    def __init__(self, what: str, limit: str) -> None:
        super().__init__(what)
        self.limit = limit


class ContextOverflow(PersonCanAct):
    """The conversation does not fit into the model's window, even after reactive compaction."""

    exit_code = 5


class SessionHosted(PersonCanAct):
    """Another live process hosts this session. `pid` is that process's."""

    exit_code = 3

    def __init__(self, what: str, pid: int) -> None:
        super().__init__(what)
        self.pid = pid


class SessionTakenOver(PersonCanAct):
    """A person told another process to host this session; this one leaves. `pid` is the other's."""

    exit_code = 3

    def __init__(self, what: str, pid: int) -> None:
        super().__init__(what)
        self.pid = pid


class ModelCanAct(CallboardError):
    """The model asked for something that cannot be done as asked; it reads the message and tries again."""


class ToolRefused(ModelCanAct):
    """A tool refuses its input or its situation. The text becomes an error result."""


class RuntimeCanAct(CallboardError):
    """The runtime handles this by itself; it never reaches a person."""


class Conflict(RuntimeCanAct):
    """A compare-and-swap lost: `what` (a key or stream) stood at `found`, not at `expected`."""

    def __init__(self, what: str, expected: int, found: int) -> None:
        super().__init__(f"{what} stands at {found}, not at {expected}: read it again")
        self.what, self.expected, self.found = what, expected, found


class NobodyCanAct(CallboardError):
    """Going on would lose or damage something: stop now."""


class StoreDamaged(NobodyCanAct):
    """A record or the whole file cannot be read; the message says where, and where it was set aside."""

    exit_code = 3


class StoreFull(NobodyCanAct):
    """The disk is full or the file system refuses to write. Nothing acknowledged was lost."""

    exit_code = 3


class Fenced(NobodyCanAct):
    """This process's lease was taken over: its writes are refused so that two hosts never write one journal."""

    exit_code = 3


class ModelUnavailable(NobodyCanAct):
    """The model service could not be reached, or kept failing, until the attempts were used up."""

    exit_code = 6


def heart_of(failed: BaseException) -> BaseException:
    """The one exception that matters in a group: an error of ours before anything else."""
    inside = _flat(failed)
    ours = [one for one in inside if isinstance(one, CallboardError)]
    return (ours or inside)[0]


def _flat(failed: BaseException) -> list[BaseException]:
    if isinstance(failed, BaseExceptionGroup):
        group = cast("BaseExceptionGroup[BaseException]", failed)
        return [inner for one in group.exceptions for inner in _flat(one)]
    return [failed]
