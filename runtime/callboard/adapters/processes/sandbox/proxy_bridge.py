"""Callboard's process inside the sandbox at level 3, which connects the command's programs to the proxy.

The process also does the work of the shell of level 2.

Its text is passed to Python inside (`-c`), so it needs no file there, and only the standard library. Programs use an
HTTP proxy on a port of their own loopback. Each connection to that port is forwarded to the socket of the proxy
outside, which decides. argv: SOCKET PORT PORTS SHELL COMMAND PROCESSES. Descriptor 3 gets `begun`, then the end of the
command and the number of remaining processes. This process stays while descriptor 4 is open.
"""
# ruff: noqa: PTH208 - only the names are needed, and pathlib would take longer to import than all the rest

import contextlib
import os
import resource
import socket
import sys
import threading


def copy_stream(source: socket.socket, sink: socket.socket) -> None:
    """Copy all data until its end."""
    with contextlib.suppress(OSError):
        while data := source.recv(1 << 16):
            sink.sendall(data)
    with contextlib.suppress(OSError):
        sink.shutdown(socket.SHUT_WR)


def tunnel(outer: socket.socket, port: int) -> bool:
    """Ask the proxy for a port of the machine outside. Return True if the proxy agrees."""
    outer.sendall(b"CONNECT 127.0.0.1:%d HTTP/1.1\r\n\r\n" % port)
    head = b""
    while not head.endswith(b"\r\n\r\n"):
        head += outer.recv(1) or b"\r\n\r\n"
    return b" 200 " in head


def connect(inner: socket.socket, path: str, port: int) -> None:
    """Forward one connection of a program in both directions.

    `port`: of the machine outside; 0: the program uses the proxy.
    """
    with inner, socket.socket(socket.AF_UNIX) as outer:
        try:
            outer.connect(path)
            if port and not tunnel(outer, port):
                return
        except OSError:
            return  # the proxy outside has ended
        back = threading.Thread(target=copy_stream, args=(outer, inner), daemon=True)
        back.start()
        copy_stream(inner, outer)
        back.join()


def serve(listening: socket.socket, path: str, port: int) -> None:
    """Serve each connection in a thread."""
    while True:
        inner, _ = listening.accept()
        threading.Thread(target=connect, args=(inner, path, port), daemon=True).start()


def listen(port: int, path: str, outside: int) -> None:
    """Accept connections to a port of the loopback inside. A port that cannot be opened stays closed."""
    with contextlib.suppress(OSError):
        listening = socket.create_server(("127.0.0.1", port))
        threading.Thread(target=serve, args=(listening, path, outside), daemon=True).start()


def run(shell: str, command: str, processes: str) -> int:
    """Run the command to its end and return its exit code."""
    pid = os.fork()
    if pid:
        code = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
        return code if code >= 0 else 128 - code
    try:
        if processes.isdecimal():
            resource.setrlimit(resource.RLIMIT_NPROC, (int(processes), int(processes)))
        os.closerange(3, 4096)
        os.execv(shell, ["bash", "--noprofile", "--norc", "-c", command])  # noqa: S606 - permission was decided before
    finally:
        os._exit(126)


def main() -> None:
    """Run the process; see the module."""
    path, port, ports, shell, command, processes = sys.argv[1:7]
    listen(int(port), path, 0)
    for number in filter(None, ports.split(",")):
        listen(int(number), path, int(number))
    os.write(3, b"begun\n")
    code = run(shell, command, processes)
    remaining = sum(1 for name in os.listdir("/proc") if name.isdigit())
    os.write(3, f"{code} {remaining}\n".encode())
    os.read(4, 1)


if __name__ == "__main__":
    main()
