"""The filter knows every secret there is, in every form that others may have brought it into."""

from __future__ import annotations

import base64
import json
import logging
import os
import random
from collections.abc import Callable
from urllib.parse import quote, quote_plus

import pytest
from servers.model_server import ModelServer, Reply

import nbagent
from nbagent.contracts.secrets import MASK, StreamFilter, is_secret_name, redact, register_secret
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


SECRETS = {
    "SOME_SERVICE_TOKEN": "tok-0123456789-abcdef",
    "MY_PASSWORD": "hunter2hunter2",
    "DEPLOY_KEY": "AAAAB3NzaC1yc2EAAAADAQABAAABgQ",
    "CLIENT_SECRET_OF_MINE": "cs-01234567",
    "GITHUB_PAT": "ghp0123456789abcdef",
    "DATABASE_URL": "postgres://me:p4ssw0rd-of-mine@host/db",
    "PRIVATE_KEY": "-----BEGIN KEY-----\nMIIEvQIBADANBgkqhkiG9w0BAQEFAASC1\n-----END KEY-----",
    "ODD_API_KEY": "letters-alone",
}
OTHERS = {
    "MAX_TOKENS": "1234567890abcdef1234",
    "SORT_KEY": "column1",
    "PWD": os.getcwd(),
    "KEY_FILE": __file__,
    "DB_PASSWORD": "postgres",
    "PATH_LIKE": "abcdefgh12345678",
}


def test_secrets_of_the_environment_are_hidden_by_their_names_also_those_set_later(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    @nbagent.tool
    def environment() -> dict[str, str]:
        """Set it and tell it."""
        for name, value in (SECRETS | OTHERS).items():
            monkeypatch.setenv(name, value)
        return {name: os.environ[name] for name in SECRETS | OTHERS}

    model = script([calls([call("environment")]), "Done."])
    result = nbagent.Agent(model=model, tools=[environment]).run("Go.").turns[0].tool_runs[0].result
    assert result is not None
    held = {name for name, value in (SECRETS | OTHERS).items() if result.data[name] == value}
    assert held == set(OTHERS)
    assert "p4ssw0rd" not in result.data["DATABASE_URL"]
    assert "MIIEvQ" not in result.data["PRIVATE_KEY"]


def test_the_http_library_logs_nothing(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG)
    headers = {"X-Session": "not-for-a-log-1234"}
    with ModelServer([Reply(text="Hello.", headers=headers)]) as server:
        nbagent.Agent("openai:m", base_url=server.url).run("Hello.").raise_for_error()
    assert not [record for record in caplog.records if record.name.startswith("http")]


SECRET_NAMES = """api_key API_KEY OPENAI_API_KEY apikey openaiKey key keys myAPIKey token hf_token
accessToken tokens client_secret secrets password db_passwd DB_PASSWORD2 credentials
aws_credential_file Authorization pwd jwt session_cookie passphrase private_key_pem keyfile
openaikey"""
OTHER_NAMES = """monkey turkeys keyboard keyword tokenizer max_tokens token_count prompt_tokens df n
pass_rate author spins donkey_count KeyError"""


def test_names_say_what_is_a_secret() -> None:
    assert [name for name in SECRET_NAMES.split() if not is_secret_name(name)] == []
    assert [name for name in ["", *OTHER_NAMES.split()] if is_secret_name(name)] == []
