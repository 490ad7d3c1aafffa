"""What the tests of the page share."""

from __future__ import annotations

import pytest


@pytest.fixture
def anyio_backend() -> str:
    """The page runs on asyncio alone, as its server does."""
    return "asyncio"
