"""Process between the runtime and a command: it restricts itself (level L0), starts the command, and outlives it.

`launcher.py` runs it as a script with only the standard library, before any package can be imported. It leads its own
session and reaps all processes that the command leaves, even those in other sessions. The command's output goes through
one pipe into the output file, so that both streams keep their order and `> /dev/stderr` truncates nothing. When this
process has ended, no process of the command is alive.

argv: OUTPUT LIMIT MODE FOLDER SHELL COMMAND RESTRICTION... MODE `hold`: it ends with its host, or when the host
requests it; `free`: it continues after the host's death, and leaves `OUTPUT.exit`. A second byte on descriptor 3
changes `hold` to `free`. Each RESTRICTION is `NAME=VALUE`, in order, and sets a limit or a right of the command
(from `sandbox/restrictions.py`); without any, level L0 applies. `input` and `errors` are files: standard input, and
the target of standard error, which is otherwise part of the output. Descriptor 3: one byte starts the command, its end
means that the host is gone. Nothing runs if the host died before sending that byte.
"""
# ruff: noqa: PTH100, PTH104, PTH108, PTH114, PTH120, PTH123 - importing pathlib would take longer than all the rest of the start

from __future__ import annotations

import fcntl
import os
import resource
import select
import signal
import sys
from collections import defaultdict

if __name__ == "__main__":  # a package of that name without its `__init__`, which would import unneeded modules
    package = type(sys)("callboard")
    package.__path__ = [os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))]
    sys.modules["callboard"] = package

from callboard.adapters.kernel.process_table import boot_id, row_of
from callboard.adapters.processes.sandbox import isolation, path_guard, pid_namespace
from callboard.adapters.processes.sandbox.command_monitor import (
    CONTROL,
    ErrorStream,
    Watch,
    adopt_orphans,
    close_from,
    descendants,
    end_descendants,
    signal_all,
)
from callboard.adapters.processes.tool_mark import mark_process
from callboard.adapters.system import release

Restrictions = defaultdict[str, list[str]]
"""RESTRICTION arguments by name."""

GRACE = 2.0
"""Seconds between TERM and KILL."""
LINGER = 0.5
"""Seconds that processes left by a finished command have to end by themselves (`> >(tee log)`)."""
OPEN_FILES = 4096
NOT_RUN = 125
EXIT_ROOM = 8
"""Bytes reserved for the exit code in its file."""


def end_all(watch: Watch) -> None:
    """End all processes of the command, in its own namespace or among the descendants."""
    if watch.inside:
        pid_namespace.end_all(watch, GRACE)
        pid_namespace.end_namespace(watch)
    else:
        end_descendants(watch, GRACE)


def become_shell(
    watch: Watch,
    keeper: pid_namespace.InnerPipes | None,
    *,
    group: isolation.ControlGroup | None,
    restrictions: Restrictions,
    failed: int,
    errors: ErrorStream | None,
) -> None:
    """Turn this forked process into the restricted command.

    Does not return. `failed`: closed on success, else it gets the reason. `errors`: the stream of standard error if it
    is separate from the output.
    """
    folder, shell, command = sys.argv[4:7]
    program = shell
    arguments = ["bash", "--noprofile", "--norc", "-c", command]
    try:
        # The descriptor is shared with the process that watches, which a signal here would wake.
        signal.set_wakeup_fd(-1)
        # A separate group, so that `kill 0` in the command does not reach this process
        # (test_it_has_a_session_and_a_process_group_of_its_own).
        os.setpgid(0, 0)
        os.dup2(watch.writer, 1)
        os.dup2(watch.writer if errors is None else errors.writer, 2)
        if restrictions["input"]:
            os.dup2(os.open(restrictions["input"][0], os.O_RDONLY | os.O_CLOEXEC), 0)
        if group:
            group.enter()
        if keeper:
            keeper.place()
            program = restrictions["bwrap"][0]
            arguments = pid_namespace.fill_covers(restrictions["bwrap"], restrictions["cover"], restrictions["late"])
        if restrictions["seatbelt"]:
            program = restrictions["seatbelt"][0]
            arguments = ["sandbox-exec", "-p", restrictions["profile"][0], shell, *arguments[1:]]
        last = resource.getrlimit(resource.RLIMIT_NOFILE)[0] - 1
        # At the highest number, so that one range closes all others. A successful exec closes it, which reports
        # success.
        failed = fcntl.fcntl(failed, fcntl.F_DUPFD_CLOEXEC, last)
        # The command must not have open files of the host (test_the_command_runs_at_level_l0).
        close_from(6 if keeper else 3, last)
        # Python ignores SIGPIPE, and an ignored signal stays ignored after exec
        # (test_a_closed_pipe_ends_a_writer_as_in_any_shell).
        for number in (signal.SIGPIPE, signal.SIGXFSZ, signal.SIGTERM, signal.SIGCHLD, signal.SIGINT):
            signal.signal(number, signal.SIG_DFL)
        os.chdir(folder)
        isolation.apply_limits(restrictions["limit"])
        if restrictions["abi"]:
            isolation.drop_capabilities()
            isolation.apply_landlock(
                int(restrictions["abi"][0]), restrictions["read"], restrictions["write"], bool(restrictions["network"])
            )
            isolation.apply_call_filter(bytes.fromhex(restrictions["filter"][0]))
        os.execv(program, arguments)  # noqa: S606 - permission was decided before
    except BaseException as error:  # noqa: BLE001 - this process has no caller to raise to
        os.write(failed, str(error).encode(errors="replace")[:1000])
    finally:
        os._exit(NOT_RUN)


def parse_restrictions(arguments: list[str]) -> Restrictions:
    """Return the RESTRICTION arguments by name."""
    restrictions: Restrictions = defaultdict(list)
    for argument in arguments:
        name, _, value = argument.partition("=")
        restrictions[name].append(value)
    return restrictions


def prepare() -> None:
    """Set up level L0.

    The level is the mark of tools, no new privileges, no core dumps, a limit of open files, private files, and adoption
    of orphans.
    """
    # Orphans become children of this process, even those in other sessions
    # (test_a_time_out_ends_grandchildren_in_sessions_of_their_own).
    adopt_orphans()
    mark_process()
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    most = OPEN_FILES if hard == resource.RLIM_INFINITY else min(hard, OPEN_FILES)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, hard))
    # This process inherits all descriptors of the host that are not closed on exec.
    close_from(CONTROL + 1, 1 << 20)
    os.umask(0o077)


def leave(path: str, text: str) -> None:
    """Write a small file atomically."""
    with open(path + ".part", "w", encoding="utf-8") as file:
        file.write(text)
    os.rename(path + ".part", path)


def save_room(output: str) -> None:
    """Reserve disk space for the exit code in advance, so that a full disk does not lose the result of the command."""
    descriptor = os.open(output + ".exit.part", os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
    try:
        os.write(descriptor, b" " * EXIT_ROOM)
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def make_room(output: str) -> None:
    """Reserve disk space for the exit code of a command that is running already; on a full disk it goes on without."""
    try:
        save_room(output)
    except OSError:
        return


def leave_code(output: str, code: int) -> None:
    """Write the exit code into the reserved space.

    If even that fails, a living host gets the code from this process.
    """
    try:
        descriptor = os.open(output + ".exit.part", os.O_WRONLY | os.O_CLOEXEC)
        try:
            os.pwrite(descriptor, f"{code}\n".encode().ljust(EXIT_ROOM), 0)
        finally:
            os.close(descriptor)
        os.rename(output + ".exit.part", output + ".exit")
    except OSError:
        return


def finish(watch: Watch, left_behind: int, guard: path_guard.PathGuard | None, earlier: str, *, plain: bool) -> None:
    """Write the end of the output file.

    The end names paths that were moved aside, processes that remained and were ended, and output that did not fit.
    `earlier`: the host's text to add. `plain`: add nothing, because a program reads the output.
    """
    notes = "".join(f"\n{text}" for text in (guard.report() if guard else "", earlier) if text)
    if guard and guard.exceeded:
        notes += "[The command was ended: it went on creating such files.]\n"
    if notes:
        leave(sys.argv[1] + ".report", notes)
    if plain:
        return
    if left_behind:
        notes += f"\n[Processes that the command left behind were ended ({left_behind}). "
        notes += "A process that should continue needs run_in_background.]\n"
    if watch.dropped:
        notes += f"\n[{watch.dropped} more bytes of output were dropped.]\n"
    try:
        os.write(watch.output, notes.encode())
    except OSError:
        return  # a full disk: the exit code still shows the result of the command


def wake(number: int, frame: object) -> None:
    """Do nothing except wake the poll: a signal without a handler is not written to the wake-up descriptor."""


def take_place(output: str) -> int:
    """Open the output file, and write the identity of this process next to it.

    With that identity the process can be found even if the host dies at once.
    """
    descriptor = os.open(output, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
    row = row_of(os.getpid())
    if row is None:
        raise OSError("the process table does not show this process")
    leave(output + ".pid", f"{row.pid} {row.started:.0f} {boot_id()}\n")
    return descriptor


def see_through(watch: Watch, guard: path_guard.PathGuard | None, earlier: str, errors: ErrorStream | None) -> int:
    """Watch the command until all of its processes have ended, and return its exit code."""
    watch.reap()
    while watch.code is None and not watch.stopping:
        watch.turn(None)
    left_behind = 0
    if watch.stopping:
        end_all(watch)
    elif watch.inside:
        left_behind = pid_namespace.wait_for_stragglers(watch, LINGER)
        if left_behind:
            pid_namespace.end_all(watch, GRACE)
        pid_namespace.end_namespace(watch)
    elif watch.children and not watch.until_quiet(LINGER):
        left_behind = len(descendants())
        end_all(watch)
    watch.drain()
    if errors:
        errors.drain()
    if guard:
        guard.check()
    finish(watch, left_behind, guard, earlier, plain=errors is not None)
    return 128 + signal.SIGKILL if watch.code is None else watch.code


def main() -> int:
    """Run the command to its end. Return the command's exit code, or `NOT_RUN` if it was not run."""
    output, most, mode = sys.argv[1:4]
    if differs := release.parent_differs():
        leave(output + ".failed", differs)
        return NOT_RUN
    restrictions = parse_restrictions(sys.argv[7:])
    prepare()
    for number in (signal.SIGTERM, signal.SIGCHLD):
        signal.signal(number, wake)
    for number in (signal.SIGINT, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    descriptor = take_place(output)
    if mode == "free":
        save_room(output)
    # Otherwise a background command could run although its host died before recording it.
    if not os.read(CONTROL, 1):
        return NOT_RUN
    watch = Watch(*os.pipe(), descriptor, limit=int(most), hold=mode == "hold")
    watch.on_move = lambda: make_room(output)
    code = run(watch, restrictions)
    if mode == "free" or watch.was_moved():
        leave_code(output, code)
    try:
        os.unlink(output + ".pid")
    except OSError:
        return code  # its folder was removed meanwhile
    return code


def run(watch: Watch, restrictions: Restrictions) -> int:
    """Start the command, wait for its end, and return its exit code."""
    guard, record = begin_guard(watch, restrictions)
    group = isolation.ControlGroup(*restrictions["group"][0].rsplit(":", 1)) if restrictions["group"] else None
    keeper = pid_namespace.InnerPipes(bytes.fromhex(restrictions["filter"][0])) if restrictions["bwrap"] else None
    errors = ErrorStream(restrictions["errors"][0], int(sys.argv[2])) if restrictions["errors"] else None
    reason, failed = os.pipe()
    watch.shell = os.fork()
    if not watch.shell:
        become_shell(watch, keeper, group=group, restrictions=restrictions, failed=failed, errors=errors)
    os.close(failed)
    if errors:
        errors.attach(watch)
    os.close(watch.writer)
    if keeper:
        keeper.attach(watch)
    try:
        code = see_through(watch, guard, "".join(restrictions["note"]), errors)
        if not watch.begun:
            watch.turn(0)  # its report may have arrived together with its end
        text = os.read(reason, 1000)  # the other end is closed: the command has ended
        # A command may itself end with any exit code, so the code alone is ambiguous
        # (test_an_exit_code_of_the_command_is_never_taken_for_that).
        if text or not (watch.begun or watch.stopping):
            os.write(watch.output, b"The command was not run: " + (text or b"its sandbox could not be started") + b"\n")
            leave(sys.argv[1] + ".failed", text.decode(errors="replace"))
            return NOT_RUN
        return code
    finally:
        if record:
            os.unlink(record)
        if group:
            group.leave()


def begin_guard(watch: Watch, restrictions: Restrictions) -> tuple[path_guard.PathGuard | None, str]:
    """Guard absent paths.

    Return the guard and its record. Paths created since the restrictions were computed become read-only like the other
    protected paths.
    """
    if not restrictions["guard"]:
        return None, ""
    # The folders are opened before the command exists, so that no rename or link can redirect a check.
    guard = path_guard.PathGuard(restrictions["guard"], path_guard.Grants(restrictions["grants"][0]))
    restrictions["late"] = [path for path in guard.late() if not os.path.islink(path)]
    record = path_guard.leave_record(restrictions["guards"][0], guard, sys.argv[6])

    def created(descriptor: int) -> None:
        guard.check(descriptor)
        if guard.exceeded:
            watch.stopping = True

    descriptor = guard.watch()
    if descriptor >= 0:
        watch.handlers[descriptor] = created
        watch.poll.register(descriptor, select.POLLIN)
    return guard, record


def tell(output: str, error: BaseException) -> None:
    """Write at the end of the output the reason why it is incomplete.

    If that fails, only the exit code is available.
    """
    try:
        with open(output, "a", encoding="utf-8", errors="replace") as file:
            file.write(f"The command could not be started or watched: {type(error).__name__}: {error}\n")
    except OSError:
        return


if __name__ == "__main__":
    try:
        outcome = main()
    except BaseException as error:  # noqa: BLE001 - the host reads it from the exit code, a user from the output
        signal_all(signal.SIGKILL)
        tell(sys.argv[1], error)
        outcome = NOT_RUN
    os._exit(outcome)
