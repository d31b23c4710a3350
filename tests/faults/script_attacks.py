"""Attacks that a script may try, as data: what it runs, and what is known of it without confinement.

Each prints GOT where it got what it should not; many leave traces in the world that the test looks
at. `w` holds the places of that world: files, listeners, a victim process.
"""

# ruff: noqa: E501 - an attack reads best in one line.
from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Plain = Literal["stopped", "open", "varies"]

PRELUDE = """
import json, os, signal, sys, time
w = json.loads(sys.argv[1])
OUT = os.environ["OUTPUT_DIR"]
X86 = os.uname().machine == "x86_64"
def got(what=""):
    print("GOT", what, flush=True)
def call(x86, arm, *args):
    if libc.syscall(ctypes.c_long(x86 if X86 else arm), *args) < 0:
        raise OSError(ctypes.get_errno(), "syscall")
    got()
def sleep():
    return os.posix_spawnp("sleep", ["sleep", w["naptime"]], os.environ)
"""
_ON_DEMAND = {
    "libc": "import ctypes; libc = ctypes.CDLL(None, use_errno=True)",
    "call(": "import ctypes; libc = ctypes.CDLL(None, use_errno=True)",
    "socket.": "import socket",
    "subprocess.": "import subprocess",
    "threading.": "import threading",
}


def script_of(attack: Attack) -> str:
    """The whole script; it imports what it needs, since there are many."""
    needed = {line for word, line in _ON_DEMAND.items() if word in attack.code}
    return "\n".join([PRELUDE, *sorted(needed), attack.code])


@dataclass(frozen=True, slots=True)
class Attack:
    """One attack."""

    name: str
    code: str
    plain: Plain = "open"
    """At the level `process`; `varies`: with the user (root, or not) and the kernel."""
    real: bool = True
    """Without confinement it prints GOT, and may be tried so."""
    ended: tuple[str, ...] = ()
    """By which limit it must end; empty: it need not."""


def _stopped(name: str, code: str, *, ended: tuple[str, ...] = (), real: bool = False) -> Attack:
    return Attack(name, code, "stopped", real, ended)


def _varies(name: str, code: str, *, real: bool = True) -> Attack:
    return Attack(name, code, "varies", real)


_FILES = (
    Attack("read a file outside", 'got(open(w["secret"]).read())'),
    Attack("list a home folder", 'got(os.listdir(w["home"]))'),
    Attack("read through a symlink", 'os.symlink(w["secret"], OUT + "/l"); got(open(OUT + "/l").read())'),
    Attack("read through /proc/self/root", 'got(open("/proc/self/root" + w["secret"]).read())'),
    Attack("write a new file outside", 'open(w["home"] + "/new", "w").write("x"); got()'),
    Attack("write to a file outside", 'open(w["canary"], "r+").write("x"); got()'),
    Attack("truncate a file outside", 'os.truncate(w["canary"], 0); got()'),
    Attack("open to truncate only", 'os.open(w["canary"], os.O_RDONLY | os.O_TRUNC); got()'),
    Attack("delete a file outside", 'os.unlink(w["canary"]); got()'),
    Attack("rename a file outside", 'os.rename(w["canary"], w["canary"] + "2"); got()'),
    Attack("move a file to the outputs", 'os.rename(w["secret"], OUT + "/s"); got()'),
    Attack("make a folder outside", 'os.mkdir(w["home"] + "/d"); got()'),
    Attack("make a device or pipe outside", 'os.mkfifo(w["home"] + "/p"); got()'),
    _varies("chmod outside", 'os.chmod(w["canary"], 0o777)', real=False),
    _varies("chown outside", 'os.chown(w["canary"], os.getuid(), os.getgid())', real=False),
    _varies("utime outside", 'os.utime(w["canary"], (0, 0))', real=False),
    Attack("set attributes outside", 'os.setxattr(w["canary"], "user.x", b"1"); got()', "varies", False),
    Attack("change a file of the skill", 'open(w["skill"] + "/SKILL.md", "a").write("x"); got()'),
    _varies("write into the packages", 'open(json.__file__, "r+b"); got()', real=False),
    Attack("hard link of a secret as output", 'os.link(w["secret"], OUT + "/s"); got()', "varies"),
    _stopped("symlink as output", 'os.symlink(w["secret"], OUT + "/s")'),
    _stopped("pipe as output", 'os.mkfifo(OUT + "/p")'),
    _stopped("odd names as outputs", 'open(OUT + "/a\\n\\u202eb", "w"); open(os.fsencode(OUT) + b"/\\xff", "w")'),
    _stopped("a closed folder as output", 'os.makedirs(OUT + "/c/x"); os.chmod(OUT + "/c", 0)'),
    _stopped("endless depth as output", """
os.chdir(OUT)
for _ in range(300):
    os.mkdir("d" * 60); os.chdir("d" * 60)
"""),
    Attack("open by handle", """
class H(ctypes.Structure):
    _fields_ = [("n", ctypes.c_uint), ("t", ctypes.c_int), ("b", ctypes.c_ubyte * 128)]
h = H(128); m = ctypes.c_int()
assert libc.name_to_handle_at(-100, w["secret"].encode(), ctypes.byref(h), ctypes.byref(m), 0) == 0
fd = libc.open_by_handle_at(os.open(w["skill"], os.O_RDONLY), ctypes.byref(h), 0)
if fd >= 0: got(os.read(fd, 99))
""", "varies", False),
)  # fmt: skip

_PROCESSES = (
    _varies("read a process's environment", 'got(open(f"/proc/{w[\'victim\']}/environ").read())'),
    _varies("read a process's memory", 'open(f"/proc/{w[\'victim\']}/mem", "rb"); got()'),
    _varies("read a process's open files", 'got(os.listdir(f"/proc/{w[\'victim\']}/fd"))'),
    _stopped("a key in the environment", 'assert not [v for v in os.environ.values() if "sk-" in v], got()'),
    _stopped("a key in its own /proc", 'assert b"sk-" not in open("/proc/self/environ", "rb").read(), got()'),
    _stopped("a key in the supervisor's /proc", 'assert b"sk-" not in open(f"/proc/{os.getppid()}/environ", "rb").read(), got()'),
    _varies("ptrace", 'libc.ptrace(0x4206, w["victim"], 0, 0) == 0 and got()'),
    _varies("process_vm_readv", """
b = ctypes.create_string_buffer(8); v = (ctypes.c_size_t * 2)(ctypes.addressof(b), 8)
a = int(open(f"/proc/{w['victim']}/maps").read().split("-")[0], 16); r = (ctypes.c_size_t * 2)(a, 8)
libc.process_vm_readv(w["victim"], v, 1, r, 1, 0) == 8 and got()
"""),
    _varies("signal a process", 'os.kill(w["victim"], signal.SIGCONT); got()'),
    _varies("signal by pidfd", 'signal.pidfd_send_signal(os.pidfd_open(w["victim"]), signal.SIGCONT); got()'),
    _varies("signal every process", "os.kill(-1, signal.SIGCONT)", real=False),
    _varies("signal by ownership of a file", """
import fcntl
r, o = os.pipe()
fcntl.fcntl(r, 8, w["victim"])
got()
"""),
    _varies("kill the supervisor", "os.kill(os.getppid(), 9); got(); time.sleep(30)", real=False),
    _varies("stop the supervisor", "os.kill(os.getppid(), 19); got(); time.sleep(30)", real=False),
    _varies("limit a process", 'import resource; resource.prlimit(w["victim"], resource.RLIMIT_NICE, (0, 0)); got()'),
    _varies("slow a process down", 'os.setpriority(os.PRIO_PROCESS, w["victim"], 1); got()'),
    _varies("bind a process to a processor", 'os.sched_setaffinity(w["victim"], {0}); got()'),
    _stopped("daemon that holds the pipes", """
if os.fork() == 0:
    os.setsid()
    if os.fork() == 0:
        os.execvp("sleep", ["sleep", w["naptime"]])
    os._exit(0)
"""),
    _stopped("daemon without its environment", """
if os.fork() == 0:
    os.setsid(); os.execve("/bin/sleep", ["sleep", w["naptime"]], {})
time.sleep(0.1)
"""),
    _stopped("orphans under a subreaper of its own", """
libc.prctl(36, 1, 0, 0, 0)
if os.fork() == 0:
    os.setsid(); sleep(); os._exit(0)
time.sleep(0.1)
"""),
    _stopped("fork bomb", "while True:\n    try: os.fork()\n    except OSError: pass", ended=("processes", "deadline")),
    _stopped("fork bomb of sleepers", "while True:\n    if os.fork() == 0: time.sleep(99)", ended=("processes",)),
    _stopped("fork bomb that flees", """
while True:
    try:
        if os.fork(): os.setsid(); os._exit(0)
    except OSError: pass
""", ended=("", "processes", "deadline")),
    _stopped("thread bomb", "while True: threading.Thread(target=time.sleep, args=(99,)).start()", ended=("processes", "memory", "deadline")),
    _stopped("deaf to signals", """
for n in set(signal.Signals) - {9, 19}: signal.signal(n, signal.SIG_IGN)
signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals()); time.sleep(99)
""", ended=("deadline",)),
    _stopped("stops itself", "os.kill(os.getpid(), 19)", ended=("deadline",)),
    _stopped("computes for ever", "while True: pass", ended=("deadline",)),
    _stopped("closes its pipes and sleeps", "os.close(1); os.close(2); time.sleep(99)", ended=("deadline",)),
    _stopped("waits for input", "sys.stdin.read() and got()"),
)  # fmt: skip

_AMOUNTS = (
    _stopped("memory", "a = []\nwhile True: a.append(bytearray(20_000_000))", ended=("memory",)),
    _stopped("memory of many processes", """
for _ in range(8):
    if os.fork() == 0: a = bytearray(b"x" * 45_000_000); time.sleep(99)
time.sleep(99)
""", ended=("memory",)),
    _stopped("shared memory of many processes", """
import mmap
for _ in range(8):
    if os.fork() == 0: m = mmap.mmap(-1, 45_000_000); m.write(b"x" * 45_000_000); time.sleep(99)
time.sleep(99)
""", ended=("memory",)),
    _stopped("flood of output", 'while True: os.write(1, b"x" * 65536)', ended=("output",)),
    _stopped("flood of errors", 'while True: os.write(2, b"x" * 65536)', ended=("output",)),
    _stopped("a large file", 'f = open(OUT + "/f", "wb", 0)\nwhile True: f.write(b"x" * 1_000_000)', ended=("files",)),
    _stopped("many files", """
for n in range(99999): open(f"{OUT}/{n}", "wb").close()
time.sleep(99)
""", ended=("files",)),
    _stopped("files without a name", """
a = []
for n in range(200): a.append(open(f"{OUT}/f", "w+b", 0)); a[-1].write(b"x" * 1_000_000); os.unlink(f"{OUT}/f")
time.sleep(99)
""", ended=("files",)),
    _stopped("raises its limits", """
import resource
hard = resource.getrlimit(resource.RLIMIT_FSIZE)[1]
resource.setrlimit(resource.RLIMIT_FSIZE, (hard + 1, hard + 1)); got()
"""),
    _stopped("core dump", "import resource; resource.getrlimit(resource.RLIMIT_CORE)[0] and got()"),
)  # fmt: skip

_NETWORK = (
    Attack("connect", 'socket.create_connection(("127.0.0.1", w["port"]), 2); got()'),
    Attack("listen", 'socket.create_server(("127.0.0.1", 0)); got()'),
    Attack("send a datagram", 'socket.socket(2, 2).sendto(b"x", ("127.0.0.1", w["udp"])); got()'),
    Attack("connect over IPv6", "socket.socket(10, 1); got()"),
    Attack("raw netlink", "socket.socket(16, 3, 0); got()"),
    Attack("connect to a socket file", 's = socket.socket(socket.AF_UNIX); s.connect(w["unix"]); got()'),
    Attack("connect to an abstract socket", 's = socket.socket(socket.AF_UNIX); s.connect("\\0" + w["abstract"]); got()'),
    Attack("a datagram out of a pair", 'a, b = socket.socketpair(1, 2); a.sendto(b"x", "\\0" + w["abstract"] + "d"); got()'),
    Attack("bash's /dev/tcp", 'subprocess.run(["bash", "-c", f"echo x > /dev/tcp/127.0.0.1/{w[\'port\']}"], check=True); got()'),
    Attack("look up a name", 'got(socket.getaddrinfo("example.com", 80))', "varies", False),
    _stopped("inherited files", """
mine = [n for n in os.listdir("/proc/self/fd") if int(n) > 2]
len(mine) > 1 and got(mine)
"""),
)  # fmt: skip

_KERNEL = (
    _varies("mount", 'libc.mount(b"x", OUT.encode(), b"tmpfs", 0, b"") == 0 and got()', real=False),
    _varies("user namespace", "libc.unshare(0x10000000) == 0 and got()", real=False),
    _varies("namespace by clone", """
pid = libc.syscall(ctypes.c_long(56 if X86 else 220), ctypes.c_long(0x10000011), None, None, None, None)
if pid == 0: os._exit(0)
pid > 0 and got()
""", real=False),
    _varies("chroot", "os.chroot(OUT); got()", real=False),
    _varies("io_uring", "call(425, 425, 8, ctypes.create_string_buffer(256))", real=False),
    _varies("bpf", "call(321, 280, 0, (ctypes.c_uint * 32)(2, 4, 8, 1), 72)", real=False),
    _varies("perf", "call(298, 241, (ctypes.c_uint * 32)(1, 128), 0, -1, -1, 0)", real=False),
    _varies("userfaultfd", "call(323, 282, 1)", real=False),
    _varies("keyrings", 'call(248, 217, b"user", b"nbagent-test", b"x", 1, -2)', real=False),
    _varies("a program without a file", 'os.memfd_create("x"); got()', real=False),
    _varies("personality", "call(135, 92, 0x0040000)", real=False),
    _varies("message queue", 'call(240, 180, b"nbagent-test", 0o102, 0o600, None)', real=False),
    Attack("shared memory that stays", """
n = libc.shmget(0, 4096, 0o1600)
if n >= 0: libc.shmctl(n, 0, None); got()
"""),
    Attack("shared memory as a file", """
from multiprocessing import shared_memory
m = shared_memory.SharedMemory(create=True, size=64); m.close(); m.unlink(); got()
"""),
    Attack("watch a folder", "n = libc.inotify_init()\nlibc.inotify_add_watch(n, w['home'].encode(), 2) >= 0 and got()"),
    Attack("write to a terminal", 'open(w["terminal"], "w").write("\\x1b]0;x\\x07"); got()'),
    _varies("type into a terminal", """
import fcntl
fcntl.ioctl(os.open(w["terminal"], os.O_RDWR | os.O_NOCTTY), 0x5412, b"x"); got()
""", real=False),
    _stopped("its own terminal", 'open("/dev/tty"); got()'),
    _stopped("setuid program", """
if w["setuid"]:
    subprocess.run([w["setuid"], "-u"], capture_output=True).stdout.strip() == b"0" and got()
"""),
)  # fmt: skip

_IMPORTS = (
    _stopped("a module in place of a standard one", 'import tarfile; "skill" in tarfile.__file__ and got()'),
    _stopped("sitecustomize in the skill", '"sitecustomize" in sys.modules and w["skill"] in str(sys.modules["sitecustomize"]) and got()'),
    _stopped("a module in place of an installed one", 'import pytest; w["skill"] in pytest.__file__ and got()'),
    _stopped("loader and Python variables", '[n for n in os.environ if n in ("LD_PRELOAD", "PYTHONSTARTUP", "PYTHONPATH", "BASH_ENV")] and got()'),
)  # fmt: skip

ATTACKS = (*_FILES, *_PROCESSES, *_AMOUNTS, *_NETWORK, *_KERNEL, *_IMPORTS)
