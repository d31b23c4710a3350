"""The filter of calls, also for machines that are not here."""

from __future__ import annotations

import struct

import pytest

from nbagent.sandbox.syscalls import program


def decided(code: bytes, arch: int, number: int, *args: int) -> int:
    """Run the filter on a small machine for the instructions that it uses."""
    data = struct.pack("<IIQ6Q", number, arch, 0, *(*args, *[0] * (6 - len(args))))
    at, value = 0, 0
    while True:
        operation, yes, no, k = struct.unpack_from("<HBBI", code, at * 8)
        at += 1
        if operation == 0x06:
            return k
        if operation == 0x20:
            (value,) = struct.unpack_from("<I", data, k)
        elif operation == 0x54:
            value &= k
        else:
            tests = {0x15: value == k, 0x35: value >= k, 0x45: bool(value & k)}
            at += yes if tests[operation] else no


ALLOW, KILL = 0x7FFF0000, 0x80000000
REFUSED, UNKNOWN, PRETENDED = 0x50001, 0x50026, 0x50000
X86, ARM = ("x86_64", 0xC000003E), ("aarch64", 0xC00000B7)
# What the attacks do not try: another machine's numbers, and calls that no library makes.
CASES: dict[str, tuple[tuple[str, int], int, tuple[int, ...], int]] = {
    "read": (ARM, 63, (3,), ALLOW),
    "socket": (ARM, 198, (1, 1), REFUSED),
    "stream pair": (ARM, 199, (1, 1 | 0x80000), ALLOW),
    "datagram pair": (ARM, 199, (1, 2), REFUSED),
    "inet pair": (ARM, 199, (2, 1), REFUSED),
    "thread": (ARM, 220, (0x3D0F00,), ALLOW),
    "new user namespace": (ARM, 220, (0x10000011,), REFUSED),
    "fchmodat": (ARM, 53, (), PRETENDED),
    "own priority": (ARM, 140, (0, 0), ALLOW),
    "priority of another": (ARM, 140, (0, 9), REFUSED),
    "limits of another": (ARM, 261, (9,), REFUSED),
    "typing": (X86, 16, (0, 0x5412), REFUSED),
    "another control": (X86, 16, (0, 0x5401), ALLOW),
    "a call of tomorrow": (X86, 463, (), UNKNOWN),
    "x32": (X86, 0x40000000, (), REFUSED),
    "another machine": (("x86_64", 0x40000003), 0, (), KILL),
}


@pytest.mark.parametrize("case", CASES)
def test_the_filter_answers_each_call(case: str) -> None:
    (machine, arch), number, args, answer = CASES[case]
    code = program(machine, landlock_abi=7, pid=5)
    assert decided(code, arch, number, *args) == answer


def test_before_landlock_knew_signals_the_filter_does() -> None:
    name, arch = ARM
    for abi, others in ((3, REFUSED), (6, ALLOW)):
        code = program(name, landlock_abi=abi, pid=5)
        for pid, answer in ((5, ALLOW), (6, others), (0xFFFFFFFF, others)):
            assert decided(code, arch, 129, pid, 9) == answer
        assert decided(code, arch, 131, 6, 6, 9) == others
