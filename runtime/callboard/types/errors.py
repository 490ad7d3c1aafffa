"""Errors of Callboard, in one tree. A branch states who can act on the error.

    CallboardError
    ├── PersonCanAct          configuration, credentials, trust, budget: the message says what to change
    │   ├── UsageError            the command line or an API call was wrong                      exit 2
    │   ├── SettingsError         a settings, agent, skill, scenario or schedule file is wrong   exit 3
    │   ├── CredentialsMissing    no key for the model service                                   exit 3
    │   ├── UnknownModel          a budget in dollars needs the model's price                    exit 3
    │   ├── WorkspaceUnusable     the workspace or a state folder cannot be read or written      exit 3
    │   ├── AnswerNeeded          a request that nobody can answer reached its deadline          exit 4
    │   ├── LimitReached          steps, tokens, cost or time are used up                        exit 5
    │   ├── ContextOverflow       the conversation does not fit, even after compaction           exit 5
    │   ├── SessionHosted         another live process hosts the session                         exit 3
    │   └── SessionTakenOver      a person made another process its host                         exit 3
    ├── ModelCanAct           a refusal by a tool: becomes an error result, never leaves the tool
    │   └── ToolRefused
    ├── RuntimeCanAct         handled by the runtime: retry, compact, take the next
    │   ├── CallFault             a model call failed; carries a `Fault`
    │   ├── CannotCount           the service did not count a request: estimate
    │   └── Conflict              compare-and-swap lost: read again
    └── NobodyCanAct          stop now, and keep the existing data
        ├── StoreDamaged          a record or the file is damaged; says where, and where it was set aside
        │   ├── ValueDamaged          one record or row failed its checksum; the rest can be read
        │   └── SessionUnreadable     data of one session is damaged, or newer than this version
        ├── StoreFull             no room, or the file system refuses to write                   exit 3
        ├── StoreBusy             a stopped process holds the lock that each write needs         exit 3
        ├── Fenced                this process lost its lease; another one writes now            exit 3
        └── ModelUnavailable      attempts used up                                               exit 6

Bugs are not wrapped: any other exception that reaches the command line is a bug of Callboard (exit 70).
"""

from __future__ import annotations

from typing import cast


class CallboardError(Exception):
    """Base class of all errors of Callboard.

    `str(error)` says what is wrong, where, and what to do. `exit_code` is that of the command line.
    """

    exit_code: int = 1

    def __reduce__(self) -> tuple[object, ...]:
        """Return the parts for `pickle` and `copy`, which would call the class with the message alone otherwise."""
        return _restored, (type(self), self.args), self.__dict__


def _restored(kind: type[CallboardError], args: tuple[object, ...]) -> CallboardError:
    return kind.__new__(kind, *args)


class PersonCanAct(CallboardError):
    """The user can fix this: by a setting, a key, an answer, or a larger budget."""


class UsageError(PersonCanAct):
    """The command line, or a call of the API, asks for something that does not exist or does not fit together."""

    exit_code = 2


class SettingsError(PersonCanAct):
    """A file that the user wrote is wrong. `where` is `file:line: field`, as far as known."""

    exit_code = 3

    def __init__(self, what: str, where: str = "") -> None:
        super().__init__(f"{where}: {what}" if where else what)
        self.where = where


class CredentialsMissing(PersonCanAct):
    """No key for the model service was found. The message names the variables that were checked."""

    exit_code = 3


class UnknownModel(PersonCanAct):
    """A budget in dollars needs the model's price, or no model is named. The message says what to set."""

    exit_code = 3


class WorkspaceUnusable(PersonCanAct):
    """The workspace or one of Callboard's folders cannot be used.

    The folder is missing, read-only, another user's, or on a network file system.
    """

    exit_code = 3


class AnswerNeeded(PersonCanAct):
    """A request that no one could answer reached its deadline."""

    exit_code = 4


class LimitReached(PersonCanAct):
    """A limit that the user set is reached. `limit` names it (`steps`, `tokens`, `cost_usd`, `seconds`)."""

    exit_code = 5

    def __init__(self, what: str, limit: str) -> None:
        super().__init__(what)
        self.limit = limit


class ContextOverflow(PersonCanAct):
    """The conversation does not fit into the model's window, even after reactive compaction."""

    exit_code = 5


class SessionHosted(PersonCanAct):
    """Another live process, `pid`, hosts this session."""

    exit_code = 3

    def __init__(self, what: str, pid: int, machine: str = "") -> None:
        super().__init__(what)
        self.pid = pid
        self.machine = machine


class SessionTakenOver(PersonCanAct):
    """The user made another process, `pid`, the host of this session, so this process ends its part."""

    exit_code = 3

    def __init__(self, what: str, pid: int, machine: str = "") -> None:
        super().__init__(what)
        self.pid = pid
        self.machine = machine


class ModelCanAct(CallboardError):
    """The model asked for something impossible. It reads the message and tries again."""


class ToolRefused(ModelCanAct):
    """A tool refuses its input or the situation. The text becomes an error result."""


class CommandNotRun(ToolRefused):
    """A command was not started, because its sandbox or its process could not be set up.

    It has no exit code and no output. The model can only report it.
    """

    def __init__(self, reason: str) -> None:
        super().__init__(
            f"The command was not run: setting up its sandbox or its process failed ({reason}). This is no failure of "
            "the command, and no test has failed. Do not change the command or the code because of it: tell the "
            "person, who finds out more with `callboard doctor`"
        )


class RuntimeCanAct(CallboardError):
    """The runtime handles this itself. It never reaches the user."""


class Conflict(RuntimeCanAct):
    """A compare-and-swap lost: `what` (a key or stream) was at `found` instead of `expected`."""

    def __init__(self, what: str, expected: int, found: int) -> None:
        super().__init__(f"{what} stands at {found}, not at {expected}: read it again")
        self.what = what
        self.expected = expected
        self.found = found


class NobodyCanAct(CallboardError):
    """Continuing would lose or damage data: stop now."""


class StoreDamaged(NobodyCanAct):
    """A record or the whole file cannot be read. The message says where, and where it was set aside."""

    exit_code = 3


class ValueDamaged(StoreDamaged):
    """One record or row failed its checksum and was set aside. The rest of the store can be read.

    `where` is the row's key, or the record's stream and number as `STREAM#SEQ`.
    """

    def __init__(self, what: str, where: str) -> None:
        super().__init__(what)
        self.where = where


class SessionUnreadable(StoreDamaged):
    """A record or row that one session needs cannot be used. Other sessions continue.

    `newer`: the record is intact, but a newer Callboard wrote it.
    """

    def __init__(self, what: str, session: str, *, newer: bool = False) -> None:
        super().__init__(what)
        self.session = session
        self.newer = newer


class StoreFull(NobodyCanAct):
    """The disk is full, or the file system refuses to write. No acknowledged write was lost."""

    exit_code = 3


class StoreBusy(NobodyCanAct):
    """A stopped process holds the lock that each write needs. Nothing was written."""

    exit_code = 3


class Fenced(NobodyCanAct):
    """Another process took over the lease.

    Writes of this process are refused, so that two hosts never write one journal.
    """

    exit_code = 3


class ModelUnavailable(NobodyCanAct):
    """The model service could not be reached, or kept failing, until the attempts were used up."""

    exit_code = 6


def heart_of(failed: BaseException) -> BaseException:
    """Return the most relevant exception of a group: an error of Callboard if there is one.

    The loss of a lease comes first: writes that fail at the same moment follow from it.
    """
    inside = _flat(failed)
    own_errors = [error for error in inside if isinstance(error, CallboardError)]
    lost = [error for error in own_errors if isinstance(error, Fenced)]
    return (lost or own_errors or inside)[0]


def _flat(failed: BaseException) -> list[BaseException]:
    if isinstance(failed, BaseExceptionGroup):
        group = cast("BaseExceptionGroup[BaseException]", failed)
        return [inner for inner_error in group.exceptions for inner in _flat(inner_error)]
    return [failed]
