"""Secrets are never stored: what is found in a note, and what is left alone. The values here open nothing."""

from __future__ import annotations

import base64
import hashlib
import random
import string

import pytest
from hypothesis import given
from hypothesis import strategies as hy

from callboard.core.memory.secrets import refusal, secrets_in, without_secrets

_DICE = random.Random(7)


def drawn(length: int, letters: str = string.ascii_letters + string.digits) -> str:
    return "".join(_DICE.choice(letters) for _ in range(length))


UPPER = string.ascii_uppercase + string.digits
SECRETS = (
    "-----BEGIN RSA PRIVATE KEY-----",
    "-----BEGIN OPENSSH PRIVATE KEY-----",
    "-----BEGIN PGP PRIVATE KEY BLOCK-----",
    f"sk-ant-api03-{drawn(40)}",
    f"sk-proj-{drawn(48)}",
    f"sk_live_{drawn(24)}",
    f"AKIA{drawn(16, UPPER)}",
    f"aws_secret_access_key = {drawn(40)}",
    f"ghp_{drawn(36)}",
    f"github_pat_{drawn(22)}_{drawn(59)}",
    f"glpat-{drawn(20)}",
    f"xoxb-{drawn(11, string.digits)}-{drawn(24)}",
    f"https://hooks.slack.com/services/T{drawn(8, UPPER)}/B{drawn(8, UPPER)}/{drawn(24)}",
    f"AIza{drawn(35)}",
    f"npm_{drawn(36)}",
    f"pypi-AgEIcHlwaS5vcmc{drawn(60)}",
    f"hf_{drawn(34)}",
    f"SG.{drawn(22)}.{drawn(43)}",
    f"{drawn(9, string.digits)}:AA{drawn(33)}",
    "eyJhbGciOiJIUzI1NiJ9.eyJzdWIiOiIxMjM0NTY3ODkwIn0.dozjgNryP4J3jVmNHl0w5N_XgL0n3I9PlFUP0THsR8U",
    "postgres://app:hunter2@db.example.org/main",
    "redis://:s3cret-w0rd@cache:6379/0",
    f"https://api.example.org/x?access_token={drawn(30)}",
    f"Authorization: Bearer {drawn(40)}",
    f"authorization: basic {base64.b64encode(b'app:hunter2-and-more').decode()}",
    "password: hunter2",
    "The database password is Tr0ub4dor&3.",
    "DB_PASSWORD=correct-horse-7",
    "passphrase = 'open sesame'".replace(" sesame", "-sesame"),
    f"API_KEY={drawn(24)}",
    f'"clientSecret": "{drawn(32)}"',
    f"token: {drawn(40, string.hexdigits)}",
    f"the session key {base64.b64encode(bytes(_DICE.randrange(256) for _ in range(32))).decode()} opens it",
    f"seed {drawn(43)}",
)

HARMLESS = (
    "The password is kept in the vault under ci/deploy.",
    "password: $DB_PASSWORD",
    "password: <your password>",
    "API_KEY=your-api-key-here",
    "api_key: changeme",
    "token: ${{ secrets.GITHUB_TOKEN }}",
    "Set ANTHROPIC_API_KEY in the environment; never write the key down.",
    "token = os.environ['TOKEN']",
    "token budget: 200000",
    "max_tokens: 8000",
    "tokens: input 1200, output 300",
    "The access token expires after 3600 seconds.",
    "password reset is at src/auth/password_reset.py",
    "secret scanning runs in .github/workflows/secrets.yml",
    "The tokenizer is in packages/parser/tokenizer.ts",
    "postgres://localhost:5432/main",
    "postgres://app:${PASSWORD}@db/main",
    "postgres://user:password@localhost/db",
    "git@github.com:owner/name.git",
    "https://example.org/a/very/long/path/with/many/parts/and/a-long-name-in-it.html?page=12&sort=created_at",
    f"commit {hashlib.sha1(b'x').hexdigest()}",
    f"sha256: {hashlib.sha256(b'x').hexdigest()}",
    f"digest {hashlib.sha512(b'x').hexdigest()}",
    "id 3f2504e0-4f89-11d3-9a0c-0305e82c3301",
    "session 20261122-082144-decf63, request req_7k2mabc9qrst",
    "callboard/core/context/view/conversation.py and runtime/callboard/adapters/models/rehearsal/scenario_file.py",
    "AbstractSingletonProxyFactoryBeanConfigurationProvider",
    "test_the_person_comes_first_then_the_repository_down_to_the_workspace_and_more",
    "ThisIsAVeryLongCamelCaseIdentifierForAHandlerOfManyThings",
    "integrity checks use the lock file; see docs/store.md",
    "mailto:person@example.org, +49 30 1234567890",
    "2026-11-22T08:21:44.123456+00:00",
    "key: value pairs are separated by semicolons",
    "primary_key: customer_id",
    "the api key is required for production",
    "passwords are hashed with argon2id",
    "pwd: /home/me/project",
    "Use `pytest -q tests/core/memory/test_note_secrets.py::test_x -x --maxfail=1 --no-header`",
    "x" * 5_000,
    "日本語のメモ：パスワードは金庫にあります",
)


@pytest.mark.parametrize("text", SECRETS)
def test_a_secret_is_found_and_told_with_its_line_and_without_itself(text: str) -> None:
    found = secrets_in(f"first line\nand then {text}\nlast line")
    assert [one.line for one in found] == [2]
    told = refusal(f"first line\nand then {text}")
    assert "line 2" in told
    assert text not in told
    assert secrets_in(text)


@pytest.mark.parametrize("text", HARMLESS)
def test_what_is_no_secret_is_left_alone(text: str) -> None:
    assert secrets_in(f"Note:\n{text}\n") == ()
    assert refusal(text) == ""


@given(hy.text(max_size=300))
def test_any_text_is_looked_at(text: str) -> None:
    assert all(0 < one.line <= len(text.splitlines()) for one in secrets_in(text))


def test_a_secret_at_any_place_of_a_long_line_is_found_and_quickly() -> None:
    key = f"ghp_{drawn(36)}"
    for before in (0, 19_990, 20_010, 60_000):
        assert secrets_in("a " * (before // 2) + key)
    for odd in ("token", "a:", "://", "a", "=", "key key ", "password=changeme", "changeme", "A1b2"):
        secrets_in(odd * (20_000 // len(odd)))


def test_what_the_runtime_keeps_by_itself_has_a_mark_where_a_secret_stood() -> None:
    text = "one\npassword: hunter2\nthree"
    assert without_secrets(text) == "one\n(left out: it looks like a secret)\nthree"
    assert secrets_in(without_secrets(text)) == ()
