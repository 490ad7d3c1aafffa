"""Where an agent's spec stands in the store: a row for each content, so that it commits with the agent's own row."""

from __future__ import annotations

import hashlib

from callboard.ports.store import Store
from callboard.words.errors import StoreDamaged
from callboard.words.specs import AgentSpec


def spec_digest(spec: AgentSpec) -> str:
    """sha256 (hex) of the spec's durable form."""
    return hashlib.sha256(spec.encode()).hexdigest()


def spec_key(session: str, digest: str) -> str:
    return f"s/{session}/spec/{digest}"


async def load_spec(store: Store, session: str, digest: str) -> AgentSpec:
    """The spec of that digest. Raises `StoreDamaged` when the store no longer has it."""
    row = await store.get(spec_key(session, digest))
    if row is None or row.value is None:
        raise StoreDamaged(f"the spec {digest[:12]} of an agent of session {session} is missing")
    return AgentSpec.model_validate_json(row.value)
