"""The engine's tests run on both event loops; on trio time is virtual and jumps to whatever is due next."""

from __future__ import annotations

import pytest
from trio.testing import MockClock


@pytest.fixture(params=["asyncio", "trio"])
def anyio_backend(request: pytest.FixtureRequest) -> tuple[str, dict[str, object]]:
    """The loop, and its options."""
    return request.param, {"clock": MockClock(autojump_threshold=0)} if request.param == "trio" else {}
