"""Values of secrets: which texts are worth hiding, and the parts of them that are secrets alone.

Pure but for one question to the disk, whether a value is the path of a file. `secrets` keeps and
hides what is found here.
"""

from __future__ import annotations

import ast
import base64
import json
import os
import re
from collections.abc import Iterator
from contextlib import suppress
from itertools import islice
from typing import Any, cast
from urllib.parse import parse_qsl, unquote, unquote_plus, urlsplit

from nbagent.contracts.secret_names import (
    holds_no_path,
    is_address_name,
    is_certain_name,
    is_path_name,
    is_proxy_name,
    is_secret_name,
    may_name_secret,
    names_random_value,
    words_of,
)

MIN_SECRET_CHARS = 6
"""Shorter values are not hidden: they also occur in ordinary text."""
MAX_SECRET_CHARS = 10_000
"""Of a longer value the lines and the parts are hidden, and a longer line in pieces."""
_MAX_PARTS = 200
"""Lines, items or words of one value. Those after them are hidden only as a part of the whole."""
_PIECE_CHARS = 2_000
_MIN_LIST_CHARS = 8
_MIN_RANDOM_CHARS = 10
_MAX_LOGIN_CHARS = 500
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
_SCHEME = re.compile(r"[A-Za-z][\w+.-]{0,30}://")
_URL = re.compile(_SCHEME.pattern + r"[^\s'\"<>]+")
_HOST = re.compile(r"(?:[\w.-]*|\[[\w:.%]+\])(?::\d*)?")
"""Host and port of a URL without a login."""
_HTTP = re.compile(r"(?:\w+\+)?https?://", re.IGNORECASE)
_LOGIN_WORDS = r"(?:basic|bearer|token|digest|negotiate|apikey)"
_VALUE = rf"('[^']*'|\"[^\"]*\"|(?:{_LOGIN_WORDS}(?:\s+|%20))?[^\s;&,'\"]+)"
_PAIR = re.compile(rf"(?<![\w.-])([\w.-]{{1,200}})\s*=\s*{_VALUE}", re.IGNORECASE)
_FIELD = re.compile(
    rf"(?<![\w.-])(?:([\w.-]{{1,200}}):\s+|--([\w-]{{1,200}})\s+(?!-)){_VALUE}", re.IGNORECASE
)
"""`name: value` of a header or YAML, and `--name value` of a command."""
_LOGIN = re.compile(rf"{_LOGIN_WORDS}(?:\s+|%20)(\S.*)", re.IGNORECASE)
_USER_PASSWORD = re.compile(r"[^\s{}\[\]:]+:(?!//)(\S+)")
_HEADER = re.compile(r"[A-Za-z][\w-]*:\s+(\S.*)")
_FILE_NAME = re.compile(
    r"[\w.~/\\: @+-]+\.(?:json|pem|key|crt|cer|p12|pfx|txt|ya?ml|toml|ini|cfg|conf|env|sock|jks)"
)
_PATH_START = re.compile(r"[/~]|\.{1,2}[/\\]|[A-Za-z]:[\\/]")
_HOST_NAME = re.compile(r"[a-z\d_-]+(?:\.[a-z\d_-]+)*\.[a-z]{2,}(?::\d+)?")
_FINGERPRINT = re.compile(r"[0-9A-F]{40}")
"""Public name of a key of GPG, which images of Python hold as `GPG_KEY`."""
_NUMBER = re.compile(r"[+-]?[\d_.,]+%?")
_KNOWN_TOKEN = re.compile(
    r"(?<![A-Za-z0-9])(?:gh[pousr]_\w{10,}|github_pat_\w{10,}|glpat-[\w-]{8,}|xox[a-z]-[\w-]{10,}"
    r"|[sr]k_(?:live|test)_\w{8,}|sk-(?=[\w-]{0,200}\d)[\w-]{16,}|npm_[A-Za-z0-9]{20,}"
    r"|hf_[A-Za-z0-9]{20,}|AIza[\w-]{35}|hvs\.[\w-]{16,}"
    r"|ya29\.[\w-]{16,}|(?<=hooks\.slack\.com/services/)[\w/]{16,})"
)
"""Forms in which well-known services give their tokens."""
_PEM = re.compile(
    r"-----BEGIN [A-Z ]{0,40}PRIVATE KEY-----(?:(?!-----).){1,20000}?-----END [A-Z ]{0,40}-----",
    re.S,
)
_PLAIN_KEYS = frozenset(
    (
        *("type", "uri", "url", "email", "mail", "user", "username", "uid", "host", "hostname"),
        *("server", "port", "region", "project", "domain", "database", "dbname", "name", "scheme"),
        *("version", "description", "driver", "protocol", "endpoint", "suffix", "account", "id"),
        *("created", "updated", "expires", "expiry", "exp", "iat", "scope", "encrypt", "timeout"),
    )
)
"""Last words of keys that say something about a secret, beside it."""


def can_hide(text: str) -> bool:
    """True for a text that may be a secret: long enough, and no word that everybody knows."""
    return len(text) >= MIN_SECRET_CHARS and text.lower() not in _PLAIN_VALUES


def is_ordinary_word(text: str) -> bool:
    """True for a short word or number: it occurs in ordinary text, also inside other words."""
    one_case = text.islower() or text.isupper() or text.istitle() or text.isdigit()
    return one_case and _ORDINARY_WORD.fullmatch(text) is not None


def secret_texts(name: str, text: str) -> Iterator[str]:
    """The texts to hide of a value whose name says secret: the value, and its parts alone.

    Parts are the items of a list, the texts and numbers of JSON or of a Python literal, the values
    of pairs, the lines, the words that look random, and the password of a login.
    """
    text = text.strip()
    if is_path(name, text) or ("gpg" in words_of(name) and _FINGERPRINT.fullmatch(text)):
        return
    texts = [part for part in _texts_of(name, text, 0) if can_hide(part)]
    # The address of a service is no secret, unless it has a login or a token.
    if not (is_address_name(name) and _URL.fullmatch(text) and set(texts) <= {text}):
        yield from texts


def value_secrets(name: str, text: str) -> Iterator[str]:
    """The texts to hide of a value of any name."""
    if is_secret_name(name) or _is_secret_by_value(name, text.strip()):
        yield from secret_texts(name, text)
    else:
        yield from embedded_secrets(text)
    if is_proxy_name(name):
        yield from filter(can_hide, _login_texts("http://", text.strip(), named=False))
    yield from _known_tokens(text)


def _is_secret_by_value(name: str, text: str) -> bool:
    """True if a name says secret only together with its value."""
    if names_random_value(name) and is_random(text) and len(text) >= _MIN_RANDOM_CHARS:
        return True
    is_number = _NUMBER.fullmatch(text) is not None
    return may_name_secret(name) and not is_number and not is_ordinary_word(text)


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


def is_random(text: str) -> bool:
    """True for one word of letters and digits that is neither a host nor ordinary text."""
    is_word = len(text) >= MIN_SECRET_CHARS and not any(c.isspace() for c in text)
    return is_word and is_mixed(text) and _HOST_NAME.fullmatch(text) is None


def is_path(name: str, text: str) -> bool:
    """True if a value is the path of a file: it exists, or its name allows a path.

    Under a name such as PASSWORD only a file that exists counts: `/correct/horse` may be one.
    """
    if "\n" in text or len(text) > 4_096 or "://" in text:
        return False
    starts_so = _PATH_START.match(text) is not None
    if (starts_so or _FILE_NAME.fullmatch(text) or "/" in text) and _exists(text):
        return True
    if holds_no_path(name):
        return False
    if is_path_name(name) and (starts_so or _FILE_NAME.fullmatch(text)):
        return True
    pieces = [piece for piece in re.split(r"[\\/]", text) if piece]
    return starts_so and len(pieces) > 1 and not any(map(_is_token, pieces))


def _exists(path: str) -> bool:
    with suppress(OSError, ValueError):
        return os.path.exists(os.path.expanduser(path))
    return False


def _texts_of(name: str, text: str, depth: int) -> Iterator[str]:
    if len(text) <= MAX_SECRET_CHARS:
        yield text
    yield from _parts(text, depth, named=True)
    if depth >= _MAX_DEPTH:
        return
    yield from _lines_of(text)
    if match := _HEADER.fullmatch(text):
        yield from _texts_of(name, match[1], depth + 1)
    if match := _LOGIN.fullmatch(text):
        yield from _texts_of("auth", match[1], depth + 1)
    yield from _login_parts(text)
    for word in text.split()[:_MAX_PARTS] if " " in text else ():
        if is_random(word) and not is_path("", word):
            yield word
    yield from _list_items(text)


def _lines_of(text: str) -> Iterator[str]:
    """Lines of a long or multi-line value, a line that is too long for one text in pieces."""
    if "\n" not in text and len(text) <= MAX_SECRET_CHARS:
        return
    for line in islice(map(str.strip, text.splitlines()), _MAX_PARTS):
        if line.startswith("-----") or is_ordinary_word(line):
            continue
        if len(line) <= MAX_SECRET_CHARS:
            yield line
        else:
            yield from (
                line[i : i + _PIECE_CHARS] for i in range(0, len(line), _PIECE_CHARS)[:_MAX_PARTS]
            )


def _list_items(text: str) -> Iterator[str]:
    """Items of `k1,k2`, `k1;k2` or `k1:k2`; between colons only those that look random."""
    if text.startswith(("{", "[")) or len(text) > MAX_SECRET_CHARS or _SCHEME.search(text):
        return
    for item in re.split(r"[,;\n]", text)[:_MAX_PARTS]:
        item = item.strip()
        for piece in [item, *item.split(":")] if ":" in item else [item]:
            is_pair = "=" in piece.rstrip("=")
            if len(piece) >= _MIN_LIST_CHARS and is_random(piece) and not is_pair:
                yield piece


def _parts(text: str, depth: int, *, named: bool = False) -> Iterator[str]:
    """Secrets inside a text: in its URLs, its JSON and its pairs of name and value."""
    if depth >= _MAX_DEPTH:
        return
    starts = list(islice(_SCHEME.finditer(text), _MAX_PARTS))
    ends = [*(match.start() for match in starts), len(text)][1:]
    for match, end in zip(starts, ends, strict=True):
        rest = text[match.end() : end].partition("\n")[0]
        yield from _login_texts(match[0], rest, named=named)
        if url := _URL.match(match[0] + rest):
            yield from _url_parts(url[0], named=named)
    value = _literal(text) if text.startswith(("{", "[", "(")) else None
    if isinstance(value, dict | list | tuple | set):
        yield from _json_parts(value, depth + 1, named=named)
    else:
        yield from _pair_parts(text, depth + 1, named=named)


def _literal(text: str) -> Any:
    """Read JSON or a Python literal; None if it is neither. Numbers of JSON stay as written."""
    with suppress(ValueError, RecursionError):
        return json.loads(text, parse_int=str, parse_float=str)
    with suppress(ValueError, SyntaxError, TypeError, RecursionError, MemoryError):
        return ast.literal_eval(text) if len(text) <= MAX_SECRET_CHARS else None
    return None


def _login_texts(scheme: str, text: str, *, named: bool) -> Iterator[str]:
    """Login of a URL: its password, up to each `@` that may stand before the host.

    A password may hold `/`, `#`, `?`, quotes and blanks, although it should be quoted there.
    """
    text = text[:_MAX_LOGIN_CHARS]
    authority = re.split(r"[/?#\s\"'<>]", text, maxsplit=1)[0]
    if "@" not in authority and _HOST.fullmatch(authority.partition(",")[0]):
        return
    logins = {authority.rpartition("@")[0], text.rpartition("@")[0]} - {""}
    for login in logins:
        user, colon, password = login.partition(":")
        if not colon and login not in authority:
            continue
        # A password that repeats the user's or the service's name is a default that all know.
        if unquote(password).lower() not in (user.lower(), scheme.partition(":")[0].lower()):
            yield from (password, unquote(password), unquote_plus(password))
        # Some services take a token as the user, or the login as one text.
        if named or (is_mixed(user) and len(user) >= 2 * _MIN_WORD_CHARS):
            yield from (text for text in (user, unquote(user)) if is_mixed(text))
        elif not password and _HTTP.fullmatch(scheme) and len(user) >= _MIN_WORD_CHARS:
            yield from () if is_ordinary_word(user) else (user, unquote(user))
        if named and password:
            yield login


def _url_parts(url: str, *, named: bool) -> Iterator[str]:
    """Parameters of a URL; of one that is a secret itself the parts of its path too."""
    try:
        parts = urlsplit(url)
    except ValueError:
        return
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


def _json_parts(value: Any, depth: int, name: str = "", *, named: bool = False) -> Iterator[str]:
    """Texts under names that say secret, in a JSON value of any depth.

    Of a value that is `named` a secret as a whole, every text and number but those beside a secret.
    """
    if isinstance(value, dict):
        fields = cast("dict[Any, Any]", value)
        for key, item in fields.items():
            inherits = named or is_secret_name(key)
            yield from _json_parts(item, depth, str(key), named=inherits)
        label = fields.get("name", fields.get("key"))
        if isinstance(label, str) and is_secret_name(label):
            yield from _json_parts(fields.get("value"), depth, label, named=True)
    elif isinstance(value, list | tuple | set):
        for item in cast("list[Any]", value):
            yield from _json_parts(item, depth, name, named=named)
    elif isinstance(value, str | bytes | int | float) and not isinstance(value, bool):
        text = value.decode("utf-8", "replace") if isinstance(value, bytes) else str(value)
        yield from _field_texts(name, text.strip(), depth, named=named)


def _field_texts(name: str, text: str, depth: int, *, named: bool) -> Iterator[str]:
    """Texts to hide of one field; under a secret also of fields that do not say secret."""
    is_secret = is_secret_name(name) or (named and not _says_beside(name))
    if is_secret and not is_path(name, text) and not is_plain_field(text):
        yield from _texts_of(name, text, depth)
    else:
        yield from _parts(text, depth)


def is_plain_field(text: str) -> bool:
    """True for an address or a host, which stand beside a secret."""
    return _HOST_NAME.fullmatch(text) is not None


def _says_beside(name: str) -> bool:
    return not _PLAIN_KEYS.isdisjoint(words_of(name)[-1:])


def _pair_parts(text: str, depth: int, *, named: bool) -> Iterator[str]:
    """Values of pairs of name and value whose name says secret.

    Of a value that is `named` a secret as a whole, also the other values that look random.
    """
    pairs = [(match[1], match[2].strip("'\"")) for match in _PAIR.finditer(text)]
    if ";" in text:
        # A value may hold `=` and spaces here.
        split = (piece.partition("=") for piece in text.split(";"))
        pairs += [(name.strip(), value.strip().strip("'\"")) for name, _, value in split]
    for match in _FIELD.finditer(text):
        name, value = match[1] or match[2], match[3].strip("'\"")
        if is_certain_name(name) or is_random(_LOGIN.sub(r"\1", value)):
            pairs.append((name, value))
    for name, value in pairs[: 2 * _MAX_PARTS]:
        random = named and not _says_beside(name) and is_random(value)
        if value and (is_secret_name(name) or random) and not is_path(name, value):
            for form in {value, unquote(value)}:
                login = _LOGIN.fullmatch(form)
                yield from _texts_of("auth" if login else name, login[1] if login else form, depth)


def _known_tokens(text: str) -> Iterator[str]:
    """Tokens of well-known services and private keys, in a value of any name."""
    for match in islice(_KNOWN_TOKEN.finditer(text), _MAX_PARTS):
        yield match[0]
    if "PRIVATE KEY-----" in text:
        for match in _PEM.finditer(text.replace("\\n", "\n")):
            yield match[0]
            yield from filter(can_hide, _lines_of(match[0]))


def _login_parts(text: str) -> Iterator[str]:
    """The password of `user:password`, as it is or in base64."""
    plain = text
    with suppress(ValueError):  # most texts are not base64
        plain = base64.b64decode(text, validate=True).decode()
    for login in {text, plain}:
        if login.isprintable() and (match := _USER_PASSWORD.fullmatch(login)):
            yield match[1]
