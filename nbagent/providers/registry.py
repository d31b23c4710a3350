"""What a provider is, how one is found by name, and which key goes to which server.

Does no I/O and imports no HTTP library.
"""

from __future__ import annotations

import ipaddress
from collections.abc import AsyncGenerator, Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import aclosing
from dataclasses import dataclass, replace
from difflib import get_close_matches
from functools import cache, lru_cache
from importlib.metadata import EntryPoint, entry_points
from typing import TYPE_CHECKING, TypeVar
from urllib.parse import urlsplit, urlunsplit

from nbagent.contracts.chat import ChatChunk, ChatResponse, ClientNotice, ProviderConfig
from nbagent.contracts.errors import ModelError, NbagentError, UsageError
from nbagent.contracts.ports import ChatClient
from nbagent.contracts.secrets import SecretKey
from nbagent.shown.texts import error_line

if TYPE_CHECKING:
    from nbagent.providers.wires import Wire

T = TypeVar("T")
ENTRY_POINT_GROUP = "nbagent.providers"
_GENERIC = "LLM_"
"""Prefix of the variables that any provider may read."""
_PORTS = {"http": 80, "https": 443}
_ADDRESSES = 256
"""So many addresses are kept as they were read: each turn asks about the one of its server."""


Wires = Callable[[ProviderConfig], "Sequence[Wire]"]


@dataclass(frozen=True)
class Provider:
    """One place to get answers from. An entry point of another package exposes one."""

    name: str
    open: Callable[[ProviderConfig], ChatClient]
    """Makes a client from a resolved configuration; opens no connection yet."""
    key_variables: tuple[str, ...] = ()
    """Environment variables that may hold the key, first one wins."""
    base_url_variables: tuple[str, ...] = ()
    """Environment variables that may name the server, first one wins."""
    read_url: Callable[[str], str] = str.strip
    """How such a variable is read, where it is no plain URL."""
    default_base_url: str | None = None
    """None for a provider without a server of its own: it has to be named, or needs none."""
    default_model: str | None = None
    needs_key: bool = True
    """Whether the server at `default_base_url` answers only with a key."""
    key_hosts: tuple[str, ...] = ()
    """Domains whose servers get the provider's own key, beside its own server."""
    wires: Wires | None = None
    """The formats of a server, for a configuration; None for a provider that has none."""
    start: str = ""
    """The command that starts the server, for one of this machine: it is looked for there."""

    def resolve(self, overrides: ProviderConfig, environ: Mapping[str, str]) -> ProviderConfig:
        """Fill in server, key and model from the environment and the defaults.

        Raises:
            UsageError: the server has to be named.
        """
        named = self._urls(self.base_url_variables, environ)
        base_url = overrides.base_url or next(named, self.default_base_url)
        if base_url is None and self.wires is not None:
            variables = " or ".join(self.base_url_variables) or "LLM_BASE_URL"
            raise UsageError(
                f"{self.name} needs to know its server: give its URL (base_url=…; in the panel the"
                f" field “Server”), or set {variables}."
            )
        return replace(
            overrides,
            base_url=base_url,
            api_key=overrides.api_key or self.key_for(base_url, environ),
            default_model=overrides.default_model or self.default_model,
        )

    def key_for(self, base_url: str | None, environ: Mapping[str, str]) -> SecretKey | None:
        """The key of the environment that was made for this server, if there is one.

        A provider's own variable (`OPENAI_API_KEY`) goes to the provider's own server and to the
        one that its base URL variable (`OPENAI_BASE_URL`) names, nowhere else. `LLM_API_KEY` goes
        to any server, unless `LLM_BASE_URL` says which one it is for.
        """
        target = origin(base_url or self.default_base_url)
        for variable in self.key_variables:
            text = environ.get(variable, "").strip()
            if text and self._made_for(variable, target, environ):
                return SecretKey(text)
        return None

    def _made_for(self, variable: str, target: str | None, environ: Mapping[str, str]) -> bool:
        if variable.startswith(_GENERIC):
            named = next(self._urls([f"{_GENERIC}BASE_URL"], environ), None)
            return named is None or origin(named) == target
        own = [it for it in self.base_url_variables if not it.startswith(_GENERIC)]
        return self.owns(target) or target in map(origin, self._urls(own, environ))

    def owns(self, url: str | None) -> bool:
        """Whether a server is the provider's: its default one, or of its domains and over TLS."""
        at = origin(url)
        if at == origin(self.default_base_url):
            return True
        at_home = any(f".{host_of(at)}".endswith(f".{it}") for it in self.key_hosts)
        return at_home and (at or "").startswith("https://")

    def _urls(self, variables: Iterable[str], environ: Mapping[str, str]) -> Iterator[str]:
        """The servers that these variables name; each is read when it is asked for."""
        texts = (environ.get(variable, "").strip() for variable in variables)
        return (self.read_url(text) for text in texts if text)


@lru_cache(_ADDRESSES)
def origin(url: str | None) -> str | None:
    """Scheme, host and port of an address: what a key is made for. None for no address."""
    if not url:
        return None
    try:
        parts = urlsplit(url if "://" in url else f"https://{url}")
        port = parts.port or _PORTS.get(parts.scheme, 0)
    except ValueError:
        return f"unreadable:{url}"
    host = parts.hostname or ""
    return f"{parts.scheme}://{f'[{host}]' if ':' in host else host}:{port}"


def host_of(url: str | None) -> str:
    """The host of an address; empty where there is none or it cannot be read."""
    return urlsplit(origin(url) or "").hostname or ""


@lru_cache(_ADDRESSES)
def is_loopback(url: str | None) -> bool:
    """Whether the host of an address is this machine."""
    host = host_of(url)
    if host == "localhost" or host.endswith(".localhost"):
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def normal_base_url(text: str, *, home: str = "", endings: Iterable[str] = ()) -> str:
    """A base URL as it was meant: with a scheme, without an endpoint's path, with a path.

    Args:
        home: the path where a host was given alone.
        endings: paths of endpoints that people copy along.
    """
    text = text.strip()
    if "://" not in text:
        text = f"{'http' if is_loopback(text) else 'https'}://{text}"
    try:
        parts = urlsplit(text)
    except ValueError:
        raise UsageError(f"the base URL {text!r} cannot be read; check it.") from None
    path = given = parts.path.rstrip("/")
    for ending in endings:
        path = path.removesuffix(ending).rstrip("/")
    if not path and not given:
        path = home
    return urlunsplit((parts.scheme, parts.netloc, path, parts.query, ""))


async def whole_response(
    chunks: AsyncGenerator[ChatChunk], notify: Callable[[ClientNotice], None] | None = None
) -> ChatResponse:
    """Drain a stream and return its response: `chat()` made from the body of `chat_stream()`."""
    async with aclosing(chunks):
        async for chunk in chunks:
            if chunk.notice is not None and notify is not None:
                notify(chunk.notice)
            if chunk.done and chunk.response is not None:
                return chunk.response
    raise ModelError("the answer ended without a last chunk; try again.", code="LLM_BAD_RESPONSE")


def provider_names() -> tuple[str, ...]:
    """The names of all providers, built in and installed, in alphabetical order."""
    return tuple(sorted(_known()))


def find_provider(name: str) -> Provider:
    """The provider of this name.

    Raises:
        UsageError: there is none (the message names the nearest one and lists all), or its
            package is broken.
    """
    found = _known().get(name)
    if found is None:
        raise UsageError(_unknown(name))
    return _provider_of(found) if isinstance(found, EntryPoint) else found


def split_model_id(model_id: str) -> tuple[str, str]:
    """Split `openai:gpt-5.4` into provider and model. The model's name may contain colons.

    Raises:
        UsageError: it does not start with the name of a provider.
    """
    provider, colon, model = model_id.strip().partition(":")
    if not colon:
        raise UsageError(
            f"model {provider!r} names no provider; write it as provider:model, for example"
            f" openai:{provider or 'gpt-5.4'}. Known providers: {', '.join(provider_names())}."
        )
    if provider not in _known():
        raise UsageError(
            f"{_unknown(provider)} A model id is provider:model;"
            f" for a model that is itself called {model_id!r} write openai:{model_id}."
        )
    if not model:
        example = find_provider(provider).default_model or "NAME"
        raise UsageError(f"{model_id!r} names no model; write for example {provider}:{example}.")
    return provider, model


@cache
def _known() -> Mapping[str, Provider | EntryPoint]:
    """The built-in providers, and what other packages declare, which is not imported yet."""
    # Imported late: the rows name the wires, and a wire imports pydantic.
    from nbagent.providers.local import PROVIDER as LOCAL
    from nbagent.providers.offline import PROVIDER as OFFLINE
    from nbagent.providers.servers import PROVIDERS

    installed = {entry.name: entry for entry in entry_points(group=ENTRY_POINT_GROUP)}
    return installed | {provider.name: provider for provider in (*PROVIDERS, LOCAL, OFFLINE)}


def _provider_of(entry: EntryPoint) -> Provider:
    """The provider of another package: what its code raises or gives is checked here."""
    package = f"provider {entry.name!r} ({entry.value})"
    found: object = _called(entry.load, f"{package} cannot be loaded")
    if not isinstance(found, Provider):
        raise UsageError(f"{package} gave {type(found).__name__}, not a Provider; fix it.")

    def opened(config: ProviderConfig) -> ChatClient:
        client = _called(lambda: found.open(config), f"{package} cannot be opened")
        if not hasattr(client, "chat_stream"):
            raise UsageError(f"{package} gave {type(client).__name__}, not a client; fix it.")
        return client

    return replace(found, open=opened)


def _called(work: Callable[[], T], failed: str) -> T:
    try:
        return work()
    except (NbagentError, KeyboardInterrupt):
        raise
    except BaseException as error:  # a package may also end the process where it is imported
        why = " ".join(error_line(error).split())
        raise UsageError(f"{failed}: {why}; repair or uninstall its package.") from error


def _unknown(name: str) -> str:
    names = provider_names()
    nearest = get_close_matches(name, names, 1, 0.6)
    hint = f" Did you mean {nearest[0]!r}?" if nearest else ""
    return f"there is no provider {name!r}.{hint} Known providers: {', '.join(names)}."
