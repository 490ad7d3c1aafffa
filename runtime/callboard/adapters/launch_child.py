"""The process between the runtime and a command: it changes itself (level L0), starts the command, and outlives it.

Run as a script by `launcher.py` with nothing but the standard library, before any package can be imported. It is the
leader of a session of its own and the reaper of all that the command leaves behind, also of what made a session of its
own. The command's output goes through one pipe, so that both streams keep their order and `> /dev/stderr` truncates
nothing, into the output file. Nothing of the command is alive when this process has ended.

argv: OUTPUT LIMIT MODE FOLDER SHELL COMMAND WALL... MODE `hold`: it ends with its host, or on a word of it; `free`: it
goes on when the host dies, and leaves `OUTPUT.exit`. Each WALL is `NAME=VALUE`, in order, and says what the command may
do (`sandbox/levels.py` writes them); none is level L0. Descriptor 3: one byte means go, its end means that the host is
gone. Refuses to run anything when the host died before saying go.
"""
# ruff: noqa: PTH100, PTH104, PTH108, PTH120, PTH123
# Importing pathlib would take longer than all the rest of the start.

from __future__ import annotations

import ctypes
import os
import resource
import signal
import sys
from collections import defaultdict

if __name__ == "__main__":  # a package of that name without its `__init__`, which imports what is of no use here
    package = type(sys)("callboard")
    package.__path__ = [os.path.dirname(os.path.dirname(os.path.abspath(__file__)))]
    sys.modules["callboard"] = package

from callboard.adapters.sandbox import keeping
from callboard.adapters.sandbox import walls as walling
from callboard.adapters.sandbox.watching import CONTROL, Watch, descendants, signal_all

Walls = defaultdict[str, list[str]]
"""The WALL arguments by name."""

GRACE = 2.0
"""Seconds between TERM and KILL."""
LINGER = 0.5
"""Seconds that processes left by a finished command have to end by themselves (`> >(tee log)`)."""
PR_SET_CHILD_SUBREAPER, PR_SET_NO_NEW_PRIVS = 36, 38
OPEN_FILES = 4096
NOT_RUN = 125
EXIT_ROOM = 8
"""Bytes of the file with the exit code."""


def end_all(watch: Watch) -> None:
    """TERM, a grace, KILL, until nothing is left: what is born meanwhile is seen in the next round."""
    if watch.inside:
        keeping.end_all(watch, GRACE)
        keeping.release(watch)
        return
    signal_all(signal.SIGTERM)
    signal_all(signal.SIGCONT)
    if watch.until_quiet(GRACE):
        return
    for _ in range(50):
        signal_all(signal.SIGKILL)
        if watch.until_quiet(0.1):
            return


def become_shell(watch: Watch, keeper: keeping.Keeper | None, group: walling.Group | None, walls: Walls) -> None:
    """Turn this forked process into the command, behind its walls. Does not return."""
    folder, shell, command = sys.argv[4:7]
    program, words = shell, ["bash", "--noprofile", "--norc", "-c", command]
    try:
        signal.set_wakeup_fd(-1)
        os.setpgid(0, 0)
        os.dup2(watch.writer, 1)
        os.dup2(watch.writer, 2)
        if group:
            group.enter()
        if keeper:
            keeper.place()
            program, words = walls["bwrap"][0], keeping.words_of(walls["bwrap"], walls["cover"])
        os.closerange(6 if keeper else 3, OPEN_FILES)
        for number in (signal.SIGPIPE, signal.SIGXFSZ, signal.SIGTERM, signal.SIGCHLD, signal.SIGINT):
            signal.signal(number, signal.SIG_DFL)
        os.chdir(folder)
        walling.limit(walls["limit"])
        if walls["abi"]:
            walling.drop_capabilities()
            walling.landlock(int(walls["abi"][0]), walls["read"], walls["write"], bool(walls["network"]))
            walling.filter_calls(bytes.fromhex(walls["filter"][0]))
        os.execv(program, words)  # noqa: S606 - judged before
    except BaseException as error:  # noqa: BLE001 - this process has no caller to raise to
        os.write(2, f"The command could not be started: {error}\n".encode(errors="replace"))
    finally:
        os._exit(126)


def read_walls(given: list[str]) -> Walls:
    """The WALL arguments by name."""
    walls: Walls = defaultdict(list)
    for one in given:
        name, _, value = one.partition("=")
        walls[name].append(value)
    return walls


def prepare() -> None:
    """Level L0: no new privileges, no core, a sane number of files, private files; and orphans come to us."""
    libc = ctypes.CDLL(None)
    libc.prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    libc.prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0)
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    most = OPEN_FILES if hard == resource.RLIM_INFINITY else min(hard, OPEN_FILES)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, hard))
    os.closerange(CONTROL + 1, 1 << 20)
    os.umask(0o077)


def leave(path: str, text: str) -> None:
    """Write a small file whole or not at all."""
    with open(path + ".part", "w", encoding="utf-8") as file:
        file.write(text)
    os.rename(path + ".part", path)


def save_room(output: str) -> None:
    """Take the disk's room for the exit code before there is one: a full disk shall not make the command a lost one."""
    descriptor = os.open(output + ".exit.part", os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
    try:
        os.write(descriptor, b" " * EXIT_ROOM)
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def leave_code(output: str, code: int) -> None:
    """Leave the exit code in the room that was kept for it. Where even that fails a host that lives gets it from us."""
    try:
        descriptor = os.open(output + ".exit.part", os.O_WRONLY | os.O_CLOEXEC)
        try:
            os.pwrite(descriptor, f"{code}\n".encode().ljust(EXIT_ROOM), 0)
        finally:
            os.close(descriptor)
        os.rename(output + ".exit.part", output + ".exit")
    except OSError:
        return


def finish(watch: Watch, left_behind: int, taken: list[str]) -> None:
    """The last words of the output file: what was left behind and ended, what was taken away, what did not fit."""
    notes = "".join(f"\n[{path} was taken away: it would change what git runs.]\n" for path in taken)
    if left_behind:
        notes += f"\n[Processes that the command left behind were ended ({left_behind}). "
        notes += "What is meant to go on needs run_in_background.]\n"
    if watch.dropped:
        notes += f"\n[{watch.dropped} more bytes of output were dropped.]\n"
    try:
        os.write(watch.output, notes.encode())
    except OSError:
        return  # a full disk: the exit code still tells how the command ended


def heard(number: int, frame: object) -> None:
    """Only wakes the poll: a signal without a handler would not be written to the wake-up descriptor."""


def take_place(output: str) -> int:
    """Open the output file and leave beside it who writes it: found there even if the host dies this very moment."""
    descriptor = os.open(output, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
    with open("/proc/self/stat", encoding="utf-8") as file:
        started = file.read().rpartition(")")[2].split()[19]
    leave(output + ".pid", f"{os.getpid()} {started} {this_boot()}\n")
    return descriptor


def this_boot() -> str:
    """The id of this boot; empty where the kernel does not tell it."""
    try:
        with open("/proc/sys/kernel/random/boot_id", encoding="ascii") as file:
            return file.read().strip()
    except (OSError, ValueError):
        return ""


def see_through(watch: Watch, unwanted: list[str]) -> int:
    """Watch the command until it and all of its kind have ended; its exit code. `unwanted`: what it must not leave."""
    watch.reap()
    while watch.code is None and not watch.stopping:
        watch.turn(None)
    left_behind = 0
    if watch.stopping:
        end_all(watch)
    elif watch.inside:
        left_behind = keeping.linger(watch, LINGER)
        if left_behind:
            keeping.end_all(watch, GRACE)
        keeping.release(watch)
    elif watch.children and not watch.until_quiet(LINGER):
        left_behind = len(descendants())
        end_all(watch)
    watch.drain()
    finish(watch, left_behind, keeping.take_away(unwanted))
    return 128 + signal.SIGKILL if watch.code is None else watch.code


def main() -> int:
    """Run the command to its end; the command's exit code, `NOT_RUN` when it was not run at all."""
    output, most, mode = sys.argv[1:4]
    walls = read_walls(sys.argv[7:])
    prepare()
    for number in (signal.SIGTERM, signal.SIGCHLD):
        signal.signal(number, heard)
    for number in (signal.SIGINT, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    descriptor = take_place(output)
    if mode == "free":
        save_room(output)
    if not os.read(CONTROL, 1):
        return NOT_RUN
    places = keeping.Places(walls["lock"][0], walls["place"]) if walls["lock"] else None
    try:
        code = run(Watch(*os.pipe(), descriptor, int(most), mode == "hold"), walls)
    finally:
        if places:
            places.leave()
    if mode == "free":
        leave_code(output, code)
    try:
        os.unlink(output + ".pid")
    except OSError:
        return code  # its folder was removed under us
    return code


def run(watch: Watch, walls: Walls) -> int:
    """Start the command and see it through; its exit code."""
    unwanted = [path for path in walls["unwanted"] if not os.path.lexists(path)]
    group = walling.Group(*walls["group"][0].rsplit(":", 1)) if walls["group"] else None
    keeper = keeping.Keeper(bytes.fromhex(walls["filter"][0])) if walls["bwrap"] else None
    watch.shell = os.fork()
    if not watch.shell:
        become_shell(watch, keeper, group, walls)
    os.close(watch.writer)
    if keeper:
        keeper.attach(watch)
    try:
        return see_through(watch, unwanted)
    finally:
        if group:
            group.leave()


def tell(output: str, error: BaseException) -> None:
    """Why there is no more of the output, at its end; where even that cannot be written, the exit code has to do."""
    try:
        with open(output, "a", encoding="utf-8", errors="replace") as file:
            file.write(f"The command could not be started or watched: {type(error).__name__}: {error}\n")
    except OSError:
        return


if __name__ == "__main__":
    try:
        outcome = main()
    except BaseException as error:  # noqa: BLE001 - the host reads it from the exit code, a person from the output
        signal_all(signal.SIGKILL)
        tell(sys.argv[1], error)
        outcome = NOT_RUN
    os._exit(outcome)
