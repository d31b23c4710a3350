"""What the supervisor is told about one script. Travels as a marshalled dict of plain values.

Imports nothing: the supervisor waits for it.
"""


class Plan:
    """All that the supervisor needs; it decides nothing that is not in here."""

    argv: list[str]
    env: dict[str, str]
    cwd: str
    timeout_s: float
    memory_bytes: int
    processes: int
    disk_bytes: int
    disk_entries: int
    folders: list[str]
    """The script's own: what it fills counts."""
    rlimits: dict[str, int]
    """By the names of `resource`, without RLIMIT_."""
    landlock: bool
    abi: int
    grants: list[tuple[str, str]]
    """(path, kind): see `walls.RIGHTS`."""
    offers_filter: bool
    """Put the seccomp filter where bubblewrap finds it."""
    leave_root: bool
    """Try to stop being root."""

    def __init__(self, **fields: object) -> None:
        self.__dict__.update(fields)
