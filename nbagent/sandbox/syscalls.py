"""The seccomp filter of an isolated script, as BPF. Pure: installs nothing.

What Landlock leaves open (sockets, chmod, signals before ABI 6, kernel interfaces) is closed here.
Numbers are those of the kernel's headers: asm/unistd_64.h (x86_64), asm-generic/unistd.h (aarch64).
Runs in the supervisor too: imports nothing heavy.
"""

import errno
import struct

ARCHES = {"x86_64": 0xC000003E, "aarch64": 0xC00000B7}
_NEWEST = 462
"""The last number that was looked at (mseal); what came later is answered with ENOSYS."""
_ALLOW, _KILL, _ERROR = 0x7FFF0000, 0x80000000, 0x00050000

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
# Answered as a kernel without them would: libraries fall back.
_UNKNOWN = {
    "io_uring_setup": (425, 425),
    "io_uring_enter": (426, 426),
    "io_uring_register": (427, 427),
    "clone3": (435, 435),
    "memfd_create": (319, 279),
    "memfd_secret": (447, 447),
}
# Landlock knows nothing of these. They do nothing and say that they did: copying files asks for
# them all the time.
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


def program(machine: str, *, landlock_abi: int, pid: int) -> bytes | None:
    """The filter for a machine; None when its calls are not known here.

    Args:
        machine: as `os.uname().machine` says it.
        landlock_abi: what the kernel's Landlock stops already; 0 for none.
        pid: the process that the filter is for; before ABI 6 it may signal itself only.
    """
    if machine not in ARCHES:
        return None
    column = 0 if machine == "x86_64" else 1
    code = [_load(4), _jump(0x15, ARCHES[machine], 1, 0), _give(_KILL), _load(0)]
    if column == 0:
        # The x32 table has the same calls under other numbers.
        code += [_jump(0x35, 0x40000000, 0, 1), _refuse(errno.EPERM)]
    code += [_jump(0x35, _NEWEST + 1, 0, 1), _refuse(errno.ENOSYS)]
    for table, error in (
        (_REFUSED, errno.EPERM),
        (_UNKNOWN, errno.ENOSYS),
        (_PRETENDED, 0),
        (_ATTRIBUTES, errno.ENOTSUP),
    ):
        for numbers in table.values():
            code += _rule(numbers[column], [_refuse(error)])
    for numbers in _ONLY_ITSELF.values():
        code += _rule(numbers[column], _unless(0, (0,)))
    code += _always(column)
    if landlock_abi < 6:
        code += _without_scopes(column, pid)
    if landlock_abi < 3:
        code += _without_truncate(column)
    return b"".join([*code, _give(_ALLOW)])


def _always(column: int) -> list[bytes]:
    own_priority = [_argument(0), _jump(0x15, 0, 1, 0), _refuse(errno.EPERM), *_unless(1, (0,))]
    # A datagram pair can send to any address; a connected stream cannot.
    pair = [
        *(_argument(0), _jump(0x15, 1, 1, 0), _refuse(errno.EPERM)),
        *(_argument(1), _mask(0xF)),
        *(_jump(0x15, 1, 1, 0), _jump(0x15, 5, 0, 1), _give(_ALLOW), _refuse(errno.EPERM)),
    ]
    spaces = [_argument(0), _jump(0x45, _NAMESPACES, 0, 1), _refuse(errno.EPERM), _give(_ALLOW)]
    # F_SETOWN and F_SETOWN_EX let the kernel send signals in the script's name.
    owners = _if_any(1, (8, 15))
    return [
        *_rule((141, 140)[column], own_priority),
        *_rule((53, 199)[column], pair),
        *_rule((56, 220)[column], spaces),
        *_rule((16, 29)[column], _if_any(1, _CONTROLS)),
        *_rule((72, 25)[column], owners),
        # PR_SET_DUMPABLE would hide a process from its supervisor.
        *_rule((157, 167)[column], _if_any(0, (4,))),
    ]


def _without_scopes(column: int, pid: int) -> list[bytes]:
    code: list[bytes] = []
    for name, numbers in _SIGNALS.items():
        code += _rule(numbers[column], _unless(0, (0, pid) if name == "kill" else (pid,)))
    for numbers in _QUEUED_SIGNALS.values():
        code += _rule(numbers[column], [_refuse(errno.EPERM)])
    return code


def _without_truncate(column: int) -> list[bytes]:
    def flags(argument: int) -> list[bytes]:
        # Opening to read and to truncate (O_TRUNC without O_WRONLY or O_RDWR).
        test = [_argument(argument), _mask(0x203), _jump(0x15, 0x200, 0, 1)]
        return [*test, _refuse(errno.EPERM), _give(_ALLOW)]

    return [
        *_rule((76, 45)[column], [_refuse(errno.EPERM)]),
        *_rule((2, None)[column], flags(1)),
        *_rule((257, 56)[column], flags(2)),
        *_rule((437, 437)[column], [_refuse(errno.ENOSYS)]),
    ]


def _rule(number: int | None, body: list[bytes]) -> list[bytes]:
    """The body, which ends the filter in every branch, for one call."""
    return [] if number is None else [_jump(0x15, number, 0, len(body)), *body]


def _unless(argument: int, values: tuple[int, ...]) -> list[bytes]:
    """Refuse unless an argument is one of these."""
    tests = [_jump(0x15, value, len(values) - at, 0) for at, value in enumerate(values)]
    return [_argument(argument), *tests, _refuse(errno.EPERM), _give(_ALLOW)]


def _if_any(argument: int, values: tuple[int, ...]) -> list[bytes]:
    """Refuse when an argument is one of these."""
    tests = [_jump(0x15, value, len(values) - at, 0) for at, value in enumerate(values)]
    return [_argument(argument), *tests, _give(_ALLOW), _refuse(errno.EPERM)]


def _instruction(code: int, yes: int, no: int, value: int) -> bytes:
    return struct.pack("<HBBI", code, yes, no, value)


def _load(offset: int) -> bytes:
    return _instruction(0x20, 0, 0, offset)


def _argument(number: int) -> bytes:
    # The low half: every argument looked at here is a 32-bit one.
    return _load(16 + 8 * number)


def _mask(value: int) -> bytes:
    return _instruction(0x54, 0, 0, value)


def _jump(code: int, value: int, yes: int, no: int) -> bytes:
    return _instruction(code, yes, no, value)


def _give(action: int) -> bytes:
    return _instruction(0x06, 0, 0, action)


def _refuse(error: int) -> bytes:
    return _give(_ERROR | error)
