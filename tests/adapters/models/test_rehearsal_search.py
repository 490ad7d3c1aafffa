"""The emulator is as strict with the service's own search as the Messages API."""

from __future__ import annotations

from typing import Any

import pytest

from callboard.adapters.models.rehearsal.api import CATALOGUE, sign
from callboard.adapters.models.rehearsal.strict import CheckContext, check_request

TOOL = {"type": "web_search_20250305", "name": "web_search", "max_uses": 3}
CALL = {"type": "server_tool_use", "id": "srvtoolu_1", "name": "web_search", "input": {"query": "q"}}
FOUND = {"type": "web_search_result", "url": "https://x.org", "title": "X", "page_age": None}
SEALED = {**FOUND, "encrypted_content": sign("web_search", "https://x.org\nX")}


def results(*items: dict[str, Any], call: str = "srvtoolu_1") -> dict[str, Any]:
    return {"type": "web_search_tool_result", "tool_use_id": call, "content": list(items)}


def refusal(*blocks: dict[str, Any], tool: dict[str, Any] = TOOL, paused: bool = False) -> str:
    """Return the API's text; empty if it accepts the request."""
    messages: list[Any] = [{"role": "user", "content": "hi"}]
    if blocks:
        messages.append({"role": "assistant", "content": list(blocks)})
    if blocks and not paused:
        messages.append({"role": "user", "content": "go on"})
    body = {"model": "rehearsal", "max_tokens": 10, "tools": [tool], "messages": messages}
    error = check_request(body, CheckContext(CATALOGUE, paused=paused))
    return error.message if error is not None else ""


def test_a_search_goes_back_with_its_results_or_open_after_a_pause() -> None:
    assert refusal() == ""
    assert refusal(CALL, results(SEALED), {"type": "text", "text": "So."}) == ""
    assert refusal(CALL, paused=True) == ""
    error = {"type": "web_search_tool_result_error", "error_code": "max_uses_exceeded"}
    assert refusal(CALL, {**results(), "content": error}) == ""


@pytest.mark.parametrize(
    ("blocks", "text"),
    [
        ([CALL], "without a corresponding `web_search_tool_result`"),
        ([results(SEALED)], "unexpected `tool_use_id`"),
        ([CALL, results(SEALED, call="srvtoolu_2")], "unexpected `tool_use_id`"),
        ([CALL, results(FOUND)], "encrypted_content: Field required"),
        ([CALL, results({**SEALED, "title": "Y"})], "Invalid `encrypted_content`"),
        ([{**CALL, "id": "toolu_1"}, results(SEALED)], "srvtoolu_"),
        ([{**CALL, "name": "read_file"}, results(SEALED)], "Input should be 'web_search'"),
    ],
)
def test_what_was_changed_or_lost_is_refused(blocks: list[dict[str, Any]], text: str) -> None:
    assert text in refusal(*blocks)


@pytest.mark.parametrize(
    ("change", "text"),
    [
        ({"name": "search"}, "Input should be 'web_search'"),
        ({"max_uses": 0}, "greater than 0"),
        ({"allowed_domains": ["a.org"], "blocked_domains": ["b.org"]}, "Only one of"),
        ({"input_schema": {}}, "Extra inputs are not permitted"),
        ({"type": "web_search_2020"}, "does not match any of the expected tags"),
    ],
)
def test_a_declaration_of_another_shape_is_refused(change: dict[str, Any], text: str) -> None:
    assert text in refusal(tool=TOOL | change)
