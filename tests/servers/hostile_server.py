"""A server on loopback that misbehaves as it is told: raw bytes, resets, silences, wrong TLS.

Each fault has its own base URL on one server, so that many can be met at once. It records what
it was asked. What the answers are is written in the tests; the bytes of good ones are here.
"""

from __future__ import annotations

import json
import re
import shutil
import ssl
import subprocess
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path
from typing import Any

from servers.dialects import chunked, dialect_of
from servers.loopback import Loopback, Visit

Fault = Callable[[Visit], Awaitable[None]]


class HostileServer(Loopback):
    """Serves faults by the first part of the path: `url("name")` is the base URL of one."""

    def __init__(self, faults: dict[str, Fault] | None = None, **how: Any) -> None:
        super().__init__(**how)
        self.faults = faults or {}
        self.visits: dict[str, list[Visit]] = {}

    def url(self, name: str) -> str:
        return f"{self.origin}/{name}/v1"

    def asked(self, name: str) -> int:
        """How many answers of a model a fault was asked for."""
        return sum(visit.method == "POST" for visit in self.visits.get(name, ()))

    async def answer(self, visit: Visit) -> None:
        # A proxy is asked for a whole address, or (CONNECT) for a host.
        path = re.sub(r"^https?://[^/]*", "", visit.path)
        name = path.lstrip("/").split("/")[0]
        visits = self.visits.setdefault(name, [])
        visits.append(visit)
        visit.nth = len(visits)
        await self.faults.get(name, fine)(visit)


async def fine(visit: Visit) -> None:
    """A good answer, streamed or whole as was asked; the connection stays open."""
    visit.keep = True
    await visit.send(answer(visit, "fine"))


def answer(visit: Visit, text: str) -> bytes:
    """A good answer as it was asked for."""
    wire = dialect_of(visit.path)
    if wire.asks_for_stream(visit.path, visit.body):
        return wire.head() + chunked(wire.stream(*wire.said(text))) + b"0\r\n\r\n"
    return whole(wire.whole(text))


def whole(
    body: Any, status: str = "200 OK", headers: Sequence[str] = (), kind: str = "application/json"
) -> bytes:
    """A response with a length. A body that is no bytes is sent as JSON."""
    data = body if isinstance(body, bytes) else json.dumps(body).encode()
    extra = "".join(f"{line}\r\n" for line in headers)
    head = f"HTTP/1.1 {status}\r\nContent-Type: {kind}\r\n{extra}Content-Length: {len(data)}\r\n"
    return head.encode("latin-1") + b"\r\n" + data


def certificate(folder: Path, *names: str) -> Path | None:
    """A self-signed certificate with its key in one file; None where there is no `openssl`."""
    openssl = shutil.which("openssl")
    if openssl is None:
        return None
    path = folder / f"{names[0]}.pem"
    alternatives = ",".join(f"{'IP' if n[0].isdigit() else 'DNS'}:{n}" for n in names)
    command = [openssl, "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256"]
    command += ["-nodes", "-days", "2", "-subj", f"/CN={names[0]}", "-keyout", str(path)]
    command += ["-addext", f"subjectAltName={alternatives}", "-out", f"{path}.crt"]
    subprocess.run(command, check=True, capture_output=True)
    path.write_bytes(path.read_bytes() + Path(f"{path}.crt").read_bytes())
    return path


def tls_of(certificate_file: Path) -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificate_file)
    return context
