"""What a tree of processes is and takes: its members, memory, and the disk it fills. Reads only.

Linux reads /proc; elsewhere a tree is not known and its lists are empty. Runs in the supervisor:
imports nothing heavy.
"""

import os

_PAGE = os.sysconf("SC_PAGE_SIZE") if hasattr(os, "sysconf") else 4096


def _read(path: str) -> bytes:
    try:
        with open(path, "rb", buffering=0) as file:
            return file.read(65536)
    except OSError:
        return b""


def has_children_files() -> bool:
    """Whether the kernel tells the children of a process."""
    return os.path.exists(f"/proc/self/task/{os.getpid()}/children")


def children(pid: int) -> list[int]:
    """The children of a process's first thread, where the kernel tells them."""
    return [int(n) for n in _read(f"/proc/{pid}/task/{pid}/children").split()]


def descendants(root: int, *, quick: bool) -> list[int]:
    """All living descendants of a process, nearest first; not itself.

    Args:
        root: the process.
        quick: the kernel tells the children of a process; otherwise all processes are looked at.
    """
    if not quick:
        return _descendants_by_parents(root)
    found: list[int] = []
    waiting = [root]
    while waiting:
        pid = waiting.pop()
        try:
            threads = os.listdir(f"/proc/{pid}/task")
        except OSError:
            continue
        for thread in threads:
            born = [int(n) for n in _read(f"/proc/{pid}/task/{thread}/children").split()]
            found += born
            waiting += born
    return found


def _descendants_by_parents(root: int) -> list[int]:
    by_parent: dict[int, list[int]] = {}
    try:
        names = os.listdir("/proc")
    except OSError:
        return []
    for name in names:
        if name.isdigit():
            # The name of a program may hold anything; after its last bracket come state and parent.
            fields = _read(f"/proc/{name}/stat").rpartition(b")")[2].split()
            if len(fields) > 1:
                by_parent.setdefault(int(fields[1]), []).append(int(name))
    found: list[int] = []
    waiting = [root]
    while waiting:
        below = by_parent.pop(waiting.pop(), [])
        found += below
        waiting += below
    return found


def memory_bytes(pids: list[int], limit_bytes: int) -> int:
    """What processes take together; looked at closely only when a rough look is over the limit."""
    pages = 0
    for pid in pids:
        fields = _read(f"/proc/{pid}/statm").split()
        pages += int(fields[1]) if len(fields) > 1 else 0
    if pages * _PAGE <= limit_bytes:
        return pages * _PAGE
    return sum(_own_share(pid) for pid in pids)


def _own_share(pid: int) -> int:
    # What forked children share with their parent counts once.
    lines = _read(f"/proc/{pid}/smaps_rollup").splitlines()
    wanted = [line for line in lines if line.startswith((b"Pss_Anon:", b"Pss_Shmem:"))]
    if wanted:
        return sum(int(line.split()[1]) * 1024 for line in wanted)
    # It may not be looked at so closely: what it maps from files is left out, no more.
    fields = _read(f"/proc/{pid}/statm").split()
    return (int(fields[1]) - int(fields[2])) * _PAGE if len(fields) > 2 else 0


def disk_use(folders: list[str], most_entries: int) -> tuple[int, int]:
    """Bytes on disk and entries below some folders; stops counting at so many entries."""
    size = entries = 0
    waiting = list(folders)
    while waiting and entries <= most_entries:
        try:
            with os.scandir(waiting.pop()) as found:
                for entry in found:
                    entries += 1
                    if entries > most_entries:
                        break
                    if entry.is_dir(follow_symlinks=False):
                        waiting.append(entry.path)
                    else:
                        size += entry.stat(follow_symlinks=False).st_blocks * 512
        except OSError:
            continue
    return size, entries


def unlinked_bytes(pids: list[int]) -> int:
    """What processes hold open on disk without a name."""
    seen: dict[tuple[int, int], int] = {}
    for pid in pids:
        try:
            numbers = os.listdir(f"/proc/{pid}/fd")
        except OSError:
            continue
        for number in numbers:
            try:
                state = os.stat(f"/proc/{pid}/fd/{number}")
            except OSError:
                continue
            if state.st_nlink == 0 and state.st_mode & 0o170000 == 0o100000:
                seen[state.st_dev, state.st_ino] = state.st_blocks * 512
    return sum(seen.values())
