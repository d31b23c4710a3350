"""A provider: its server, its keys, and how to open a client for it.

A server that speaks one of our wires is a `Server`, in `server_row`. Resolves server and key from
the environment.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace

from nbagent.contracts.model import ProviderConfig
from nbagent.contracts.ports import ChatClient
from nbagent.contracts.secrets import KeyFunction, SecretKey
from nbagent.providers.address import host_of, origin

_GENERIC = "LLM_"
"""Prefix of the environment variables that belong to no single provider."""


@dataclass(frozen=True)
class Provider:
    """One source of answers. Another package adds one by an entry point."""

    name: str
    open: Callable[[ProviderConfig], ChatClient]
    """Create a client from a resolved configuration; opens no connection yet."""
    key_variables: tuple[str, ...] = ()
    """Environment variables that may hold the key; the first one that is set wins."""
    base_url_variables: tuple[str, ...] = ()
    """Environment variables that may name the server; the first one that is set wins."""
    read_url: Callable[[str], str] = str.strip
    """Parse such a variable; differs only if its value is not a plain URL (`OLLAMA_HOST`)."""
    default_base_url: str | None = None
    """None if the provider has no server of its own: a person names one, or it needs none."""
    default_model: str | None = None
    needs_key: bool = True
    """True if the server at `default_base_url` answers only with a key."""
    key_hosts: tuple[str, ...] = ()
    """Domains whose servers also get the provider's own key."""
    key_function: KeyFunction | None = None
    """Returns the key where no variable holds one, such as the token of a login; it is sent where
    a variable's own key would be sent."""
    start: str = ""
    """Command that starts the server, if it runs on this machine; empty for remote servers."""
    suggests_model: bool = False
    """The first model of its server on this machine is the default model if no key is set."""
    price_name: str = ""
    """Its id in the price tables, if it differs from the name."""
    is_free: bool = False
    """The server runs the model itself, so that no token is paid for."""
    paid_models: Callable[[str, str | None], bool] | None = None
    """True for a model and a base URL that cost money at a server which is otherwise free."""
    missing_model: Callable[[str], str] | None = None
    """Returns why there is no model of this name, empty if there is one; None if only the server
    knows its models."""
    telemetry_name: str = ""
    """Its name by the conventions of OpenTelemetry, if it differs from the name."""

    def resolve(self, overrides: ProviderConfig, environ: Mapping[str, str]) -> ProviderConfig:
        """Fill in server, key and model from the environment and the defaults."""
        named = self._named_urls(self.base_url_variables, environ)
        base_url = overrides.base_url or next(named, self.default_base_url)
        api_key = overrides.api_key or self.key_for(base_url, environ)
        return replace(
            overrides,
            base_url=base_url,
            api_key=api_key,
            withheld_key="" if api_key else self._withheld_key(base_url, environ),
            default_model=overrides.default_model or self.default_model,
        )

    def key_for(
        self, base_url: str | None, environ: Mapping[str, str]
    ) -> SecretKey | KeyFunction | None:
        """Return the environment's key for this server, or the function for it; None without one.

        The key in a provider's own variable (`OPENAI_API_KEY`) is sent only to the provider's own
        server and to the server named in its base URL variable (`OPENAI_BASE_URL`). The key in
        `LLM_API_KEY` is sent to any server, or only to `LLM_BASE_URL` if that is set.
        """
        target = origin(base_url or self.default_base_url)
        for variable in self.key_variables:
            text = environ.get(variable, "").strip()
            if text and self._is_key_for(variable, target, environ):
                return SecretKey(text)
        if self.key_function and self._is_key_for(self.name, target, environ):
            return self.key_function
        return None

    def _withheld_key(self, base_url: str | None, environ: Mapping[str, str]) -> str:
        """Say which key of the environment is not sent to this server; empty if there is none."""
        target = origin(base_url)
        for variable in self.key_variables:
            if environ.get(variable, "").strip() and not self._is_key_for(
                variable, target, environ
            ):
                own = host_of(origin(self.default_base_url)) or f"{self.name}'s own"
                own = "the one in LLM_BASE_URL" if variable.startswith(_GENERIC) else own
                return (
                    f"{variable} is not sent to another server than {own};"
                    f" key_variable={variable!r} (--key-variable {variable}) sends it."
                )
        return ""

    def _is_key_for(self, variable: str, target: str | None, environ: Mapping[str, str]) -> bool:
        if variable.startswith(_GENERIC):
            named = next(self._named_urls([f"{_GENERIC}BASE_URL"], environ), None)
            return named is None or origin(named) == target
        own = [
            variable for variable in self.base_url_variables if not variable.startswith(_GENERIC)
        ]
        return self.is_own_server(target) or target in map(origin, self._named_urls(own, environ))

    def is_own_server(self, url: str | None) -> bool:
        """True for the provider's default server, and for a server in its domains over TLS."""
        at = origin(url)
        if at == origin(self.default_base_url):
            return True
        at_home = any(f".{host_of(at)}".endswith(f".{domain}") for domain in self.key_hosts)
        return at_home and (at or "").startswith("https://")

    def is_default_server(self, url: str | None) -> bool:
        """True for the server that is used if nobody names one."""
        return url == self.default_base_url

    def costs_nothing(self, model: str, base_url: str | None) -> bool:
        """True if no token of this model is paid for."""
        paid = self.paid_models is not None and self.paid_models(model, base_url)
        return self.is_free and not paid

    def _named_urls(self, variables: Iterable[str], environ: Mapping[str, str]) -> Iterator[str]:
        """Yield the servers named in these variables; each is parsed only when it is needed."""
        texts = (environ.get(variable, "").strip() for variable in variables)
        return (self.read_url(text) for text in texts if text)
