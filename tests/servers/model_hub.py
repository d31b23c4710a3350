"""A hub of model files on loopback, as huggingface_hub asks one; standard library only.

`with ModelHub({"owner/repo/file.gguf": b"…"}) as hub: hub.url` is what HF_ENDPOINT names.
"""

from __future__ import annotations

import hashlib
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from types import TracebackType

COMMIT = "0123456789abcdef0123456789abcdef01234567"


class ModelHub:
    """Serves `/OWNER/REPO/resolve/main/FILE` with ranges, as the hub does for large files."""

    def __init__(self, files: dict[str, bytes]) -> None:
        self.files = files
        self.refusal: tuple[int, str] | None = None
        """Status and X-Error-Code of every answer."""
        self.headers: dict[str, str] = {}
        """Of every answer, in place of the usual ones."""
        self.cut_after: int | None = None
        """The next body ends after so many bytes, once."""
        self.asked: list[tuple[str, str | None]] = []
        """Method and Range of every request."""
        self._server = ThreadingHTTPServer(("127.0.0.1", 0), self._handler())
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.01,))

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self._server.server_port}"

    def __enter__(self) -> ModelHub:
        self._thread.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        at: TracebackType | None,
    ) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()

    def _handler(self) -> type[BaseHTTPRequestHandler]:
        hub = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_HEAD(self) -> None:
                hub.answer(self)

            def do_GET(self) -> None:
                hub.answer(self)

            def log_message(self, format: str, *args: object) -> None:
                pass

        return Handler

    def answer(self, handler: BaseHTTPRequestHandler) -> None:
        """Answer one request; the connection ends with it."""
        asked = handler.headers.get("Range")
        self.asked.append((handler.command, asked))
        data = self.files.get(handler.path.strip("/").replace("/resolve/main/", "/"))
        status, code = self.refusal or ((200, "") if data is not None else (404, "EntryNotFound"))
        body = data if data is not None and status == 200 else b""
        first = int(asked.removeprefix("bytes=").rstrip("-")) if asked and body else 0
        handler.send_response(206 if first else status)
        etag = f'"{hashlib.sha256(body).hexdigest()}"'
        headers = {"X-Repo-Commit": COMMIT, "ETag": etag, "X-Linked-Size": str(len(body))}
        headers |= {"X-Error-Code": code} if code else {}
        for header in (headers | self.headers).items():
            handler.send_header(*header)
        handler.send_header("Content-Length", str(len(body) - first))
        if first:
            handler.send_header("Content-Range", f"bytes {first}-{len(body) - 1}/{len(body)}")
        handler.send_header("Connection", "close")
        handler.end_headers()
        if handler.command == "GET":
            last, self.cut_after = self.cut_after, None
            handler.wfile.write(body[first:last])
        handler.close_connection = True
