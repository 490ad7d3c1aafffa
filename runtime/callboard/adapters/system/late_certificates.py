"""TLS contexts that read the certificates of the system at their first connection, for a library that makes them early.

aiohttp makes two contexts while it is imported, each of which parses all certificates of the system: a seventh of the
CPU time from the start of `callboard run` to its first request. No connection to a model service uses them, except one
to a proxy with TLS in front of a service without: a service with TLS has a context of its own.
"""

from __future__ import annotations

import ssl
import threading
from collections.abc import Generator
from contextlib import contextmanager
from typing import Any

_READ = "set_default_verify_paths"
"""Method of a context that reads the certificates of the system. All others that read them call it."""
_ORDINARY = ssl.SSLContext


class _LateContext(ssl.SSLContext):
    """Context that has not read the certificates. The first connection reads them, and makes it an ordinary context."""

    def wrap_bio(self, *args: Any, **options: Any) -> ssl.SSLObject:
        return _ordinary(self).wrap_bio(*args, **options)

    def wrap_socket(self, *args: Any, **options: Any) -> ssl.SSLSocket:
        return _ordinary(self).wrap_socket(*args, **options)


def _ordinary(context: ssl.SSLContext) -> ssl.SSLContext:
    context.__class__ = _ORDINARY
    context.set_default_verify_paths()
    return context


@contextmanager
def certificates_read_late() -> Generator[None]:
    """Let the contexts that this thread makes meanwhile read the certificates at their first connection.

    Contexts of other threads read them at once. Changes nothing if another library has replaced the class or the
    method. For an import, whose lock keeps two threads from doing this at the same time.
    """
    kind = _ORDINARY
    if ssl.SSLContext is not kind or _READ in vars(kind):
        yield
        return
    thread = threading.get_ident()

    def read(context: ssl.SSLContext) -> None:
        if threading.get_ident() == thread and type(context) is kind:
            context.__class__ = _LateContext
        else:
            super(kind, context).set_default_verify_paths()

    setattr(kind, _READ, read)
    try:
        yield
    finally:
        delattr(kind, _READ)
