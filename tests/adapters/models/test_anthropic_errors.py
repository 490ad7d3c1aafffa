"""HTTP errors are classed by type, then by status, and by message only where the API has nothing better."""

from __future__ import annotations

import email.utils

import pytest
from tests.adapters.models.anthropic_wire import Exchange, fault_of

from callboard.adapters.models.anthropic.faults import ErrorResponse, FaultTexts, fault_of_answer, retry_after

pytestmark = pytest.mark.anyio


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"  # aiohttp runs only on asyncio


@pytest.mark.parametrize(
    ("status", "kind", "message", "expected"),
    [
        ("429 Too Many", "rate_limit_error", "slow down", "rate_limited"),
        ("529 Overloaded", "overloaded_error", "Overloaded", "overloaded"),
        ("503 No", "overloaded_error", "Overloaded", "overloaded"),
        ("500 Error", "api_error", "oops 429 529", "server"),
        ("504 Slow", "timeout_error", "", "server"),
        ("408 Slow", "", "", "server"),
        ("400 Bad", "invalid_request_error", "max_tokens: 429 is wrong", "invalid"),
        ("422 Bad", "", "no", "invalid"),
        ("401 No", "authentication_error", "invalid x-api-key", "credentials"),
        ("403 No", "permission_error", "not yours", "credentials"),
        ("402 Pay", "billing_error", "pay", "payment"),
        ("404 No", "not_found_error", "model: nope", "not_found"),
        ("413 Large", "request_too_large", "Request exceeds the maximum size", "too_long"),
        ("400 Bad", "invalid_request_error", "prompt is too long: 210000 tokens > 200000 maximum", "too_long"),
        ("400 Bad", "invalid_request_error", "`context_length_exceeded` for this deployment", "too_long"),
        ("400 Bad", "invalid_request_error", "Too much media: 0 document pages + 101 images > 100", "too_long"),
        ("400 Bad", "invalid_request_error", "messages: too many images and documents: 21 + 0 > 20", "too_long"),
        ("429 Slow", "rate_limit_error", "prompt is too long: not a 400", "rate_limited"),
        ("500 Error", "api_error", "too many tokens, says a broken server", "server"),
        ("400 Bad", "invalid_request_error", "Your credit balance is too low to access the API.", "spend_limit"),
    ],
)
async def test_an_http_error_is_classed_by_type_then_status(
    status: str, kind: str, message: str, expected: str
) -> None:
    async def say(exchange: Exchange) -> None:
        await exchange.error(status, kind, message)

    fault = (await fault_of(say)).fault
    assert (fault.kind, fault.status, fault.request_id) == (expected, int(status[:3]), "req_9")
    assert message in fault.message


@pytest.mark.parametrize(
    ("status", "expected"),
    [
        (400, "invalid"),
        (401, "credentials"),
        (402, "payment"),
        (403, "credentials"),
        (404, "not_found"),
        (405, "invalid"),
        (408, "server"),
        (409, "server"),
        (413, "too_long"),
        (422, "invalid"),
        (425, "invalid"),
        (429, "rate_limited"),
        *((status, "server") for status in (500, 501, 502, 503, 504, *range(520, 529), 530)),
        (529, "overloaded"),
    ],
)
def test_a_status_says_it_where_nothing_else_does(status: int, expected: str) -> None:
    """A gateway's answer without the API's error object, and with numbers in its text."""
    for body in ("529 429 upstream", {"detail": "429"}, {"error": "529"}, None):
        answer = ErrorResponse(status, {}, body, now=0.0)
        fault = fault_of_answer(answer, FaultTexts())
        assert (fault.kind, fault.status, fault.may_bill) == (expected, status, False)


@pytest.mark.parametrize(("said", "expected"), [("true", True), ("False", False), ("maybe", None), (None, None)])
async def test_whether_another_try_is_of_use_is_told_as_the_service_says_it(
    said: str | None, expected: bool | None
) -> None:
    async def say(exchange: Exchange) -> None:
        headers = [] if said is None else [f"x-should-retry: {said}"]
        await exchange.error("400 Bad", "invalid_request_error", "no", *headers)

    assert (await fault_of(say)).fault.retry is expected


@pytest.mark.parametrize("status", ["429 Slow", "400 Bad"])
@pytest.mark.parametrize("code", ["contract_spend_limit_reached", "linked_organization_billing_unavailable"])
async def test_a_spend_limit_is_not_a_rate_limit(status: str, code: str) -> None:
    async def say(exchange: Exchange) -> None:
        await exchange.error(status, "rate_limit_error", "limit", "retry-after: 5", details={"error_code": code})

    assert (await fault_of(say)).fault.kind == "spend_limit"


async def test_a_ramp_limit_is_a_rate_limit() -> None:
    async def say(exchange: Exchange) -> None:
        await exchange.error("429 Slow", "rate_limit_error", "x", details={"error_code": "ramp_limit_exceeded"})

    assert (await fault_of(say)).fault.kind == "rate_limited"


async def test_other_services_words_can_be_set() -> None:
    async def say(exchange: Exchange) -> None:
        await exchange.error("400 Bad", "invalid_request_error", "Der Text ist zu LANG")

    wording = FaultTexts(too_long=("zu lang",))
    assert (await fault_of(say, wording=wording)).fault.kind == "too_long"
    assert (await fault_of(say)).fault.kind == "invalid"


async def test_a_huge_retry_after_is_told_and_not_obeyed() -> None:
    async def say(exchange: Exchange) -> None:
        await exchange.error("429 Slow", "rate_limit_error", "come back in spring", "retry-after: 4233600")

    assert (await fault_of(say)).fault.retry_after == 4_233_600


@pytest.mark.parametrize(
    ("headers", "expected"),
    [
        ({"retry-after": "7"}, 7.0),
        ({"retry-after": "0.5"}, 0.5),
        ({"retry-after-ms": "250", "retry-after": "9"}, 0.25),
        ({"retry-after-ms": "soon", "retry-after": "9"}, 9.0),
        ({"retry-after": "-3"}, 0.0),
        ({"retry-after": "nan"}, None),
        ({"retry-after": "inf"}, None),
        ({"retry-after": "1e999"}, None),
        ({"retry-after": "9" * 40}, 31_536_000.0),
        ({"retry-after-ms": "-1", "retry-after": "9"}, 0.0),
        ({"retry-after": "soon"}, None),
        ({"retry-after": ""}, None),
        ({"retry-after": email.utils.formatdate(1_000_030, usegmt=True)}, 30.0),
        ({"retry-after": email.utils.formatdate(1_000_030)}, 30.0),
        ({"retry-after": email.utils.formatdate(0, usegmt=True)}, 0.0),
        ({}, None),
    ],
)
def test_retry_after_is_read_in_every_form(headers: dict[str, str], expected: float | None) -> None:
    assert retry_after(headers, now=1_000_000) == expected


@pytest.mark.parametrize("status", ["502 Bad Gateway", "520 Odd"])
async def test_a_proxys_web_page_is_a_server_fault_and_is_not_quoted(status: str) -> None:
    async def say(exchange: Exchange) -> None:
        await exchange.answer(status, b"<html><script>alert(1)</script></html>", "content-type: text/html")

    fault = (await fault_of(say)).fault
    assert fault.kind == "server"
    assert "web page" in fault.message
    assert "<" not in fault.message


@pytest.mark.parametrize(
    "body", [b"", b"[]", b"null", b'{"error": 5}', b'{"error": {"type": [], "message": {}}}', b"\xff\xfe"]
)
async def test_an_error_body_of_any_shape_is_survived(body: bytes) -> None:
    async def say(exchange: Exchange) -> None:
        await exchange.answer("500 Error", body, "content-type: application/json")

    assert (await fault_of(say)).fault.kind == "server"


async def test_a_redirect_is_not_followed_with_the_key() -> None:
    async def say(exchange: Exchange) -> None:
        await exchange.answer("307 Elsewhere", b"", "location: /v1/elsewhere")

    fault = (await fault_of(say)).fault
    assert fault.kind == "invalid"
    assert "base URL" in fault.message


async def test_a_service_that_quotes_the_key_does_not_make_us_show_it() -> None:
    async def say(exchange: Exchange) -> None:
        await exchange.error("401 No", "authentication_error", "invalid key sk-test-0123456789")

    caught = await fault_of(say)
    assert "0123456789" not in str(caught)
    assert "[key]" in caught.fault.message


async def test_a_short_key_of_a_local_service_is_not_replaced_inside_words() -> None:
    async def say(exchange: Exchange) -> None:
        await exchange.error("400 No", "invalid_request_error", "bad block in this context: key x is wrong")

    assert (await fault_of(say, api_key="x")).fault.message == "bad block in this context: key [key] is wrong"
