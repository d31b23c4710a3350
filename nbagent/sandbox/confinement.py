"""Confines a process by Landlock, seccomp and capabilities, called through ctypes.

Called in the child between fork and exec, in the supervisor, so it imports nothing heavy.
`interpreter` lists the files that a script may read.
"""

import ctypes
import os
import stat
import struct

from nbagent.sandbox.syscalls import program

_EXECUTE, _WRITE, _READ, _LIST = 1, 2, 4, 8
_REFER, _TRUNCATE, _IOCTL = 1 << 13, 1 << 14, 1 << 15
_FILE_RIGHTS = _EXECUTE | _WRITE | _READ | _TRUNCATE | _IOCTL
_ALL = (1 << 16) - 1
# A script may create only files and folders in its own folders: a device, socket, pipe or symlink
# could trick the process that later reads them. Nothing there can be executed.
_MAKE_SPECIAL = 1 << 6 | 1 << 9 | 1 << 10 | 1 << 11 | 1 << 12
RIGHTS = {
    "tree": _EXECUTE | _READ | _LIST,
    "names": _LIST,
    "device": _READ | _WRITE | _IOCTL,
    "write": _ALL & ~(_MAKE_SPECIAL | _EXECUTE | _IOCTL),
}
_CREATE, _ADD, _RESTRICT = 444, 445, 446
"""Numbers of Landlock's system calls, equal on all architectures."""
PARENT_DEATH, SUBREAPER, NO_NEW_PRIVILEGES = 1, 36, 38
"""Options of `prctl`: the signal when the parent ends; orphans of descendants become children; no
setuid program gives more than there is."""
_SECCOMP, _KEEP_CAPS = 22, 8
_BOUNDING_DROP, _AMBIENT = 24, 47
_DAC = 1 << 1 | 1 << 2
_KILL_CAP, _SETGID_CAP, _SETUID_CAP, _SETPCAP = 1 << 5, 1 << 6, 1 << 7, 1 << 8

_libc = ctypes.CDLL(None, use_errno=True)
_libc.syscall.restype = ctypes.c_long


def _checked(result: int, action: str) -> int:
    if result < 0:
        number = ctypes.get_errno()
        raise OSError(number, f"{action}: {os.strerror(number)}")
    return result


def prctl(option: int, argument2: int = 0, argument3: int = 0) -> None:
    """Call prctl; raises OSError."""
    numbers = (ctypes.c_ulong(n) for n in (argument2, argument3, 0, 0))
    _checked(_libc.prctl(ctypes.c_int(option), *numbers), f"prctl {option}")


def landlock_abi() -> int:
    """The version of Landlock of this kernel; 0 without Landlock."""
    try:
        return _checked(_libc.syscall(_CREATE, None, ctypes.c_size_t(0), ctypes.c_uint32(1)), "")
    except OSError:
        return 0


def restrict_files(grants: list[tuple[str, str]], abi: int) -> None:
    """Restrict the file system to these paths, and TCP and signals if the kernel supports it.

    A grant is a path, which may be missing, and a key of RIGHTS.
    """
    handled = (1 << 13) - 1
    for version, right in ((2, _REFER), (3, _TRUNCATE), (5, _IOCTL)):
        handled |= right if abi >= version else 0
    # Second: TCP bind and connect (ABI 4). Third: abstract sockets and signals (ABI 6).
    # https://docs.kernel.org/userspace-api/landlock.html
    attributes = struct.pack("<QQQ", handled, 3, 3)[: 24 if abi >= 6 else 16 if abi >= 4 else 8]
    size = ctypes.c_size_t(len(attributes))
    rules = _checked(_libc.syscall(_CREATE, attributes, size, ctypes.c_uint32(0)), "landlock")
    try:
        for path, kind in grants:
            _grant(rules, path, RIGHTS[kind] & handled)
        _checked(_libc.syscall(_RESTRICT, rules, ctypes.c_uint32(0)), "landlock")
    finally:
        os.close(rules)


def _grant(rules: int, path: str, rights: int) -> None:
    try:
        fd = os.open(path, os.O_PATH | os.O_CLOEXEC)
    except OSError:
        return
    try:
        if not stat.S_ISDIR(os.fstat(fd).st_mode):
            rights &= _FILE_RIGHTS
        if rights:
            rule = struct.pack("<Qi", rights, fd)
            _checked(_libc.syscall(_ADD, rules, ctypes.c_int(1), rule, ctypes.c_uint32(0)), path)
    finally:
        os.close(fd)


def filter_calls(machine: str, *, abi: int) -> None:
    """Install the seccomp filter in this process and its later children."""
    code = program(machine, landlock_abi=abi, pid=os.getpid())
    buffer = ctypes.create_string_buffer(code, len(code))
    header = struct.pack("@HxxxxxxQ", len(code) // 8, ctypes.addressof(buffer))
    code_buffer = ctypes.create_string_buffer(header, len(header))
    prctl(_SECCOMP, 2, ctypes.addressof(code_buffer))


def _capabilities() -> int:
    with open("/proc/self/status", "rb") as status:
        lines = [line for line in status if line.startswith(b"CapPrm:")]
    return int(lines[0].split()[1], 16) if lines else 0


def leave_root(uid: int) -> bool:
    """As root, become a user that owns nothing, but keep the right to pass file permissions.

    Limits of processes do not bind root, which may also signal and trace every process. False if
    this process is not root or lacks a capability; then nothing has changed.
    """
    if os.getuid() != 0:
        return False
    permitted = _capabilities()
    needed = 1 << 1 | _KILL_CAP | _SETGID_CAP | _SETUID_CAP | _SETPCAP
    if permitted & needed != needed:
        return False
    # Otherwise the change of user would clear the capabilities that the next steps need.
    prctl(_KEEP_CAPS, 1)
    try:
        os.setresuid(uid, uid, uid)
    except OSError:
        # This user namespace does not map the id (rootless containers).
        return False
    _set_capabilities(permitted, permitted)
    os.setgroups([])
    os.setresgid(uid, uid, uid)
    keep = permitted & _DAC
    for number in range(64):
        if not keep >> number & 1:
            try:
                prctl(_BOUNDING_DROP, number)
            # The kernel knows no capability of this number, and none above it.
            except OSError:
                break
    _set_capabilities(keep, keep)
    for number in (1, 2):
        if keep >> number & 1:
            # PR_CAP_AMBIENT_RAISE: no others survive the exec of an ordinary program.
            prctl(_AMBIENT, 2, number)
    return True


def _set_capabilities(effective: int, inheritable: int) -> None:
    # _LINUX_CAPABILITY_VERSION_3: two words of 32 bits for each set.
    header = struct.pack("=Ii", 0x20080522, 0)
    low, high = effective & 0xFFFFFFFF, effective >> 32
    low_kept, high_kept = inheritable & 0xFFFFFFFF, inheritable >> 32
    data = struct.pack("=6I", low, low, low_kept, high, high, high_kept)
    _checked(_libc.capset(header, data), "capset")
