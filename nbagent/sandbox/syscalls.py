"""The seccomp filter: a table of system calls, and the BPF program that is built from it.

It closes what Landlock leaves open: sockets, chmod, signals before ABI 6, kernel interfaces.
Numbers are from the kernel headers asm/unistd_64.h (x86_64) and asm-generic/unistd.h (aarch64).
"""

from __future__ import annotations

import errno
import struct


# Codes of classic BPF: 0x20 loads, 0x54 masks, 0x06 returns; jumps if 0x15 equal, 0x35 at least,
# 0x45 a common bit. https://docs.kernel.org/userspace-api/seccomp_filter.html
def _instruction(code: int, value: int, yes: int = 0, no: int = 0) -> bytes:
    return struct.pack("<HBBI", code, yes, no, value)


def _load(offset: int) -> bytes:
    return _instruction(0x20, offset)


def _argument(number: int) -> bytes:
    # Only the low half: every argument that is checked here has 32 bits.
    return _load(16 + 8 * number)


def _mask(value: int) -> bytes:
    return _instruction(0x54, value)


def _return_error(error: int) -> bytes:
    return _instruction(0x06, 0x00050000 | error)


_ALLOW = _instruction(0x06, 0x7FFF0000)
_KILL = _instruction(0x06, 0x80000000)
_REFUSE = _return_error(errno.EPERM)


def _among(argument: int, values: tuple[int, ...], yes: bytes, no: bytes) -> list[bytes]:
    """One result if an argument is among these values, another if it is not."""
    tests = [_instruction(0x15, value, len(values) - at, 0) for at, value in enumerate(values)]
    return [_argument(argument), *tests, no, yes]


ARCHES = {"x86_64": 0xC000003E, "aarch64": 0xC00000B7}
_NEWEST = 462
"""The last number that was looked at (mseal); what came later is answered with ENOSYS."""


# name: (x86_64, aarch64)
_REFUSED = {
    "connect": (42, 203),
    "bind": (49, 200),
    "listen": (50, 201),
    "socket": (41, 198),
    "ptrace": (101, 117),
    "process_vm_readv": (310, 270),
    "process_vm_writev": (311, 271),
    "kcmp": (312, 272),
    "pidfd_getfd": (438, 438),
    "process_madvise": (440, 440),
    "process_mrelease": (448, 448),
    "migrate_pages": (256, 238),
    "move_pages": (279, 239),
    "bpf": (321, 280),
    "perf_event_open": (298, 241),
    "userfaultfd": (323, 282),
    "keyctl": (250, 219),
    "add_key": (248, 217),
    "request_key": (249, 218),
    "mount": (165, 40),
    "umount2": (166, 39),
    "pivot_root": (155, 41),
    "chroot": (161, 51),
    "fsopen": (430, 430),
    "fsconfig": (431, 431),
    "fsmount": (432, 432),
    "fspick": (433, 433),
    "open_tree": (428, 428),
    "move_mount": (429, 429),
    "mount_setattr": (442, 442),
    "unshare": (272, 97),
    "setns": (308, 268),
    "open_by_handle_at": (304, 265),
    "init_module": (175, 105),
    "finit_module": (313, 273),
    "delete_module": (176, 106),
    "kexec_load": (246, 104),
    "kexec_file_load": (320, 294),
    "reboot": (169, 142),
    "acct": (163, 89),
    "swapon": (167, 224),
    "swapoff": (168, 225),
    "syslog": (103, 116),
    "sethostname": (170, 161),
    "setdomainname": (171, 162),
    "vhangup": (153, 58),
    "settimeofday": (164, 170),
    "clock_settime": (227, 112),
    "adjtimex": (159, 171),
    "clock_adjtime": (305, 266),
    "quotactl": (179, 60),
    "quotactl_fd": (443, 443),
    "personality": (135, 92),
    "lookup_dcookie": (212, 18),
    "ioprio_set": (251, 30),
    "iopl": (172, None),
    "ioperm": (173, None),
    "modify_ldt": (154, None),
    "shmget": (29, 194),
    "semget": (64, 190),
    "msgget": (68, 186),
    "mq_open": (240, 180),
    "shmat": (30, 196),
    "shmctl": (31, 195),
    "semop": (65, 193),
    "semctl": (66, 191),
    "msgsnd": (69, 189),
    "msgrcv": (70, 188),
    "msgctl": (71, 187),
    "mq_unlink": (241, 181),
    "semtimedop": (220, 192),
    "fanotify_init": (300, 262),
    "inotify_add_watch": (254, 27),
}
# Refused with ENOSYS, like a kernel without these calls: libraries then use an older call.
_UNKNOWN = {
    # A filter does not see the operations of io_uring.
    "io_uring_setup": (425, 425),
    "io_uring_enter": (426, 426),
    "io_uring_register": (427, 427),
    # Its flags are behind a pointer, which a filter cannot read; `clone` has them in a register.
    "clone3": (435, 435),
    "memfd_create": (319, 279),
    "memfd_secret": (447, 447),
}
# Landlock does not restrict these. They do nothing and report success, because copying files calls
# them all the time and would fail otherwise.
_PRETENDED = {
    "chmod": (90, None),
    "fchmod": (91, 52),
    "fchmodat": (268, 53),
    "fchmodat2": (452, 452),
    "chown": (92, None),
    "fchown": (93, 55),
    "lchown": (94, None),
    "fchownat": (260, 54),
    "utime": (132, None),
    "utimes": (235, None),
    "futimesat": (261, None),
    "utimensat": (280, 88),
}
_ATTRIBUTES = {
    "setxattr": (188, 5),
    "lsetxattr": (189, 6),
    "fsetxattr": (190, 7),
    "removexattr": (197, 14),
    "lremovexattr": (198, 15),
    "fremovexattr": (199, 16),
}
_ONLY_ITSELF = {
    "prlimit64": (302, 261),
    "sched_setaffinity": (203, 122),
    "sched_setattr": (314, 274),
    "sched_setscheduler": (144, 119),
    "sched_setparam": (142, 118),
}
_SIGNALS = {"kill": (62, 129), "tkill": (200, 130), "tgkill": (234, 131)}
_QUEUED_SIGNALS = {
    "rt_sigqueueinfo": (129, 138),
    "rt_tgsigqueueinfo": (297, 240),
    "pidfd_send_signal": (424, 424),
}
_NAMESPACES = 0x7E020000
"""CLONE_NEWNS, NEWCGROUP, NEWUTS, NEWIPC, NEWUSER, NEWPID, NEWNET."""


_CONTROLS = (
    0x5412,  # TIOCSTI: typing into a terminal
    0x541C,  # TIOCLINUX
    0x540E,  # TIOCSCTTY
    0x40086602,  # FS_IOC_SETFLAGS
    0x401C5820,  # FS_IOC_FSSETXATTR
    0x8901,  # FIOSETOWN
)
_Rule = tuple[tuple[int | None, int | None], list[bytes]]
"""The numbers of a call, and the code that answers it: every branch of it ends the filter."""


def _by_their_arguments() -> list[_Rule]:
    own_priority = [
        _argument(0),
        _instruction(0x15, 0, 1, 0),
        _REFUSE,
        *_among(1, (0,), _ALLOW, _REFUSE),
    ]
    # A datagram pair can send to any address; a connected stream cannot.
    pair = [
        *(_argument(0), _instruction(0x15, 1, 1, 0), _REFUSE),
        *(_argument(1), _mask(0xF)),
        *(_instruction(0x15, 1, 1, 0), _instruction(0x15, 5, 0, 1), _ALLOW, _REFUSE),
    ]
    return [
        *((numbers, _among(0, (0,), _ALLOW, _REFUSE)) for numbers in _ONLY_ITSELF.values()),
        ((141, 140), own_priority),
        ((53, 199), pair),
        ((56, 220), [_argument(0), _instruction(0x45, _NAMESPACES, 0, 1), _REFUSE, _ALLOW]),
        ((16, 29), _among(1, _CONTROLS, _REFUSE, _ALLOW)),
        # F_SETOWN and F_SETOWN_EX make the kernel send signals to other processes.
        ((72, 25), _among(1, (8, 15), _REFUSE, _ALLOW)),
        # PR_SET_DUMPABLE would hide a process from its supervisor.
        ((157, 167), _among(0, (4,), _REFUSE, _ALLOW)),
    ]


def _without_scopes(pid: int) -> list[_Rule]:
    own = {"kill": (0, pid), "tkill": (pid,), "tgkill": (pid,)}
    return [
        *((_SIGNALS[name], _among(0, pids, _ALLOW, _REFUSE)) for name, pids in own.items()),
        *((numbers, [_REFUSE]) for numbers in _QUEUED_SIGNALS.values()),
    ]


def _without_truncate() -> list[_Rule]:
    def flags(argument: int) -> list[bytes]:
        # Opening to read and to truncate (O_TRUNC without O_WRONLY or O_RDWR).
        test = [_argument(argument), _mask(0x203), _instruction(0x15, 0x200, 0, 1)]
        return [*test, _REFUSE, _ALLOW]

    # Its flags are behind a pointer, too.
    openat2 = [_return_error(errno.ENOSYS)]
    return [
        ((76, 45), [_REFUSE]),
        ((2, None), flags(1)),
        ((257, 56), flags(2)),
        ((437, 437), openat2),
    ]


def program(machine: str, *, landlock_abi: int, pid: int) -> bytes:
    """The filter for a machine of ARCHES, together with this version of Landlock.

    Before version 6, the process `pid` of the filter may signal only itself.
    """
    # struct seccomp_data: the call's number at 0, the architecture at 4, arguments from 16.
    # Kill at another architecture: a 32-bit call has other numbers.
    code = [_load(4), _instruction(0x15, ARCHES[machine], 1, 0), _KILL, _load(0)]
    if machine == "x86_64":
        # The x32 ABI has the same calls with other numbers, which would pass the rules below.
        code += [_instruction(0x35, 0x40000000, 0, 1), _REFUSE]
    code += [_instruction(0x35, _NEWEST + 1, 0, 1), _return_error(errno.ENOSYS)]
    tables = ((_REFUSED, errno.EPERM), (_UNKNOWN, errno.ENOSYS), (_ATTRIBUTES, errno.ENOTSUP))
    rules: list[_Rule] = [
        *(
            (numbers, [_return_error(error)])
            for table, error in tables
            for numbers in table.values()
        ),
        *((numbers, [_return_error(0)]) for numbers in _PRETENDED.values()),
        *_by_their_arguments(),
        *(_without_scopes(pid) if landlock_abi < 6 else ()),
        *(_without_truncate() if landlock_abi < 3 else ()),
    ]
    for numbers, body in rules:
        number = numbers[0 if machine == "x86_64" else 1]
        if number is not None:
            code += [_instruction(0x15, number, 0, len(body)), *body]
    return b"".join([*code, _ALLOW])
