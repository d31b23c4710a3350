"""A hub of model files on loopback, as huggingface_hub asks one.

`with ModelHub({"owner/repo/file.gguf": b"…"}) as hub: hub.origin` is what HF_ENDPOINT names.
"""

from __future__ import annotations

import hashlib

from servers.loopback import Loopback, Visit

COMMIT = "0123456789abcdef0123456789abcdef01234567"


class ModelHub(Loopback):
    """Serves `/OWNER/REPO/resolve/main/FILE` with ranges, as the hub does for large files."""

    def __init__(self, files: dict[str, bytes]) -> None:
        super().__init__()
        self.files = files
        self.refusal: tuple[int, str] | None = None
        """Status and X-Error-Code of every answer."""
        self.headers: dict[str, str] = {}
        """Of every answer, in place of the usual ones."""
        self.cut_after: int | None = None
        """The next body ends after so many bytes, once."""
        self.asked: list[tuple[str, str | None]] = []
        """Method and Range of every request."""

    async def answer(self, visit: Visit) -> None:
        """Answer one request; the connection ends with it."""
        asked = visit.headers.get("range")
        self.asked.append((visit.method, asked))
        data = self.files.get(visit.path.strip("/").replace("/resolve/main/", "/"))
        status, code = self.refusal or ((200, "") if data is not None else (404, "EntryNotFound"))
        body = data if data is not None and status == 200 else b""
        first = int(asked.removeprefix("bytes=").rstrip("-")) if asked and body else 0
        headers = {
            "X-Repo-Commit": COMMIT,
            "ETag": f'"{hashlib.sha256(body).hexdigest()}"',
            "X-Linked-Size": str(len(body)),
            **({"X-Error-Code": code} if code else {}),
            **self.headers,
            "Content-Length": str(len(body) - first),
            **({"Content-Range": f"bytes {first}-{len(body) - 1}/{len(body)}"} if first else {}),
            "Connection": "close",
        }
        lines = [f"HTTP/1.1 {206 if first else status} X"]
        lines += [f"{name}: {text}" for name, text in headers.items()]
        await visit.send("\r\n".join([*lines, "", ""]).encode())
        if visit.method == "GET":
            last, self.cut_after = self.cut_after, None
            await visit.send(body[first:last])
