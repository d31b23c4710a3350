"""Values of secrets: which texts are worth hiding, and the parts of them that are secrets alone.

Pure but for one question to the disk, whether a value is the path of a file. `secrets` keeps and
hides what is found here.
"""

from __future__ import annotations

import base64
import json
import os
import re
from collections.abc import Iterator
from contextlib import suppress
from typing import Any, cast
from urllib.parse import parse_qsl, unquote, urlsplit

from nbagent.contracts.secret_names import (
    is_address_name,
    is_certain_name,
    is_path_name,
    is_secret_name,
)

MIN_SECRET_CHARS = 6
"""Shorter values are not hidden: they also occur in ordinary text."""
MAX_SECRET_CHARS = 10_000
"""Of a longer value only the lines and the parts are hidden."""
_MIN_LINE_CHARS = 16
_MAX_LINES = 500
_MAX_DEPTH = 3
_MIN_WORD_CHARS = 8
_MAX_WORD_LETTERS = 14
_MAX_NUMBER_DIGITS = 9
_PLAIN_VALUES = frozenset(
    (
        *("password", "passwd", "secret", "changeme", "default", "example", "testing", "dummy"),
        *("not-needed", "not_needed", "no-key", "none-needed", "unused", "redacted", "[redacted]"),
        *("required", "optional", "disabled", "enabled", "bearer", "anonymous", "localhost"),
        *("ollama", "lmstudio", "lm-studio", "llamacpp", "llama.cpp", "openai", "sk-no-key"),
        *("postgres", "postgresql", "mariadb", "mongodb", "rabbitmq", "minioadmin", "elastic"),
        *("jupyter", "undefined", "unknown", "keyring", "offline", "sk-no-key-required"),
    )
)
"""Values that everybody knows; to hide them would only garble ordinary text. Those under
`MIN_SECRET_CHARS` (`true`, `none`, `admin`) need no row."""
_ORDINARY_WORD = re.compile(rf"[^\W\d_]{{1,{_MAX_WORD_LETTERS}}}|\d{{1,{_MAX_NUMBER_DIGITS}}}")
_URL = re.compile(r"[A-Za-z][\w+.-]{0,30}://[^\s'\"<>]+")
_PAIR = re.compile(r"(?<![\w.-])([\w.-]{1,200})\s*=\s*('[^']*'|\"[^\"]*\"|[^\s;&,'\"]+)")
_LOGIN = re.compile(r"(basic|bearer|token|digest|negotiate|apikey)\s+(\S.*)", re.IGNORECASE)
_USER_PASSWORD = re.compile(r"[^\s{}\[\]:]+:(?!//)(\S+)")
_HEADER = re.compile(r"[A-Za-z][\w-]*:\s+(\S.*)")
_FILE_NAME = re.compile(
    r"[\w.~/\\: @+-]+\.(?:json|pem|key|crt|cer|p12|pfx|txt|ya?ml|toml|ini|cfg|conf|env|sock|jks)"
)
_PATH_START = re.compile(r"[/~]|\.{1,2}[/\\]|[A-Za-z]:[\\/]")


def can_hide(text: str) -> bool:
    """True for a text that may be a secret: long enough, and no word that everybody knows."""
    return len(text) >= MIN_SECRET_CHARS and text.lower() not in _PLAIN_VALUES


def is_ordinary_word(text: str) -> bool:
    """True for a short word or number: it occurs in ordinary text, also inside other words."""
    one_case = text.islower() or text.isupper() or text.istitle() or text.isdigit()
    return one_case and _ORDINARY_WORD.fullmatch(text) is not None


def secret_texts(name: str, text: str) -> Iterator[str]:
    """The texts to hide of a value whose name says secret: the value, and its parts alone."""
    text = text.strip()
    if is_path(name, text):
        return
    texts = [part for part in _texts_of(name, text, 0) if can_hide(part)]
    # The address of a service is no secret, unless it has a login or a token.
    if not (is_address_name(name) and _URL.fullmatch(text) and set(texts) <= {text}):
        yield from texts


def embedded_secrets(text: str) -> Iterator[str]:
    """The secrets inside a value of any name: logins of URLs, and values after a secret's name."""
    yield from filter(can_hide, _parts(text.strip(), 0))


def program_secrets(name: str, text: str) -> Iterator[str]:
    """The texts to hide of a program's variable: ambiguous names need a value that looks random."""
    if is_certain_name(name):
        yield from secret_texts(name, text)
        return
    for word in text.split():
        if len(word) >= 2 * _MIN_WORD_CHARS and is_mixed(word) and not is_path(name, word):
            yield word


def is_mixed(text: str) -> bool:
    """True if a text has letters and digits, as most keys have."""
    return any(c.isdigit() for c in text) and any(c.isalpha() for c in text)


def is_path(name: str, text: str) -> bool:
    """True if a value is the path of a file, by its own form or by its name's."""
    if "\n" in text or len(text) > 4_096:
        return False
    starts_so = _PATH_START.match(text) is not None
    pieces = [piece for piece in re.split(r"[\\/]", text) if piece]
    if starts_so and len(pieces) > 1 and not any(map(_is_token, pieces)):
        return True
    if starts_so and os.path.exists(os.path.expanduser(text)):
        return True
    if is_path_name(name) and (starts_so or "/" in text or "\\" in text):
        return "://" not in text
    return _FILE_NAME.fullmatch(text) is not None and "://" not in text


def _texts_of(name: str, text: str, depth: int) -> Iterator[str]:
    if len(text) <= MAX_SECRET_CHARS:
        yield text
    yield from _parts(text, depth, named=True)
    if depth >= _MAX_DEPTH:
        return
    for line in text.splitlines()[:_MAX_LINES] if "\n" in text else ():
        if len(line.strip()) >= _MIN_LINE_CHARS and not line.startswith("-----"):
            yield line.strip()
    if match := _HEADER.fullmatch(text):
        yield from _texts_of(name, match[1], depth + 1)
    if match := _LOGIN.fullmatch(text):
        yield from _texts_of("auth", match[2], depth + 1)
    yield from _login_parts(text)
    for word in text.split() if " " in text else ():
        if len(word) >= _MIN_WORD_CHARS and is_mixed(word) and not is_path("", word):
            yield word


def _parts(text: str, depth: int, *, named: bool = False) -> Iterator[str]:
    """Secrets inside a text: in its URLs, its JSON and its pairs of name and value."""
    if depth >= _MAX_DEPTH:
        return
    for match in _URL.finditer(text):
        yield from _url_parts(match[0], named=named)
    if text.startswith(("{", "[")):
        with suppress(ValueError, RecursionError):
            yield from _json_parts(json.loads(text), depth + 1)
    elif "=" in text:
        yield from _pair_parts(text, depth + 1)


def _url_parts(url: str, *, named: bool) -> Iterator[str]:
    """Login and parameters of a URL; of one that is a secret itself the parts of its path too."""
    try:
        parts = urlsplit(url)
    except ValueError:
        return
    login, _, _ = parts.netloc.rpartition("@")
    user, _, password = login.partition(":")
    # A password that repeats the user's or the service's name is a default that everybody knows.
    if unquote(password).lower() not in (user.lower(), parts.scheme.lower()):
        yield from (password, unquote(password))
    # Some services take a token as the user, or the login as one text.
    if named or (is_mixed(user) and len(user) >= 2 * _MIN_WORD_CHARS):
        yield from (text for text in (user, unquote(user)) if is_mixed(text))
    if named and password:
        yield login
    for parameters in (parts.query, parts.fragment):
        for name, text in parse_qsl(parameters):
            if is_secret_name(name) or (named and name == "code"):
                yield text
    if named:
        yield from (piece for piece in parts.path.split("/") if _is_token(piece))


def _is_token(piece: str) -> bool:
    if len(piece) < _MIN_WORD_CHARS:
        return False
    return is_mixed(piece) or (len(piece) >= 2 * _MIN_WORD_CHARS and not piece.islower())


def _json_parts(value: Any, depth: int, name: str = "") -> Iterator[str]:
    """Texts under names that say secret, in a JSON value of any depth."""
    if isinstance(value, dict):
        for key, item in cast("dict[str, Any]", value).items():
            yield from _json_parts(item, depth, key)
    elif isinstance(value, list):
        for item in cast("list[Any]", value):
            yield from _json_parts(item, depth, name)
    elif isinstance(value, str):
        if is_secret_name(name) and not is_path(name, value):
            yield from _texts_of(name, value.strip(), depth)
        else:
            yield from _parts(value, depth)


def _pair_parts(text: str, depth: int) -> Iterator[str]:
    """Values of `name=value` pairs, between semicolons or spaces, whose name says secret."""
    pairs = [(match[1], match[2].strip("'\"")) for match in _PAIR.finditer(text)]
    if ";" in text:
        # A value may hold `=` and spaces here.
        split = (piece.partition("=") for piece in text.split(";"))
        pairs += [(name.strip(), value.strip().strip("'\"")) for name, _, value in split]
    for name, value in pairs:
        if value and is_secret_name(name) and not is_path(name, value):
            yield from _texts_of(name, value, depth)


def _login_parts(text: str) -> Iterator[str]:
    """The password of `user:password`, as it is or in base64."""
    plain = text
    with suppress(ValueError):  # most texts are not base64
        plain = base64.b64decode(text, validate=True).decode()
    for login in {text, plain}:
        if login.isprintable() and (match := _USER_PASSWORD.fullmatch(login)):
            yield match[1]
