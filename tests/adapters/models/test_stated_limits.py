"""Limits that services state in a refusal, in the wording of several services."""

from __future__ import annotations

import pytest

from callboard.adapters.models.anthropic.faults import ErrorResponse, FaultTexts, fault_of_answer
from callboard.adapters.models.anthropic.stated_limits import stated_limits

OUTPUT = {
    "max_tokens: 128000 > 64000, which is the maximum allowed number of output tokens for claude-x": 64_000,
    "max_tokens: 128,000 > 64,000": 64_000,
    "max_tokens is too large: 128000. This model supports at most 16384 completion tokens, you gave 128000.": 16_384,
    "`max_tokens` must be less than or equal to `8192`": 8_192,
    "Range of max_tokens should be [1, 8192]": 8_192,
    "max_tokens must be between 1 and 4096": 4_096,
    "The maximum tokens you requested exceeds the model limit of 4096. Try again with a lower value.": 4_096,
    "max_tokens (128000) exceeds the maximum of 32000 output tokens": 32_000,
    "max_output_tokens cannot exceed 65536": 65_536,
    "max_tokens is limited to 8k": 8_000,
    "maxOutputTokens must be in the range [1, 65537)": 65_536,
    "a maxOutputTokens value of 128000 but the supported range is from 1 (inclusive) to 65537 (exclusive).": 65_536,
}
WINDOW = {
    "prompt is too long: 210000 tokens > 200000 maximum": 200_000,
    "input length and `max_tokens` exceed context limit: 190000 + 20000 > 200000, decrease input length": 200_000,
    "This model's maximum context length is 8192 tokens. However, you requested 9000 tokens": 8_192,
    "the request exceeds the available context size (4096 tokens), try increasing it": 4_096,
    "context window of 32,768 tokens exceeded": 32_768,
    "The input token count (300000) exceeds the maximum number of tokens allowed (262144).": 262_144,
    "Input tokens exceed the configured limit of 272000 tokens. Your messages resulted in 300000 tokens.": 272_000,
    "input length 210000 exceeds limit 200000": 200_000,
    "messages: too many tokens: 250000 > 200000": 200_000,
    "max_tokens=128000 cannot be greater than max_model_len=32768": 32_768,
}
NOTHING = (
    "messages.0.content: field required",
    "temperature: 2.5 > 1",
    "max_tokens: Field required",
    "tools.14.name: String should have at most 128 characters",
    "messages: text content blocks must be non-empty (at most 100000)",
    "input length exceeds 1000000 characters",
    "input length exceeds 20 MB",
    "the image is larger than 5 MB: 7000000 > 5242880 bytes",
)


@pytest.mark.parametrize("words", OUTPUT)
def test_a_stated_output_limit_is_read(words: str) -> None:
    assert stated_limits(words) == (OUTPUT[words], None)


@pytest.mark.parametrize("words", WINDOW)
def test_a_stated_window_is_read_and_means_that_the_prompt_is_too_long(words: str) -> None:
    assert stated_limits(words) == (None, WINDOW[words])
    body = {"type": "error", "error": {"type": "invalid_request_error", "message": words}}
    fault = fault_of_answer(ErrorResponse(400, {}, body, 0.0), FaultTexts())
    assert (fault.kind, fault.window) == ("too_long", WINDOW[words])


@pytest.mark.parametrize("words", NOTHING)
def test_a_number_about_something_else_is_no_limit(words: str) -> None:
    assert stated_limits(words) == (None, None)
