"""Writes an exported text to the file that a person names."""

from __future__ import annotations

import os
from pathlib import Path

from nbagent.contracts.errors import UsageError
from nbagent.files.opening import LinkRefused, replace_named_file
from nbagent.settings.sources import named_path


def write_export(text: str, path: str | os.PathLike[str]) -> None:
    """Write a text to a file; an existing one is replaced.

    Raises:
        UsageError: the file is a link below the project, or cannot be written.
    """
    try:
        replace_named_file(named_path(path, "path", base=Path.cwd()), text.encode())
    except LinkRefused as error:
        raise UsageError(
            f"{path} is not written: {error.link.name} is a link, and links below the project are "
            f"not followed; name {os.path.realpath(path)} to write there"
        ) from None
    except OSError as error:
        raise UsageError(f"{path} cannot be written ({error.strerror})") from None
