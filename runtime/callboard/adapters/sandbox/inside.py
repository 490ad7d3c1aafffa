"""Our process inside at level 3: the way out for the command's programs, and else what the shell of level 2 does.

Its text is given to Python inside (`-c`), so it needs no file there, and only the standard library. Programs know of an
HTTP proxy on a port of their own loopback; each connection to it is carried to the socket of the proxy outside, which
decides. argv: SOCKET PORT SHELL COMMAND PROCESSES. Descriptor 3: how the command ended and how many processes are left;
it stays while descriptor 4 is open.
"""
# ruff: noqa: PTH208

import contextlib
import os
import resource
import socket
import sys
import threading


def carry(source: socket.socket, sink: socket.socket) -> None:
    """All that comes, until its end."""
    with contextlib.suppress(OSError):
        while data := source.recv(1 << 16):
            sink.sendall(data)
    with contextlib.suppress(OSError):
        sink.shutdown(socket.SHUT_WR)


def connect(inner: socket.socket, path: str) -> None:
    """One connection of a program, both ways."""
    with inner, socket.socket(socket.AF_UNIX) as outer:
        try:
            outer.connect(path)
        except OSError:
            return  # who would let it out has gone
        back = threading.Thread(target=carry, args=(outer, inner), daemon=True)
        back.start()
        carry(inner, outer)
        back.join()


def serve(listening: socket.socket, path: str) -> None:
    """A thread for each connection."""
    while True:
        inner, _ = listening.accept()
        threading.Thread(target=connect, args=(inner, path), daemon=True).start()


def run(shell: str, command: str, processes: str) -> int:
    """The command to its end; its exit code."""
    pid = os.fork()
    if pid:
        code = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
        return code if code >= 0 else 128 - code
    try:
        if processes.isdecimal():
            resource.setrlimit(resource.RLIMIT_NPROC, (int(processes), int(processes)))
        os.closerange(3, 4096)
        os.execv(shell, ["bash", "--noprofile", "--norc", "-c", command])  # noqa: S606 - judged before
    finally:
        os._exit(126)


def main() -> None:
    """See the module."""
    path, port, shell, command, processes = sys.argv[1:6]
    listening = socket.create_server(("127.0.0.1", int(port)))
    threading.Thread(target=serve, args=(listening, path), daemon=True).start()
    code = run(shell, command, processes)
    left = sum(1 for name in os.listdir("/proc") if name.isdigit())
    os.write(3, f"{code} {left}\n".encode())
    os.read(4, 1)


if __name__ == "__main__":
    main()
