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
_PROBABLE_WORDS = frozenset(
    ("pass", "auth", "sas", "sig", "signature", "signatures", "private", "psk", "fernet")
)
_RANDOM_WORDS = frozenset(("hmac", "sk", "salt"))
"""Only with a value that looks random: `HMAC=sha256` is none."""
_STORE_PARTS = re.compile("credentials?|keyring|keystore|keychain|keyfile|cookies?|creds?")
"""Names of stores: the value is as often the path of the store as the secret."""
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
"""If one of these words is in the name, `token` means tokens of a language model, unless the value
is no number: `INPUT_GITHUB_TOKEN`."""
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
    name_words = words_of(name)
    joined = "".join(name_words)
    certain = any(part in joined for part in _CERTAIN_PARTS)
    # PAT is a personal access token, as variables of the environment name it (GITHUB_PAT).
    return certain or not _CERTAIN_WORDS.isdisjoint(name_words) or "PAT" in name.split("_")


@lru_cache(maxsize=4_096)
def _is_probable_name(name: str, *, counts: bool = False) -> bool:
    """True if a name probably says secret; `counts`: also if its tokens may be those of a model."""
    name_words = words_of(name)
    if not name_words or name_words[-1] in _DESCRIBING_ENDS or name.endswith("Error"):
        return False
    if _SESSION_ID.search("_".join(name_words)):
        return True
    probable = {word for word in name_words if _is_probable_word(word)}
    if not _KEYS_OF_DATA.isdisjoint(name_words):
        probable -= {"key", "keys"}
    if not counts and not _COUNT_WORDS.isdisjoint(name_words):
        probable -= {"token", "tokens", "pass"}
    if not _PRIVATE_ADDRESSES.isdisjoint(name_words):
        probable -= {"private"}
    return bool(probable)


def _is_probable_word(word: str) -> bool:
    if word in _PROBABLE_WORDS:
        return True
    return word.endswith(_PROBABLE_ENDINGS) and not _ORDINARY_WORDS.fullmatch(word)


def may_name_secret(name: str) -> bool:
    """True if a name says secret only with a value that is no number: `INPUT_GITHUB_TOKEN`."""
    return _is_probable_name(name[:_MAX_NAME_CHARS], counts=True)


def names_random_value(name: str) -> bool:
    """True if a name says secret only with a value that looks random: `HMAC`, `STRIPE_SK`."""
    return not _RANDOM_WORDS.isdisjoint(words_of(name)[-1:])


def is_proxy_name(name: str) -> bool:
    """True if a name says that its value is a proxy, also without `http://`."""
    return words_of(name)[-1:] == ["proxy"]


def is_address_name(name: str) -> bool:
    """True if a name says that its value is the address of a service: `AUTH_URL`."""
    return words_of(name)[-1:] in (["url"], ["uri"], ["endpoint"]) and not is_certain_name(name)


def is_path_name(name: str) -> bool:
    """True if a name says that its value is the path of a file: `TOKEN_FILE`, `PWD`."""
    return not _PATH_WORDS.isdisjoint(words_of(name)[-1:]) or name.upper() in ("PWD", "OLDPWD")


def holds_no_path(name: str) -> bool:
    """True if a name says secret so clearly that a value like `/correct/horse` is no path."""
    return not is_path_name(name) and is_certain_name(_STORE_PARTS.sub("", name.lower()))


def words_of(name: str) -> list[str]:
    """Split a name into lower-case words, at its borders of case too: `dbPass` → db, pass."""
    return [word.lower() for word in _NAME_WORD.findall(name[:_MAX_NAME_CHARS])]
