"""Model files of the Hugging Face hub: found in its cache, downloaded when the person asks for it.

The package `huggingface_hub` does the work: its cache, its progress bar, `HF_ENDPOINT`, `HF_TOKEN`.
It goes on by itself where a connection was cut; a download that was stopped begins anew.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from nbagent.contracts.errors import ModelError, UsageError

HUB = "hf:"
INSTALL = "pip install 'nbagent[local]'"
SUGGESTED = """\
%agent pull OWNER/REPO/FILE.gguf downloads a model from the Hugging Face hub. Small models that
llama.cpp's documentation names for tool calls (docs/function-calling.md of ggml-org/llama.cpp);
none of them was downloaded or tried by the makers of nbagent:

  ibm-granite/granite-4.1-3b-GGUF/granite-4.1-3b-Q4_K_M.gguf            native tool calls
  bartowski/gemma-2-2b-it-GGUF/gemma-2-2b-it-Q8_0.gguf                  generic, 2.78 GB
  bartowski/Qwen2.5-7B-Instruct-GGUF/Qwen2.5-7B-Instruct-Q4_K_M.gguf    native, 4.68 GB

Sizes are those of the hub's pages; the size is told before a download begins."""
"""What `%agent pull` says without a name.

The documentation was read at commit edb465a901a36028919c4c4a3715b47bb8c88687 of
https://github.com/ggml-org/llama.cpp. It names repository and quantisation; the files bear the
names that the repositories give to these.
"""


def pull(name: str, tell: Callable[[str], None]) -> str:
    """Download a file into the hub's cache, unless it is there; returns its model id.

    Args:
        name: `OWNER/REPO/FILE.gguf`, also with `hf:` or `local:hf:` before it.
        tell: is given one line at a time: the size before the download, the id after it.

    Raises:
        UsageError: the package is missing, or the disk has no room.
        ModelError: no such name, or the hub, the network or the disk refused.
    """
    repo, file = split_name(name)
    hub = _hub()
    if hub is None:
        raise UsageError(f"downloading needs the package huggingface_hub; {INSTALL}")
    where: dict[str, Any] = {"endpoint": os.environ.get("HF_ENDPOINT") or None}
    try:
        found = hub.hf_hub_download(repo, file, dry_run=True, **where)
        if found.will_download:
            size = size_text(found.file_size) if found.file_size else "of unknown size"
            tell(f"downloading {file} ({size}) from {repo}")
            hub.hf_hub_download(repo, file, **where)
    except Exception as error:  # OSError and ValueError of many kinds
        status = getattr(getattr(error, "response", None), "status_code", None)
        said = " ".join(str(error).split())[:400] or type(error).__name__
        raise ModelError(
            f"{repo}/{file} was not downloaded: {said} Check the name and the connection; for a"
            " repository that is not public set HF_TOKEN.",
            code="LLM_AUTH_FAILED" if status in (401, 403) else "LLM_HTTP_ERROR",
            status=status,
            said=said,
        ) from error
    model_id = f"local:{HUB}{repo}/{file}"
    tell(f"{'downloaded' if found.will_download else 'already here'}: --model {model_id}")
    return model_id


def cached(name: str) -> Path | None:
    """Where a file of the hub lies in the cache; None when it was not downloaded."""
    repo, file = split_name(name)
    hub = _hub()
    found = hub.try_to_load_from_cache(repo, file) if hub else None
    return Path(found) if isinstance(found, str) else None


def downloaded() -> list[str]:
    """The GGUF files in the hub's cache, as `hf:OWNER/REPO/FILE.gguf`."""
    hub = _hub()
    try:
        repos: Any = hub.scan_cache_dir(hub.constants.HF_HUB_CACHE).repos if hub else ()
    except Exception:  # there is no cache yet, or somebody broke it
        return []
    return sorted(
        f"{HUB}{repo.repo_id}/{file.file_path.relative_to(revision.snapshot_path).as_posix()}"
        for repo in repos
        for revision in repo.revisions
        for file in revision.files
        if file.file_name.endswith(".gguf")
    )


def split_name(name: str) -> tuple[str, str]:
    """`OWNER/REPO/FILE.gguf` as repository and file. Raises ModelError for anything else."""
    plain = name.strip().removeprefix("local:").removeprefix(HUB)
    parts = plain.split("/")
    plain_parts = all(part.strip(".") and not part.startswith("-") for part in parts)
    if len(parts) < 3 or not plain_parts or not plain.endswith(".gguf") or "\\" in plain:
        raise ModelError(
            f"{name!r} names no model file of the hub; write OWNER/REPO/FILE.gguf,"
            " %agent pull alone lists three.",
            code="LLM_HTTP_ERROR",
        )
    return "/".join(parts[:2]), "/".join(parts[2:])


def _hub() -> Any:
    """The package, None where it is not installed. Imported late: it costs 0.1 s."""
    if find_spec("huggingface_hub") is None:
        return None
    import huggingface_hub

    return huggingface_hub


def size_text(size: int) -> str:
    """A number of bytes as a person reads it."""
    return f"{size / 1e9:.2f} GB" if size >= 1e9 else f"{size / 1e6:.1f} MB"
