"""A proxy before a server's socket, which can break what passes it: cut it silently, or after a word."""

from __future__ import annotations

import contextlib
import selectors
import socket
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path


class Proxy:
    """Passes bytes between clients and a Unix socket, in a thread of its own."""

    def __init__(self, target: Path, folder: Path | None = None) -> None:
        """Listen on a TCP port, or on a socket in `folder`, which processes in other network namespaces can reach."""
        self._target = target
        if folder is None:
            self._listener = socket.create_server(("127.0.0.1", 0))
            self.url = f"postgresql://callboard@127.0.0.1:{self._listener.getsockname()[1]}/postgres"
            """Address for clients."""
        else:
            self._listener = socket.socket(socket.AF_UNIX)
            self._listener.bind(str(folder / target.name))
            self._listener.listen()
            self.url = f"postgresql://callboard@/postgres?host={folder}"
        self.cut = False
        """True: connections stay open, and nothing passes them in either direction, as in a network that is cut."""
        self.break_after = b""
        """Passes the first message to the server that contains this, waits for the server's answer, and closes the
        connection instead of passing the answer on. Only once."""
        self.broken = 0
        self.lose = b""
        """Drops the first message to the server that contains this, calls `after_loss` before anything else
        passes, and closes the connection. Only once."""
        self.after_loss: Callable[[], object] = object
        self._trips = Counter[socket.socket]()
        """Client -> times that it sent something after the server had answered, or first."""
        self._asked: set[socket.socket] = set()
        self._pairs: dict[socket.socket, socket.socket] = {}
        self._servers: set[socket.socket] = set()
        self._doomed: set[socket.socket] = set()
        self._selector = selectors.DefaultSelector()
        self._selector.register(self._listener, selectors.EVENT_READ)
        self._wakes, self._woken = socket.socketpair()
        self._selector.register(self._woken, selectors.EVENT_READ)
        self._stopped = False
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    @property
    def connections(self) -> int:
        """Connections that are open now."""
        return len(self._pairs) // 2

    @property
    def round_trips(self) -> int:
        """Return the round trips of the connection with the most: others may still be under way in other threads."""
        return max(self._trips.values(), default=0)

    def close(self) -> None:
        """End it. Idempotent."""
        if self._stopped:
            return
        self._stopped = True
        self._wakes.send(b"x")
        self._thread.join()
        for one in (self._listener, self._wakes, self._woken, *self._pairs):
            one.close()
        self._selector.close()

    def _run(self) -> None:
        while not self._stopped:
            for key, _ in self._selector.select(0.05 if self.cut else None):
                if key.fileobj is self._woken:
                    self._woken.recv(100)
                elif key.fileobj is self._listener:
                    self._accept()
                elif not self.cut:
                    self._pass(key.fileobj)

    def _accept(self) -> None:
        client, _ = self._listener.accept()
        server = socket.socket(socket.AF_UNIX)
        try:
            server.connect(str(self._target))
        except OSError:  # the server is away
            server.close()
            client.close()
            return
        self._servers.add(server)
        for one, other in ((client, server), (server, client)):
            self._pairs[one] = other
            self._selector.register(one, selectors.EVENT_READ)

    def _pass(self, source: socket.socket) -> None:
        target = self._pairs.get(source)
        if target is None:
            return
        data = b""
        with contextlib.suppress(OSError):
            data = source.recv(65_536)
        if not data or source in self._doomed:
            self.broken += source in self._doomed
            self._end(source, target)
            return
        if self.lose and self.lose in data and target in self._servers:
            self.lose = b""
            self.broken += 1
            self.after_loss()
            self._end(source, target)
            return
        self._count(source, target)
        if self.break_after and self.break_after in data and target in self._servers:
            self.break_after = b""
            self._doomed.add(target)
        try:
            target.sendall(data)
        except OSError:
            self._end(source, target)

    def _count(self, source: socket.socket, target: socket.socket) -> None:
        if target not in self._servers:
            self._asked.discard(source)
        elif target not in self._asked:
            self._asked.add(target)
            self._trips[source] += 1

    def _end(self, *pair: socket.socket) -> None:
        for one in pair:
            self._pairs.pop(one, None)
            self._servers.discard(one)
            with contextlib.suppress(KeyError):
                self._selector.unregister(one)
            one.close()


@contextlib.contextmanager
def proxied(target: Path, folder: Path | None = None) -> Iterator[Proxy]:
    proxy = Proxy(target, folder)
    try:
        yield proxy
    finally:
        proxy.close()
