"""The filter knows every secret there is, in every form that others may have brought it into."""

from __future__ import annotations

import base64
import json
import logging
import os
import random
from collections.abc import Callable
from typing import Any
from urllib.parse import quote, quote_plus

import pytest
from planted_secrets import CARRIERS, ENVIRONMENT, HARMLESS, ORDINARY, SECRETS, WORDS, leaks
from servers.model_server import ModelServer, Reply

import nbagent
from nbagent.contracts.secret_names import is_secret_name
from nbagent.contracts.secret_values import value_secrets
from nbagent.contracts.secrets import (
    MASK,
    StreamFilter,
    redact,
    register_environment,
    register_secret,
)
from nbagent.providers.offline import call, calls, script

KEY = 'sk-forms/Q7+zz&01="23\\456789é\U0001f511XYZ'


@pytest.fixture(autouse=True)
def known() -> None:
    register_secret(KEY)


def escaped(key: str) -> str:
    """As JSON may write it: every character as its UTF-16 units."""
    units = key.encode("utf-16-be").hex()
    return "".join(f"\\u{units[i : i + 4]}" for i in range(0, len(units), 4))


FORMS: dict[str, str] = {
    "literal": KEY,
    "URL": quote(KEY, safe=""),
    "form": quote_plus(KEY),
    "JSON": json.dumps(KEY)[1:-1],
    "hexadecimal": KEY.encode().hex(),
    "HEXADECIMAL": KEY.encode().hex().upper(),
    "escapes of JSON": escaped(KEY),
    "ESCAPES of JSON": escaped(KEY).upper().replace("\\U", "\\u"),
    "escapes of Python": "".join(
        f"\\u{ord(c):04x}" if ord(c) < 65_536 else f"\\U{ord(c):08x}" for c in KEY
    ),
    "base64": base64.b64encode(KEY.encode()).decode(),
    "base32": base64.b32encode(KEY.encode()).decode(),
    "base32 in lower case": base64.b32encode(KEY.encode()).decode().lower(),
}


@pytest.mark.parametrize("form", FORMS)
def test_a_key_is_hidden_in_every_form(form: str) -> None:
    hidden = redact(f"<{FORMS[form]}>")
    assert hidden.startswith(f"<{MASK}")
    assert len(hidden) <= len(f"<{MASK}=======>") + 3, "no more than the padded end may stay"


_BYTES = "pa\udcdfwort-of-bytes99"
"""A value of an environment that is not UTF-8."""
BYTES_FORMS = {
    "literal": _BYTES,
    "replaced": _BYTES.replace("\udcdf", "\ufffd"),
    "question mark": _BYTES.replace("\udcdf", "?"),
    "Latin-1": "pa\xdfwort-of-bytes99",
    "JSON": json.dumps(_BYTES)[1:-1],
    "repr": repr(_BYTES)[1:-1],
    "repr of bytes": repr(os.fsencode("pa") + b"\xdfwort-of-bytes99")[2:-1],
    "URL": "pa%DFwort-of-bytes99",
    "hexadecimal": b"pa\xdfwort-of-bytes99".hex(),
    "base64": base64.b64encode(b"pa\xdfwort-of-bytes99").decode(),
}


@pytest.mark.parametrize("form", BYTES_FORMS)
def test_a_secret_that_is_not_utf_8_is_hidden_in_every_form(
    form: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("os.environ", {**os.environ, "X_PASSWORD": _BYTES})
    run = nbagent.Agent(model=script(["Fine."]), tools=[]).run("Go.")
    assert run.text == "Fine."
    assert redact(f"<{BYTES_FORMS[form]}>").startswith(f"<{MASK}")


@pytest.mark.parametrize(
    "text", ["\ud800" * 8, "\udfff\ud800aaaa99", "a\0b\x1b\u202ecd99", "é" * 9_000]
)
def test_no_text_is_too_odd_to_be_registered(text: str) -> None:
    register_secret(text)
    assert redact(text) == MASK


@pytest.mark.parametrize("before", range(6))
@pytest.mark.parametrize("code", [base64.b64encode, base64.b32encode, base64.urlsafe_b64encode])
def test_a_key_inside_a_longer_coded_text_is_hidden(
    code: Callable[[bytes], bytes], before: int
) -> None:
    text = code(b"user:x"[:before] + KEY.encode() + b"@host").decode()
    assert MASK in redact(text)
    assert len(redact(text)) < len(MASK) + 32


def test_a_stream_in_any_pieces_shows_what_the_whole_text_shows() -> None:
    chance = random.Random(7)
    words = [*FORMS.values(), "sk-", KEY[:9], escaped("sk-f"), "hi ", "\\u"]
    for _ in range(200):
        text = "".join(chance.choices(words, k=5))
        places = sorted(chance.choices(range(len(text) + 1), k=chance.randint(1, 40)))
        stream = StreamFilter()
        pieces = [text[a:b] for a, b in zip([0, *places], [*places, len(text)], strict=True)]
        shown = "".join(map(stream.feed, pieces)) + stream.flush()
        assert shown == redact(text)


def test_a_stream_holds_back_what_may_be_a_key_and_no_more() -> None:
    stream = StreamFilter()
    assert stream.feed("It ends in sk-for") == "It ends in "
    assert stream.feed("tune.") == "sk-fortune."
    register_secret("a" * 16 + "b")  # It begins within its own beginning.
    shown = "".join(map(stream.feed, ["a"] * 30 + ["b"])) + stream.flush()
    assert shown == "a" * 14 + MASK


def environment_told(monkeypatch: pytest.MonkeyPatch, variables: dict[str, str]) -> Any:
    """Set variables in mid-run, and return what a tool's record keeps of them."""

    @nbagent.tool
    def environment() -> dict[str, str]:
        """Set it and tell it."""
        for name, value in variables.items():
            monkeypatch.setenv(name, value)
        return {name: os.environ[name] for name in variables}

    model = script([calls([call("environment")]), "Done."])
    run = nbagent.Agent(model=model, tools=[environment]).run("Go.")
    result = run.turns[0].tool_runs[0].result
    assert result is not None
    return result.data


def test_secrets_of_the_environment_are_hidden_by_their_names_also_those_set_later(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    assert len(ENVIRONMENT) == 97
    data = environment_told(monkeypatch, {**ENVIRONMENT, **HARMLESS})
    assert leaks(json.dumps(data, ensure_ascii=False)) == []
    assert {name: data[name] for name in HARMLESS} == HARMLESS
    for name, carrier in CARRIERS.items():
        assert data[name] == carrier.replace("{}", MASK)


@pytest.mark.parametrize("name", SECRETS)
def test_each_part_of_a_secret_is_hidden_alone(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(name, ENVIRONMENT[name])
    register_environment()
    for part in SECRETS[name]:
        for text in (part, json.dumps(part), repr(part), quote(part, safe=""), part.encode().hex()):
            assert leaks(redact(f"x {text} y")) == []
            assert MASK in redact(f"x {text} y")


@pytest.mark.parametrize("name", ORDINARY)
def test_an_ordinary_value_stays_visible(name: str) -> None:
    assert list(value_secrets(name, ORDINARY[name])) == []


@pytest.mark.parametrize("name", WORDS)
def test_an_ordinary_word_is_hidden_where_it_stands_alone_and_said_once(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    word = WORDS[name]
    monkeypatch.setenv(name, word)
    model = script([f"The {word}, a {word}-line, x{word}, {word}s; {word}", "Again."])
    agent = nbagent.Agent(model=model, tools=[])
    run = agent.run("Go.")
    assert run.text == f"The {MASK}, a {MASK}-line, x{word}, {word}s; {MASK}"
    (notice,) = run.record.notices
    assert name in notice
    assert word not in notice
    assert agent.run("Go.").record.notices == ()


def test_a_word_in_a_stream_is_hidden_as_in_the_whole_text() -> None:
    register_secret("swordfish")
    chance = random.Random(11)
    words = ["swordfish", "s", " ", "x", "_", "swor", "\\n", "\n", "é", KEY, "-", "1"]
    for _ in range(500):
        text = "".join(chance.choices(words, k=6))
        places = sorted(chance.choices(range(len(text) + 1), k=chance.randint(1, 20)))
        stream = StreamFilter()
        pieces = [text[a:b] for a, b in zip([0, *places], [*places, len(text)], strict=True)]
        assert "".join(map(stream.feed, pieces)) + stream.flush() == redact(text)


def test_the_http_library_logs_nothing(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG)
    headers = {"X-Session": "not-for-a-log-1234"}
    with ModelServer([Reply(text="Hello.", headers=headers)]) as server:
        nbagent.Agent("openai:m", base_url=server.url).run("Hello.").raise_for_error()
    assert not [record for record in caplog.records if record.name.startswith("http")]


SECRET_NAMES = """api_key API_KEY OPENAI_API_KEY apikey openaiKey key keys myAPIKey token hf_token
accessToken tokens client_secret secrets password db_passwd DB_PASSWORD2 credentials
aws_credential_file Authorization pwd jwt session_cookie passphrase private_key_pem keyfile
openaikey DB_PASS dbPass smtp_pass BASIC_AUTH npmAuth SENTRY_DSN slack_webhook_url SAS_URL conn_str
connectionString GOOGLE_CREDS signature X-Signature session_id PHPSESSID private SSHPASS --auth"""
OTHER_NAMES = """monkey turkeys keyboard keyword tokenizer max_tokens token_count prompt_tokens df n
pass_rate author spins donkey_count KeyError
KEYMAP PRIMARY_KEY_NAME primary_key sort_key auth_type key_name token_type private_ip compass bypass
session_name passenger n_pass credit sash possession_id_card assign"""


def test_names_say_what_is_a_secret() -> None:
    assert [name for name in SECRET_NAMES.split() if not is_secret_name(name)] == []
    assert [name for name in ["", *OTHER_NAMES.split()] if is_secret_name(name)] == []
