"""What a provider is: its server, its keys, and how a client for it is opened."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import aclosing
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from nbagent.contracts.errors import ModelError, UsageError
from nbagent.contracts.model import ChatChunk, ChatResponse, ClientNotice, ProviderConfig
from nbagent.contracts.ports import ChatClient
from nbagent.contracts.secrets import SecretKey
from nbagent.providers.address import host_of, origin

if TYPE_CHECKING:
    from nbagent.providers.wires.base import Wire
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from nbagent.providers.wires.base import Wire


_GENERIC = "LLM_"
"""Prefix of the variables that any provider may read."""


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
