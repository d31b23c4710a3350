"""Model files of the Hugging Face hub: found in its cache, downloaded when the person asks for it.

The package `huggingface_hub` does the work: its cache, its progress bar, `HF_ENDPOINT`, `HF_TOKEN`.
It goes on by itself where a connection was cut; a download that was stopped begins anew.
"""

from __future__ import annotations

import logging
import os
import re
from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from typing import Any

from nbagent.contracts.errors import ModelError
from nbagent.contracts.secrets import redact, register

HUB = "hf:"
_PART = r"\w[\w.-]*"
_OWNER = r"(?![^/]*(?:--|\.\.|\.git/))\w(?:[\w.-]{0,94}\w)?"
"""Also a repository: what the hub takes as their names."""
_NAME = re.compile(rf"(?:local:)?(?:{HUB})?({_OWNER}/{_OWNER})/((?:{_PART}/)*{_PART}\.gguf)")
INSTALL = "pip install 'nbagent[local]', in a checkout pip install -e '.[local]'"
SUGGESTED = """\
%agent pull OWNER/REPO/FILE.gguf downloads a model from the Hugging Face hub. Small models that
llama.cpp's documentation names for tool calls (docs/function-calling.md of ggml-org/llama.cpp);
none of them was downloaded or tried by the makers of nbagent:

  ibm-granite/granite-4.1-3b-GGUF/granite-4.1-3b-Q4_K_M.gguf            native tool calls
  bartowski/gemma-2-2b-it-GGUF/gemma-2-2b-it-Q8_0.gguf                  generic, 2.78 GB
  bartowski/Qwen2.5-7B-Instruct-GGUF/Qwen2.5-7B-Instruct-Q4_K_M.gguf    native, 4.68 GB

Sizes are those of the hub's pages; the size is told before a download begins."""
"""What `%agent pull` says without a name.

Read at commit edb465a901a36028919c4c4a3715b47bb8c88687 of https://github.com/ggml-org/llama.cpp,
which names repository and quantisation; the files bear the names that the repositories give them.
"""


def pull(name: str, tell: Callable[[str], None]) -> str:
    """Download OWNER/REPO/FILE.gguf, unless it is there; returns its model id.

    `tell` is given one line at a time: the size before the download, the id after it.
    """
    repo, file = split_name(name)
    hub = _hub()
    endpoint = os.environ.get("HF_ENDPOINT") or None
    here: object = None
    log = logging.getLogger("huggingface_hub")
    level = log.level
    log.setLevel(logging.CRITICAL)  # it writes down each attempt; one error follows the last
    try:
        url = hub.hf_hub_url(repo, file, endpoint=endpoint)
        offered = hub.get_hf_file_metadata(url, endpoint=endpoint)
        # The package makes paths of them.
        for word in (offered.etag, offered.commit_hash):
            if re.fullmatch(_PART, word or "") is None:
                raise ValueError(f"the hub names its content {word!r}, which is no hash.")
        here = hub.try_to_load_from_cache(repo, file, revision=offered.commit_hash)
        if not isinstance(here, str):
            tell(f"downloading {file} ({(offered.size or 0) / 1e6:,.1f} MB) from {repo}")
        hub.hf_hub_download(repo, file, endpoint=endpoint)
    except Exception as error:  # OSError and ValueError of many kinds
        here = hub.try_to_load_from_cache(repo, file)
        if not isinstance(here, str):
            register(os.environ.get("HF_TOKEN", ""))
            said = redact(" ".join(str(error).split()))[:400] or type(error).__name__
            raise refused(
                f"{repo}/{file} was not downloaded: {said.rstrip('.')}. Check the name and the"
                " connection; for a repository that is not public set HF_TOKEN."
            ) from error
    finally:
        log.setLevel(level)
    model_id = f"local:{HUB}{repo}/{file}"
    tell(f"{'already here' if isinstance(here, str) else 'downloaded'}: --model {model_id}")
    return model_id


def cached(name: str) -> Path:
    """Where a file of the hub lies in the cache. Raises ModelError when it is not there."""
    repo, file = split_name(name)
    found = _hub().try_to_load_from_cache(repo, file)
    if not isinstance(found, str):
        raise refused(f"{name!r} was not downloaded yet; run %agent pull {repo}/{file}.")
    return Path(found)


def downloaded() -> list[str]:
    """The GGUF files in the hub's cache, as `hf:OWNER/REPO/FILE.gguf`."""
    cache = Path(_hub("huggingface_hub.constants").HF_HUB_CACHE)
    found = cache.glob("models--*/snapshots/**/*.gguf")
    files = (path.relative_to(cache).as_posix() for path in found)
    folder = re.compile(r"models--(.+?)--(.+)/snapshots/[^/]+/")
    return sorted({folder.sub(rf"{HUB}\1/\2/", file) for file in files})


def split_name(name: str) -> tuple[str, str]:
    """`OWNER/REPO/FILE.gguf` as repository and file. Raises ModelError for anything else."""
    parts = _NAME.fullmatch(name.strip())
    if parts is None:
        text = f"{name!r} names no model file of the hub; write OWNER/REPO/FILE.gguf"
        raise refused(f"{text}, %agent pull alone lists three.")
    return parts[1], parts[2]


def refused(text: str) -> ModelError:
    """The error of a file that cannot be served."""
    return ModelError(text, code="LLM_HTTP_ERROR")


def _hub(module: str = "huggingface_hub") -> Any:
    try:
        return import_module(module)  # late: it costs 0.1 s
    except ImportError:
        text = f"models of the hub need the package huggingface_hub; {INSTALL}."
        raise refused(text) from None
