"""How servers say what went wrong: the code, a retry or none, the wait, their words, the sizes."""

from __future__ import annotations

from typing import Any

import pytest
from servers.error_bodies import BUSY, HTTP, INNER_ERRORS, LONG_LIMITS, gemini, openai, waits
from servers.overflow_words import ANSWERS_TOO_LONG, NO_OVERFLOWS, OVERFLOWS

from nbagent.contracts.canonical import dump_json
from nbagent.contracts.errors import ModelError
from nbagent.contracts.secrets import register_secret
from nbagent.providers.http_errors import response_error, stream_error
from nbagent.providers.transport.sse import fix_surrogates

FIELDS: dict[str, tuple[int | None, int | None, str]] = {
    "llama.cpp's fields": (9, 8, "no"),
    "a number that is none": (None, 8_192, "prompt is too long: 99999999999999999 tokens > 8192 "
        "maximum"),
}  # fmt: skip
SAID = OVERFLOWS | {f"max_tokens: {name}": row for name, row in ANSWERS_TOO_LONG.items()} | FIELDS


@pytest.mark.parametrize(("asked", "takes", "said"), SAID.values(), ids=SAID)
def test_the_words_of_many_servers_are_known_and_their_sizes_read(
    asked: int | None, takes: int | None, said: str
) -> None:
    body: Any = {"error": {"message": said, "type": "invalid_request_error", "code": None}}
    if said == "no":  # The sizes are in fields of their own.
        body["error"].update(type="exceed_context_size_error", n_prompt_tokens=asked, n_ctx=takes)
    for fault in (response_error(400, {}, body), response_error(413, {}, body), stream_error(body)):
        assert (fault.code, fault.retryable) == ("LLM_CONTEXT_OVERFLOW", False)
        assert fault.server_text == said
        assert fault.details.get("request_tokens") == asked
        assert fault.details.get("context_tokens") == takes


@pytest.mark.parametrize("name", SAID)
def test_max_tokens_is_blamed_where_the_server_blames_it_alone(name: str) -> None:
    fault = response_error(400, {}, {"error": {"message": SAID[name][2]}})
    blamed = fault.details.get("too_large") == "max_tokens"
    assert blamed == name.startswith("max_tokens: ")


@pytest.mark.parametrize("status", [400, 413, 429])
@pytest.mark.parametrize("said", NO_OVERFLOWS.values(), ids=NO_OVERFLOWS)
def test_other_limits_are_no_overflow(said: str, status: int) -> None:
    body = {"error": {"message": said, "type": "request_too_large"}}
    assert response_error(status, {}, body).code != "LLM_CONTEXT_OVERFLOW"
    assert stream_error(body).code != "LLM_CONTEXT_OVERFLOW"


@pytest.mark.parametrize("code", ["context_length_exceeded", "model_context_window_exceeded"])
def test_a_code_of_its_own_needs_no_words(code: str) -> None:
    assert response_error(400, {}, openai(code, "no")).code == "LLM_CONTEXT_OVERFLOW"


@pytest.mark.parametrize(
    "piece",
    [
        *("prompt ", "max_tokens ", "context length ", "exceed ", "token ", "1 ", "(", "is of "),
        *("exceeded your current quota ", "limit reached ", "retry after ", "unsafe content "),
    ],
)
def test_hostile_words_are_read_in_time(piece: str) -> None:
    """A quadratic rule would need minutes for a text of 200 kB."""
    fault = response_error(400, {}, {"error": {"message": piece * (200_000 // len(piece))}})
    assert fault.code in ("LLM_HTTP_ERROR", "LLM_CONTEXT_OVERFLOW", "LLM_QUOTA_EXCEEDED")


WAIT = gemini("RESOURCE_EXHAUSTED", {"retryDelay": "14s"})
# status, headers and body: the code, whether it is asked again and after what wait, the words.
ERRORS: list[tuple[int, dict[str, str], Any, str, bool, float | None, str]] = [
    (503, {}, {"error": "server busy"}, HTTP, True, None, "server busy"),
    (400, {}, {"detail": "bad\nidea"}, HTTP, False, None, "bad idea"),
    (422, {}, {"message": {"detail": [{"loc": ["n"], "msg": "odd"}]}}, HTTP, False, None, "n: odd"),
    (400, {}, {"object": "error", "message": "old vLLM"}, HTTP, False, None, "old vLLM"),
    (429, {}, openai(429, metadata={"raw": "m is busy"}), BUSY, True, None, "no: m is busy"),
    (502, {}, "plain words", HTTP, True, None, "plain words"),
    (400, {}, {"error": {"message": "key sk-SECRETSECRET"}}, HTTP, False, None, "key [redacted]"),
    (429, {}, WAIT, BUSY, True, 14, "no"),
    (429, {"retry-after": "2"}, WAIT, BUSY, True, 2, "no"),
    (429, {"x-ratelimit-reset": "1741305600000"}, openai(429), BUSY, True, 0, "no"),
]


@pytest.mark.parametrize(
    ("status", "headers", "body", "code", "retryable", "wait_s", "said"), ERRORS
)
def test_what_the_server_said_is_one_line_of_the_error_beside_its_code_and_wait(
    status: int,
    headers: dict[str, str],
    body: Any,
    code: str,
    retryable: bool,
    wait_s: float | None,
    said: str,
) -> None:
    register_secret("sk-SECRETSECRET")
    fault = response_error(status, headers, body)
    assert (fault.code, fault.retryable, fault.server_text) == (code, retryable, said)
    assert fault.retry_after_s == wait_s


@pytest.mark.parametrize("name", waits())
def test_a_wait_is_read_where_the_server_writes_it(name: str) -> None:
    headers, body, between = waits()[name]
    fault = response_error(429, headers, body)
    assert (fault.code, fault.retryable) == (BUSY, True)
    if between is None:
        assert fault.retry_after_s is None
    else:
        assert fault.retry_after_s is not None
        assert between[0] <= fault.retry_after_s <= between[1]
        assert ("It asks to wait" in fault.message) == (between[0] > 60)


@pytest.mark.parametrize(("said", "period"), LONG_LIMITS)
def test_a_limit_of_a_day_or_longer_is_final_and_named(said: Any, period: str) -> None:
    body: Any = {"error": {"message": said}} if isinstance(said, str) else said
    fault = response_error(429, {"retry-after": "1"}, body)
    assert fault.retryable == (period == "")
    assert fault.code == ("LLM_QUOTA_EXCEEDED" if period else BUSY)
    assert (f"the provider's {period} limit is reached" in fault.message) == bool(period)


@pytest.mark.parametrize(
    ("status", "body", "code", "words"), INNER_ERRORS.values(), ids=INNER_ERRORS
)
def test_an_error_inside_a_text_is_read(status: int, body: Any, code: str, words: str) -> None:
    fault = response_error(status, {}, body)
    assert (fault.code, fault.server_text) == (code, words)
    assert fault.status == status


@pytest.mark.parametrize(
    "text",
    [
        "x: " + '{"error":' * 5_000 + "1" + "}" * 5_000,
        "{'error': " + "[" * 9_000,
        "{" * 100_000,
        "{'error': " + "1" * 7_000 + "x}",
        "{'" + "\\'" * 3_900 + "}",
        "wait" + " " * 7_900 + "wait in" * 500 + "{",
        '{"error": {"message": "' * 300,
        "{'error': " + "-" * 15_000 + "1}",
        "{'error': " + "not " * 4_000 + "1}",
        'x {"error": {"message": ' + '"' + "\\" * 15_000 + '"}}',
    ],
    ids=[
        "JSON",
        "Python",
        "brackets",
        "digits",
        "quotes",
        "waits",
        "unfinished",
        "signs",
        "nots",
        "escapes",
    ],
)
def test_hostile_nesting_in_a_text_is_shown_as_text(text: str) -> None:
    fault = response_error(400, {}, {"error": {"message": text}})
    assert fault.code == HTTP
    assert len(fault.message) < 1_000


def test_errors_inside_errors_are_read_to_a_bound() -> None:
    text = "the innermost words"
    for _ in range(12):  # Each doubles the signs that escape.
        text = dump_json({"error": {"message": text}}).decode()
    fault = response_error(400, {}, {"error": {"message": text}})
    assert fault.code == HTTP


@pytest.mark.parametrize(
    ("status", "said", "advice"),
    [
        (413, "Request Entity Too Large", "Shorten the conversation, or leave out images"),
        (
            413,
            "Request too large on tokens per minute (TPM)",
            "Shorten the conversation, or choose",
        ),
        (
            400,
            "max_tokens is too large: 9. This model supports at most 8.",
            "a smaller max_tokens.",
        ),
        (400, ANSWERS_TOO_LONG["vLLM"][2], "Choose a smaller max_tokens."),
        (400, OVERFLOWS["Bedrock"][2], "Shorten the conversation, or choose a model that takes"),
        (400, "odd", "Correct the request."),
    ],
)
def test_the_advice_fits_the_limit(status: int, said: str, advice: str) -> None:
    assert advice in response_error(status, {}, {"error": {"message": said}}).message


def test_the_advice_fits_what_was_sent() -> None:
    signin = {"error": "unauthorized", "signin_url": "https://ollama.com/connect"}
    assert response_error(401, {}, signin).message.endswith("Sign in at https://ollama.com/connect")


PAGE = "<!doctype html><html><body>Access denied</body></html>"
# id: status, the server's words, and what the error says first.
REASONS: dict[str, tuple[int, str, str]] = {
    "gone": (410, "The model m is deprecated", "the model is gone"),
    "decommissioned": (
        400, "The model `m` has been decommissioned and is no longer supported.",
        "the model is gone"),
    "retired": (404, "model m was retired on May 1", "the model is gone"),
    "a deprecated parameter": (
        400, "`temperature` is deprecated for this model.", "the provider refused the request"),
    "another thing that is gone": (410, "This endpoint moved", "the provider refused the request"),
    "a country": (403, "Country, region, or territory not supported",
        "the provider does not serve"),
    "a location": (400, "User location is not supported for the API use.",
        "the provider does not serve"),
    "a page": (403, PAGE, "the request was refused before it reached"),
    "a key": (403, "Key not allowed", "the provider refused the key"),
}  # fmt: skip


@pytest.mark.parametrize(("status", "said", "words"), REASONS.values(), ids=REASONS)
def test_the_reason_is_said_that_the_server_means(status: int, said: str, words: str) -> None:
    body = None if said is PAGE else {"error": {"message": said}}
    fault = response_error(status, {}, body, url="http://h/v1", text=said)
    assert fault.message.startswith(words), fault.message
    assert not fault.retryable
    assert (fault.code == "LLM_AUTH_FAILED") == (words == "the provider refused the key")


def test_a_value_that_is_nested_too_deeply_is_refused() -> None:
    value: list[object] = []
    for _ in range(100_000):
        value = [value]
    with pytest.raises(ModelError, match="nested"):
        fix_surrogates(value)
