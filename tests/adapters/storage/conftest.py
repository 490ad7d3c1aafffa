"""Event loop and PostgreSQL server of the tests of this folder."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from tests.postgres_server import PostgresServer, running


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


@pytest.fixture(scope="module")
def server() -> Iterator[PostgresServer]:
    """A server for all tests of a module. A test that stops it starts it again."""
    with running() as server:
        yield server
