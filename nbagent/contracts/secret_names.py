"""Names that say secret: variables, keys, columns, headers, flags and parameters of a URL.

The one list of such words. `secrets` hides the values, `secret_values` takes them apart.
"""

from __future__ import annotations

import re
from functools import lru_cache
from typing import cast

_MAX_NAME_CHARS = 200
_NAME_WORD = re.compile(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+")
_CERTAIN_PARTS = (
    *("secret", "password", "passwd", "passwort", "passphrase", "passcode", "credential"),
    *("apikey", "accesskey", "privatekey", "signingkey", "keyring", "keystore", "keychain"),
    *("keypair", "keyfile", "authorization", "bearer", "webhook", "connectionstring", "connstr"),
    *("mnemonic", "seedphrase"),
)
"""Also inside a longer word: `mypassword`, `openaiApikey`."""
_CERTAIN_WORDS = frozenset(
    ("pw", "pwd", "jwt", "cookie", "cookies", "otp", "dsn", "cred", "creds", "passw", "sshpass")
)
"""Whole words only: `otp` is also a part of `footprint`."""
_PROBABLE_WORDS = frozenset(("pass", "auth", "sas", "sig", "signature", "signatures", "private"))
_PROBABLE_ENDINGS = ("key", "keys", "token", "tokens", "pass", "pwd", "pw")
_ORDINARY_WORDS = re.compile(
    r"(?:mon|tur|don|joc|hoc|whis|hot|less)keys?|(?:by|com|encom|sur|tres|over|under|im|ask)pass"
)
_SESSION_ID = re.compile(r"(?:^|_)(?:session_?id|\w*sessid)(?:_|$)")
_COUNT_WORDS = frozenset(
    (
        *("max", "min", "num", "n", "total", "prompt", "completion", "cached", "reasoning"),
        *("input", "output", "count", "counts", "limit", "budget", "usage", "per"),
    )
)
"""If one of these words is in the name, `token` means tokens of a language model."""
_DESCRIBING_ENDS = frozenset(
    (
        *("type", "types", "mode", "method", "strategy", "name", "names", "length", "size", "len"),
        *("timeout", "ttl", "expiry", "expires", "expiration", "rate", "ratio", "count", "counts"),
        *("enabled", "disabled", "required", "backend", "provider", "algorithm", "format"),
        *("prefix", "vault", "through", "fail", "pid", "index", "column", "columns", "error"),
        *("version", "scope", "scopes", "realm", "issuer", "port", "host", "hostname", "domain"),
    )
)
"""Last words of names that describe a secret, and do not hold it: `AUTH_TYPE`, `KEY_NAME`."""
_KEYS_OF_DATA = frozenset(
    (
        *("primary", "foreign", "sort", "partition", "group", "join", "natural", "surrogate"),
        *("public", "publishable", "cache", "bucket", "object"),
    )
)
_PRIVATE_ADDRESSES = frozenset(
    ("ip", "ips", "host", "hostname", "domain", "network", "subnet", "dns", "cidr", "registry")
)
_PATH_WORDS = frozenset(
    ("file", "files", "filename", "path", "paths", "dir", "directory", "folder", "home", "sock")
)


def is_secret_name(name: object) -> bool:
    """True if a variable, key or column of this name probably holds a secret."""
    if isinstance(name, tuple):
        return any(map(is_secret_name, cast("tuple[object, ...]", name)))
    # By type, not isinstance(): names may be any object, whose `__class__` or `__str__` may raise.
    if not issubclass(type(name), str):
        return False
    text = str.__str__(cast("str", name))[:_MAX_NAME_CHARS]
    return is_certain_name(text) or _is_probable_name(text)


@lru_cache(maxsize=4_096)
def is_certain_name(name: str) -> bool:
    """True if a name says secret without doubt, also as the name of a variable in a program.

    Others (`key`, `token`, `auth`) are ambiguous there: a loop may be over keys.
    """
    if name.endswith("Error"):  # an exception class, such as KeyError
        return False
    words = words_of(name)
    joined = "".join(words)
    certain = any(part in joined for part in _CERTAIN_PARTS)
    # PAT is a personal access token, as variables of the environment name it (GITHUB_PAT).
    return certain or not _CERTAIN_WORDS.isdisjoint(words) or "PAT" in name.split("_")


@lru_cache(maxsize=4_096)
def _is_probable_name(name: str) -> bool:
    words = words_of(name)
    if not words or words[-1] in _DESCRIBING_ENDS or name.endswith("Error"):
        return False
    if _SESSION_ID.search("_".join(words)):
        return True
    probable = {word for word in words if _is_probable_word(word)}
    if not _KEYS_OF_DATA.isdisjoint(words):
        probable -= {"key", "keys"}
    if not _COUNT_WORDS.isdisjoint(words):
        probable -= {"token", "tokens", "pass"}
    if not _PRIVATE_ADDRESSES.isdisjoint(words):
        probable -= {"private"}
    return bool(probable)


def _is_probable_word(word: str) -> bool:
    if word in _PROBABLE_WORDS:
        return True
    return word.endswith(_PROBABLE_ENDINGS) and not _ORDINARY_WORDS.fullmatch(word)


def is_address_name(name: str) -> bool:
    """True if a name says that its value is the address of a service: `AUTH_URL`."""
    return words_of(name)[-1:] in (["url"], ["uri"], ["endpoint"]) and not is_certain_name(name)


def is_path_name(name: str) -> bool:
    """True if a name says that its value is the path of a file: `TOKEN_FILE`, `PWD`."""
    return not _PATH_WORDS.isdisjoint(words_of(name)) or name.upper() in ("PWD", "OLDPWD")


def words_of(name: str) -> list[str]:
    """Split a name into lower-case words, at its borders of case too: `dbPass` → db, pass."""
    return [word.lower() for word in _NAME_WORD.findall(name[:_MAX_NAME_CHARS])]
