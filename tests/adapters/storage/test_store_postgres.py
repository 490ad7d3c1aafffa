"""The PostgreSQL store follows the store's rules on a real server, on asyncio and trio."""

from __future__ import annotations

import os
from collections.abc import Sequence
from functools import partial
from pathlib import Path

import anyio
import pytest
from hypothesis import HealthCheck, given, settings
from tests.adapters.storage.store_conformance import StoreConformance, anyio_backend, pytestmark  # noqa: F401 - pytest collects them here
from tests.adapters.storage.test_store_model import STEPS_OF_TWO, run_steps
from tests.postgres_server import PostgresServer

from callboard.ports.store import Store

pytest.importorskip("psycopg", reason="the extra callboard[postgres] is not installed")

from callboard.adapters.storage.postgres.address import parse_address
from callboard.adapters.storage.postgres.store import open_store


class TestPostgresStore(StoreConformance):
    @pytest.fixture(autouse=True)
    def _take_server(self, server: PostgresServer) -> None:
        self.address = parse_address(server.url)

    async def open(self, place: Path) -> Store:
        return await open_store(self.address, str(place))


HEALTH = [HealthCheck.too_slow, HealthCheck.function_scoped_fixture]


def check_steps(server: PostgresServer, steps: Sequence[object]) -> None:
    address = parse_address(server.url)
    anyio.run(run_steps, partial(open_store, address, os.urandom(8).hex(), durability="process"), steps)


@settings(max_examples=30, deadline=None, suppress_health_check=HEALTH, derandomize=True)
@given(steps=STEPS_OF_TWO)
def test_postgres_answers_as_memory_does(server: PostgresServer, steps: Sequence[object]) -> None:
    check_steps(server, steps)


@pytest.mark.soak
@settings(max_examples=300 * int(os.environ.get("SOAK", "1")), deadline=None, suppress_health_check=HEALTH)
@given(steps=STEPS_OF_TWO)
def test_postgres_answers_as_memory_does_for_long(server: PostgresServer, steps: Sequence[object]) -> None:
    check_steps(server, steps)
