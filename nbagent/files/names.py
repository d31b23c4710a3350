"""Lexical checks: which names may reach the disk, and which look like secrets.

Reads text only; `opening` looks at the files.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator
from fnmatch import translate
from functools import lru_cache
from unicodedata import category, normalize

from nbagent.contracts.errors import ToolError

Parts = tuple[str, ...]
"""A path below a mount, in pieces; the empty tuple is the mount itself."""

_MAX_BYTES = 255
"""Longest name on all common file systems."""
_MAX_PARTS = 64
_MAX_CHARS = 4_096
_RESERVED = re.compile(
    r"(con|prn|aux|nul|conin\$|conout\$|(com|lpt)[0-9¹²³])\s*(\..*)?", re.IGNORECASE
)
"""Devices of Windows: https://learn.microsoft.com/windows/win32/fileio/naming-a-file"""
_NOT_ON_WINDOWS = re.compile(r"~\d|[*?\"<>|]")
"""Short forms of names (`PROGRA~1`), and characters that names cannot have there."""
_HIDDEN_CATEGORIES = frozenset({"Cc", "Cf", "Cs", "Zl", "Zp"})

SECRET_NAMES = (
    # Environments of programs.
    *(".env", ".env[._-]*", "*.env", "*.env.*", ".*_env", ".envrc"),
    *("*.tfvars", "*.tfvars.json", "*.tfstate*"),
    # Private keys and key stores.
    *("*.pem", "*.key", "*.p12", "*.pfx", "*.p8", "*.ppk", "*.jks", "*.keystore", "*.bks"),
    *("*.kdb", "*.kdbx", "*.agekey", "*.ovpn", "id_*", "*_rsa", "*_ed25519", "*_ecdsa"),
    *(".gnupg/", ".ssh/", ".password-store/", "keyrings/", "*.keychain*", "secring.*"),
    # Names that say secret, password, token or key.
    *("secret", "secret.*", "secrets", "secrets.*", "secrets[_-]*", "*[._-]secret", ".secret*"),
    *("*[._-]secrets", "*[_-]secret.*", "*[_-]secrets.*", "client[_-]secret*", ".vault*"),
    *("secrets/", ".secrets/", "*password", "*passwords", "password.*", "passwords.*"),
    *("*[_-]password.*", "*[_-]passwords.*", "*.passwd", "*htpasswd", "*.htdigest"),
    *("*passphrase*", "token", "token.*", "*[._-]token", "*[._-]tokens", "*[_-]token.*", ".token*"),
    *("credential", "credential.*", "credentials", "credentials.*", "credentials[_-]*"),
    *("*[._-]credentials", "*[_-]credentials.*", ".credentials*", "creds", "creds.*"),
    *("*[._-]creds", "*[_-]creds.*", "*api[_-]key*", "*apikey*", "*private[_-]key*"),
    *("auth.json", "auth.toml", "oauth*.json", "service[_-]account*", "serviceaccount*"),
    *("*firebase-adminsdk*", "*keyfile*.json", "access_tokens.db", "wallet.dat", ".renviron"),
    *("key.txt", "keys.txt", "key.json", "keys.json", "*token.txt", "*tokens.txt", "*tokens.csv"),
    # Logins of programs.
    *(".aws[._-]*", "aws_config", "aws_credentials*", ".gcloud[._-]*", ".azure[._-]*"),
    *(".netrc*", "_netrc", ".npmrc", ".yarnrc*", ".pypirc", ".pgpass", "pgpass.conf", ".my.cnf"),
    *(".mylogin.cnf", ".git-credentials", ".s3cfg", ".boto", ".dockercfg", ".dockerconfigjson"),
    *(".terraformrc", "terraform.rc", "*kubeconfig*", ".databrickscfg", ".cdsapirc", "kaggle.json"),
    *(".docker/config.json", ".kube/", ".aws/", ".azure/", ".config/gcloud/", ".config/gh/"),
    *(".m2/settings*.xml", "wp-config.php"),
    # Data of browsers and mail programs, and histories of typed commands.
    *("login data*", "web data*", "cookies", "cookies.txt", "cookies.json", "cookies.sqlite*"),
    *("key[34].db", "cert[89].db", "logins*.json", "signons.sqlite", ".mozilla/", ".thunderbird/"),
    *("google-chrome*/", "bravesoftware/", ".config/chromium/", "firefox/profiles/"),
    *(".*_history", ".history", ".histfile", ".zhistory", "fish_history", "history.sqlite"),
    *("consolehost_history.txt", ".viminfo", ".lesshst"),
)
"""Not read, written, searched or given to scripts unless a policy allows them by name.

With a slash at its end a folder, and all that is in it.
"""
_SECRET_FILES = re.compile("|".join(translate(name) for name in SECRET_NAMES if "/" not in name))
_COPY_ENDING = re.compile(
    r"(.+?)(?:~|#|\.(?:bak|backup|old|orig|save|sav|swp|swo|swn|tmp|temp|copy|new|prev|previous"
    r"|txt|rej|part|crdownload|disabled|off|gpg|asc|gz|zip|bz2|xz|zst|\d{1,8}))"
    r"|(.+?)(?: ?\(\d{1,3}\)|[ _-]copy(?: \d{1,3})?)(\..+)?"
)
"""Endings of copies: of editors, of people, of browsers; the file is what is before them."""
_MAX_ENDINGS = 4
_SECRET_FOLDERS = re.compile(
    "/(?:"
    + "|".join(
        re.escape(name.rstrip("/")).replace(r"\*", "[^/]*") for name in SECRET_NAMES if "/" in name
    )
    + ")/"
)
_HARMLESS_FILES = re.compile(
    r".*\.(example|sample|template|tmpl|dist|md|rst|html?|css|svg|tex"
    r"|pyi?|ipynb|r|jl|[jt]sx?|vue|[ch]|cc|[ch]pp|cs|java|kt|go|rs|rb|swift|scala|sql)"
    r"|(example|sample|template|dist)\.env"
)
"""Examples, source code and writing, whatever they are about."""


@lru_cache(maxsize=4_096)
def path_parts(path: str) -> Parts:
    """Parts of a path; E_SANDBOX_VIOLATION if it could mean something else than it says."""
    if len(path) > _MAX_CHARS:
        raise path_error(path[:60] + "…", f"it is longer than {_MAX_CHARS} characters")
    if path.startswith("/"):
        raise path_error(path, "it is absolute; name it below a mount, such as @project/notes.md")
    parts = tuple(piece for piece in path.split("/") if piece not in ("", "."))
    if len(parts) > _MAX_PARTS:
        raise path_error(path[:60] + "…", f"it is deeper than {_MAX_PARTS} folders")
    for piece in parts:
        if why := _refusal_reason(piece):
            raise path_error(path, why)
    return parts


def _refusal_reason(piece: str) -> str:
    """The reason to refuse a name; empty if it is valid."""
    if piece == "..":
        return "'..' leads out of its folder; write the path from the mount down"
    # On Windows `:` also opens another stream of the same file.
    if "\\" in piece or ":" in piece:
        return "'\\' and ':' mean something on other systems; separate folders with '/'"
    if _has_hidden(piece):
        return "it holds a control or invisible character; write the name without it"
    # Windows drops them, so two names would be one file.
    if piece != piece.strip() or piece.endswith("."):
        return "a name ends in a dot or begins or ends in a space; write it without"
    if _RESERVED.fullmatch(piece):
        return f"{piece!r} is a device on some systems; choose another name"
    if sys.platform == "win32" and _NOT_ON_WINDOWS.search(piece):
        return "it may be the short form of another name, or none; write the long one"
    if len(piece.encode("utf-8")) > _MAX_BYTES:
        return f"a name is longer than {_MAX_BYTES} bytes; choose a shorter one"
    return ""


def _has_hidden(text: str) -> bool:
    return not text.isprintable() and any(category(char) in _HIDDEN_CATEGORIES for char in text)


@lru_cache(maxsize=4_096)
def is_nameable(name: str) -> bool:
    """True if a file of this name can be written in a path."""
    return not _refusal_reason(name)


def path_error(path: str, why: str) -> ToolError:
    """The error for a refused path."""
    return ToolError(f"the path {visible(path)} is refused: {why}", code="E_SANDBOX_VIOLATION")


def visible(path: str) -> str:
    """A path as one line of plain text, whatever is in it."""
    text = path if len(path) <= 300 else path[:300] + "…"
    return "".join(
        f"⟦U+{ord(char):04X}⟧" if category(char) in _HIDDEN_CATEGORIES else char for char in text
    )


@lru_cache(maxsize=4_096)
def looks_secret(path: str) -> bool:
    """True if a file of this name or path probably holds a key or a password.

    With a slash at the end: True if all files of that folder do.
    """
    # File systems may treat two spellings (case, Unicode form) as one name: both need one answer.
    folded = path if path.isascii() else normalize("NFKC", path)
    folded = folded.casefold()
    last = folded.rpartition("/")[2]
    names = tuple(_originals(last))
    if any(map(_SECRET_FILES.match, names)) and not any(map(_HARMLESS_FILES.fullmatch, names)):
        return True
    return _SECRET_FOLDERS.search(f"/{folded}/") is not None


def _originals(name: str) -> Iterator[str]:
    """The name, and the names of the files that it may be a copy of: `.#id_rsa.bak~` → `id_rsa`."""
    yield name
    # Locks and autosaves of editors: `.#name`, `#name#`, `.name.swp`, `._name` (macOS), `~$name`.
    bare = re.sub(r"^(?:\.#|#|\._|~\$)", "", name)
    for _ in range(_MAX_ENDINGS):
        if bare != name:
            yield bare
        if (ending := _COPY_ENDING.fullmatch(bare)) is None:
            break
        bare = ending[1] or ending[2] + (ending[3] or "")
        yield bare
        if bare.startswith("."):  # the swap file of `id_rsa` is `.id_rsa.swp`
            yield bare[1:]


def names_secret(glob: str) -> bool:
    """True if a pattern names such a file on purpose: `@project/.env`, `*.pem`, but not `*`."""
    return looks_secret(glob.strip("*"))
