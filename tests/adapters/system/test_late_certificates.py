"""TLS contexts that read the certificates of the system at their first connection."""

from __future__ import annotations

import json
import socket
import ssl
import subprocess
import sys
import threading

import pytest

from callboard.adapters.system.late_certificates import certificates_read_late

IMPORTED = """
import json, ssl
import callboard.adapters.models.anthropic.client
from aiohttp.connector import _SSL_CONTEXT_UNVERIFIED, _SSL_CONTEXT_VERIFIED

def facts(context):
    settings = (context.verify_mode, context.verify_flags, context.check_hostname, context.options)
    return [context.cert_store_stats()["x509"], *map(int, settings), type(context) is ssl.SSLContext]

before = facts(_SSL_CONTEXT_VERIFIED)
for context in (_SSL_CONTEXT_VERIFIED, _SSL_CONTEXT_UNVERIFIED):
    context.wrap_bio(ssl.MemoryBIO(), ssl.MemoryBIO(), server_hostname="localhost")
after = facts(_SSL_CONTEXT_VERIFIED), facts(_SSL_CONTEXT_UNVERIFIED)
print(json.dumps([before, *after, facts(ssl.create_default_context())]))
"""


def read_by(context: ssl.SSLContext) -> int:
    """Return the number of certificates that a context has read."""
    return context.cert_store_stats()["x509"]


@pytest.fixture
def certificates() -> int:
    number = read_by(ssl.create_default_context())
    if not number:
        pytest.skip("the system has no certificates in one file")
    return number


def test_the_contexts_of_the_http_library_read_the_certificates_when_they_are_used(certificates: int) -> None:
    ran = subprocess.run([sys.executable, "-c", IMPORTED], capture_output=True, text=True, check=True)
    before, verified, unverified, ordinary = json.loads(ran.stdout)
    assert before == [0, *ordinary[1:-1], False]
    assert verified == ordinary
    assert verified[0] == unverified[0] == certificates
    assert unverified[-1] is True


def test_a_socket_lets_the_context_read_them_too(certificates: int) -> None:
    with certificates_read_late():
        context = ssl.create_default_context()
    assert read_by(context) == 0
    with socket.socket() as plain, context.wrap_socket(plain, server_hostname="localhost"):
        assert read_by(context) == certificates
        assert type(context) is ssl.SSLContext


def test_a_context_of_another_thread_or_of_later_reads_them_at_once(certificates: int) -> None:
    found: list[int] = []
    with certificates_read_late():
        thread = threading.Thread(target=lambda: found.append(read_by(ssl.create_default_context())))
        thread.start()
        thread.join()
    found.append(read_by(ssl.create_default_context()))
    assert found == [certificates, certificates]


def test_a_class_whose_method_was_replaced_is_left_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    read: list[ssl.SSLContext] = []

    def note(context: ssl.SSLContext) -> None:
        read.append(context)

    monkeypatch.setattr(ssl.SSLContext, "set_default_verify_paths", note, raising=False)
    with certificates_read_late():
        context = ssl.create_default_context()
    assert read == [context]
    assert type(context) is ssl.SSLContext
