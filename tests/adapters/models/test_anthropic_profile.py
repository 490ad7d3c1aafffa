"""Credentials that the SDK finds without a key: a profile of its configuration, from files and with a real exchange."""

from __future__ import annotations

import json
import time
from pathlib import Path

import pytest
from tests.adapters.models.anthropic_wire import Exchange, RecordedDeltas, hello, request, run_service

from callboard.adapters.models.anthropic.client import AnthropicModel
from callboard.ports.model import CallFault
from callboard.types.errors import CredentialsMissing

pytestmark = pytest.mark.anyio


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


@pytest.fixture(autouse=True)
def config(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Set an empty configuration of the SDK, and no other credentials."""
    for name in ("ANTHROPIC_API_KEY", "ANTHROPIC_AUTH_TOKEN", "ANTHROPIC_PROFILE", "ANTHROPIC_BASE_URL"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / ".config"))
    return tmp_path / ".config" / "anthropic"


def write_profile(config: Path, url: str, token: str, *, lives: float = 3_600, name: str = "default") -> None:
    """Write a profile of a person who has signed in. Its token is refreshed at the service."""
    files = {
        "configs": {
            "authentication": {"type": "user_oauth", "client_id": "c-1"},
            "base_url": url,
            "workspace_id": "w-1",
        },
        "credentials": {
            "type": "oauth_token",
            "access_token": token,
            "refresh_token": "r-1",
            "expires_at": int(time.time() + lives),
        },
    }
    for folder, content in files.items():
        file = config / folder / f"{name}.json"
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(json.dumps({"version": "1.0", **content}), encoding="utf-8")
        file.chmod(0o600)


class TokenService:
    """A service that takes one token, and hands it out in exchange for a refresh token."""

    def __init__(self, token: str) -> None:
        self.token = token
        self.exchanges = 0

    async def respond(self, exchange: Exchange) -> None:
        head = exchange.head.decode().lower()
        if head.startswith("post /v1/oauth/token"):
            self.exchanges += 1
            answer = {"access_token": self.token, "expires_in": 3_600, "token_type": "Bearer"}
            await exchange.answer("200 OK", json.dumps(answer).encode(), "content-type: application/json")
        elif f"\r\nauthorization: bearer {self.token}\r\n" not in head:
            await exchange.error("401 Unauthorized", "authentication_error", "unknown token")
        else:
            assert "\r\nanthropic-beta: oauth-" in head
            assert "\r\nanthropic-workspace-id: w-1\r\n" in head
            await exchange.stream(hello())


async def completed(model: AnthropicModel, calls: int = 2) -> None:
    try:
        for _ in range(calls):
            assert (await model.complete(request(), RecordedDeltas())).stop_reason == "end_turn"
    finally:
        await model.aclose()


async def test_the_active_profile_is_used_with_its_url_where_there_is_no_key(config: Path) -> None:
    service = TokenService("good")
    async with run_service(service.respond) as wire:
        write_profile(config, wire.url, "good")
        await completed(AnthropicModel(base_url=None, api_key=None))
    assert service.exchanges == 0


async def test_a_profile_is_named_by_the_environment(config: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    service = TokenService("good")
    async with run_service(service.respond) as wire:
        write_profile(config, "https://elsewhere.invalid", "bad")
        write_profile(config, wire.url, "good", name="dev")
        monkeypatch.setenv("ANTHROPIC_PROFILE", "dev")
        await completed(AnthropicModel(base_url=None, api_key=None))


async def test_a_url_that_was_set_precedes_that_of_the_profile(config: Path) -> None:
    service = TokenService("good")
    async with run_service(service.respond) as wire:
        write_profile(config, "https://elsewhere.invalid", "good")
        await completed(AnthropicModel(base_url=wire.url, api_key=None))


@pytest.mark.parametrize(("token", "lives"), [("old", -60), ("withdrawn", 3_600)])
async def test_a_token_is_replaced_after_its_time_and_when_it_is_refused(
    config: Path, token: str, lives: float
) -> None:
    service = TokenService("new")
    async with run_service(service.respond) as wire:
        write_profile(config, wire.url, token, lives=lives)
        await completed(AnthropicModel(base_url=None, api_key=None))
    assert service.exchanges == 1


async def test_a_token_that_cannot_be_refreshed_is_a_fault_that_says_so(config: Path) -> None:
    async def refuse(exchange: Exchange) -> None:
        await exchange.error("400 Bad Request", "invalid_grant", "the refresh token is unknown")

    async with run_service(refuse) as wire:
        write_profile(config, wire.url, "old", lives=-60)
        model = AnthropicModel(base_url=None, api_key=None)
        with pytest.raises(CallFault) as caught:
            await model.complete(request(), RecordedDeltas())
        await model.aclose()
    assert caught.value.fault.kind == "credentials"
    assert "the profile or federation that the environment names cannot be used" in caught.value.fault.message
    assert "r-1" not in caught.value.fault.message


def test_a_named_profile_that_does_not_exist_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ANTHROPIC_PROFILE", "missing")
    with pytest.raises(CredentialsMissing, match="cannot be used"):
        AnthropicModel(base_url=None, api_key=None)


def test_without_any_credentials_the_message_names_all_ways() -> None:
    with pytest.raises(CredentialsMissing, match="ANTHROPIC_API_KEY"):
        AnthropicModel(base_url=None, api_key=None)
