"""The row of a server that speaks one of our wires, and how its client is opened.

The built-in rows are in `servers`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from urllib.parse import urlsplit

from nbagent.contracts.errors import UsageError
from nbagent.contracts.model import ProviderConfig
from nbagent.contracts.ports import ChatClient
from nbagent.providers.address import UrlTemplate, host_of, origin
from nbagent.providers.batches.offer import BatchOffer
from nbagent.providers.keys import KeyHeader
from nbagent.providers.provider import Provider
from nbagent.providers.wires.base import Wire
from nbagent.providers.wires.chat_profiles import Profile

_UNKNOWN = Profile()


def _open_nothing(config: ProviderConfig) -> ChatClient:
    """Stand for `Server.open_client`, which needs the row it belongs to."""
    raise NotImplementedError


@dataclass(frozen=True, kw_only=True)
class Server(Provider):
    """The row of a server: all that nbagent knows about it. A new server is one row, and no code.

    Another package adds one by the entry point `nbagent.providers`, which names the row.
    """

    open: Callable[[ProviderConfig], ChatClient] = field(
        default=_open_nothing, repr=False, compare=False
    )
    """Open a `WireClient`, unless the row brings a client of its own."""
    wires: Callable[[Server, ProviderConfig], Sequence[Wire]]
    """The wires it speaks: a function of `server_wires`, or `lambda row, config: [MyWire()]` for
    wires of your own. A request goes over the first one that accepts it."""
    domain: str = ""
    """Domain of the server. A base URL there has the quirks and the key header of this row, also
    under the rows for servers of every vendor (`row_at`). It sends no key there: see `key_hosts`.
    Only the domains of built-in rows are known to these rows."""
    port: int = 0
    """Port that only this server uses. A base URL with it has the quirks of this row, as with
    `domain`."""
    base_url_template: UrlTemplate | None = None
    """Default server, if its URL has parts that each person sets, such as a region."""
    quirks: Profile = _UNKNOWN
    """How the server differs from an unknown compatible one."""
    row_at: Callable[[str], Server | None] | None = None
    """Row by base URL, for a row that people use for servers of every vendor: the quirks and the
    key header are those of that row."""
    key_header: KeyHeader | None = None
    """How the key is sent; None: as the wire says. Which key is sent, and where, does not depend
    on it."""
    batches: BatchOffer | None = None
    """Its batch API, if it has one in a form that nbagent knows."""

    def __post_init__(self) -> None:
        # A copy by `replace` passes the method of its original: bind it again.
        if getattr(self.open, "__func__", self.open) in (Server.open_client, _open_nothing):
            object.__setattr__(self, "open", self.open_client)

    def open_client(self, config: ProviderConfig) -> ChatClient:
        """Open a client of this server."""
        # Late import: listing the providers must not load the HTTP library.
        from nbagent.providers.client import WireClient

        config = replace(config, base_url=config.base_url or self.default_base_url)
        requires_key = self.needs_key and self.is_own_server(config.base_url)
        return WireClient(
            self.wires(self, config),
            config,
            provider=self.name,
            key_variables=self.key_variables if requires_key else (),
            key_header=self.key_header_for(config.base_url),
            start=self.start,
            default_path="/v1" if self.default_path is None else self.default_path,
        )

    @property
    def default_path(self) -> str | None:
        """Path of the default server's URL; None without one, and if each person sets parts."""
        template = self.base_url_template
        url = template.text if template is not None else self.default_base_url
        path = urlsplit(url or "").path.rstrip("/")
        return None if url is None or "{" in path else path

    def quirks_for(self, base_url: str | None) -> Profile:
        """Return the quirks of the server at this address, which may be one of another vendor."""
        row = self._row_for(base_url)
        if row is None:
            return _UNKNOWN
        if row.quirks.default_path is None:
            return replace(row.quirks, default_path=row.default_path)
        return row.quirks

    def key_header_for(self, base_url: str | None) -> KeyHeader | None:
        """Return the key header of the server at this address; None: as the wire says."""
        row = self._row_for(base_url)
        # A domain may also hold servers of other people (cloudapp.azure.com); `key_hosts` do not.
        if row is None or (row.key_hosts and not row.is_own_server(base_url)):
            return self.key_header
        return row.key_header

    def batches_at(self, base_url: str | None) -> BatchOffer | None:
        """Return the batch API of the server at this address; None if it has none.

        A server that no row knows may have one in the form of this row.
        """
        row = self._row_for(base_url)
        return self.batches if row is None else row.batches

    def _row_for(self, base_url: str | None) -> Server | None:
        return self if self.row_at is None else self.row_at(base_url or "")

    def is_at(self, base_url: str | None) -> bool:
        """True if this server answers at the address, as far as its domain or port says."""
        at = origin(base_url) or ""
        if self.port and at.endswith(f":{self.port}"):
            return True
        return bool(self.domain) and f".{host_of(at)}".endswith(f".{self.domain}")

    def resolve(self, overrides: ProviderConfig, environ: Mapping[str, str]) -> ProviderConfig:
        """Fill in server, key and model; a template's parts come from the environment.

        Raises:
            UsageError: no server is named and there is no default one, or a part is not set.
        """
        config = super().resolve(overrides, environ)
        if config.base_url is None and self.base_url_template is not None:
            parts = {"project": config.project_id}
            base_url = self.base_url_template.fill(self.name, parts, environ)
            return super().resolve(replace(overrides, base_url=base_url), environ)
        if config.base_url is None:
            variables = " or ".join(self.base_url_variables) or "LLM_BASE_URL"
            raise UsageError(
                f"{self.name} has no default server: give its URL (base_url=…; in the panel the"
                f" field “Server”), or set {variables}."
            )
        return config

    def is_default_server(self, url: str | None) -> bool:
        """True for the server that is used if nobody names one."""
        template = self.base_url_template
        return template.matches(url) if template is not None else super().is_default_server(url)

    def is_own_server(self, url: str | None) -> bool:
        """True for the provider's default server, and for a server in its domains over TLS."""
        template = self.base_url_template
        if template is not None and template.matches(url):
            return True
        # No default server: `origin(None)` equals the origin of no address.
        return origin(url) is not None and super().is_own_server(url)
