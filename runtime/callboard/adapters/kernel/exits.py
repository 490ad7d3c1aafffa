"""Descriptors of processes, which become readable when the process ends: for waiting, and for signals.

Linux has them (`pidfd_open`). Elsewhere (macOS, BSD) a kernel queue with the one event NOTE_EXIT serves as one. A
signal then goes to the pid, after a check that the process has not ended: pids are reused late, so that a gap of
microseconds remains only for processes that are not children of this one.

Imports only the standard library, because `launch_child.py` and similar scripts use it too.
"""

from __future__ import annotations

import os
import select
import signal


def open_process(pid: int) -> int:
    """Return a descriptor that can be read once the process has ended, and that the caller closes.

    A zombie has ended. Raises `ProcessLookupError` if there is no such process, and `OSError`.
    """
    if hasattr(os, "pidfd_open"):
        return os.pidfd_open(pid)
    return _open_queue(pid)


def signal_process(descriptor: int, pid: int, number: int) -> None:
    """Send a signal to the process of the descriptor. Raises `ProcessLookupError` if it has ended."""
    if hasattr(signal, "pidfd_send_signal"):
        signal.pidfd_send_signal(descriptor, number)
        return
    if has_ended(descriptor):
        raise ProcessLookupError(3, os.strerror(3))
    os.kill(pid, number)


def has_ended(descriptor: int) -> bool:
    """Return True if the process of the descriptor has ended."""
    ready = select.poll()
    ready.register(descriptor, select.POLLIN)
    return bool(ready.poll(0))


def _open_queue(pid: int) -> int:
    kernel = vars(select)  # Linux has no kqueue, so its type stubs have none either
    queue = kernel["kqueue"]()
    try:
        event = kernel["kevent"](
            pid, filter=kernel["KQ_FILTER_PROC"], flags=kernel["KQ_EV_ADD"], fflags=kernel["KQ_NOTE_EXIT"]
        )
        queue.control([event], 0)
        # Never read, so that it stays readable. A copy, because the object closes its own descriptor.
        return os.dup(queue.fileno())
    except ProcessLookupError:
        # macOS finds no zombie for an event, but a signal to one succeeds (man 2 kill).
        os.kill(pid, 0)
        return _readable()
    finally:
        queue.close()


def _readable() -> int:
    """Return a descriptor that can be read at once."""
    reader, writer = os.pipe()
    os.close(writer)
    return reader
