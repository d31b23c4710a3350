"""What the person's rules keep from one call of an `fs` tool that looks at many files.

Owns which names of tools a path is judged under. What a rule means is the policy's, and all ways
to write a path are the mounts'.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from nbagent.contracts.errors import ToolError
from nbagent.files.mounts import FilePlace, Mounts
from nbagent.files.names import visible

HOST = "fs"
ALIASES = {"read_file": "fs.read", "write_file": "fs.write", "list_files": "fs.list"}
"""Older names, offered only when a package asks for them."""
Forbids = Callable[[str, str, Mapping[str, Any]], bool]
"""Whether a rule forbids a call, by tool, host and arguments."""


class _Watched(Mapping[str, Any]):
    """No arguments; knows whether somebody looked for one."""

    def __init__(self) -> None:
        self.seen = False

    def __getitem__(self, name: str) -> Any:
        self.seen = True
        raise KeyError(name)

    def __iter__(self) -> Iterator[str]:
        self.seen = True
        return iter(())

    def __len__(self) -> int:
        self.seen = True
        return 0


class Rules:
    """The rules of a run, asked for each path that a list or a search comes by.

    Args:
        forbids: whether a call is forbidden.
        offered: the words of the run; an older name among them is judged, too.
    """

    def __init__(self, forbids: Forbids, offered: Sequence[str] = ()) -> None:
        self._forbids = forbids
        self._aliases = [word for word in offered if word in ALIASES]

    def about(self, name: str, arguments: Mapping[str, Any]) -> Callable[[str], bool] | None:
        """Says of a path, as it is written, whether it is forbidden to this call.

        None where no rule looks at arguments: thousands of files need not be asked about.
        """
        asked = [(tool, arguments) for tool in self._names(name)]
        if name == "fs.search":
            # It shows what is in files.
            asked += [(tool, {}) for tool in self._names("fs.read")]
        asked = [(tool, given) for tool, given in asked if self._may_forbid(tool)]
        if not asked:
            return None
        forbids = self._forbids

        def forbidden(path: str) -> bool:
            return any(forbids(tool, HOST, {**given, "path": path}) for tool, given in asked)

        return forbidden

    def _may_forbid(self, tool: str) -> bool:
        """Whether there is a rule about it; a no without a look at the arguments holds for all."""
        watched = _Watched()
        return self._forbids(tool, HOST, watched) or watched.seen

    def _names(self, name: str) -> list[str]:
        return [name, *(alias for alias in self._aliases if ALIASES[alias] == name)]


def check_allowed(
    mounts: Mounts, place: FilePlace, forbidden: Callable[[str], bool] | None
) -> None:
    """Refuse what a walk begins with, by any of its forms.

    Raises:
        ToolError: `E_DENIED`.
    """
    if forbidden is not None and any(map(forbidden, mounts.forms(place))):
        raise ToolError(
            f"a rule of the person keeps {visible(place.text)} from you; ask the person",
            code="E_DENIED",
        )
