"""Sandbox child process: restricts itself, then runs one untrusted program. Executed as a script by
`components/environments/sandbox.py`.

Only the standard library is imported. In order: resource limits; user, network, mount, IPC and UTS namespaces
if the kernel allows them without root (optional); Landlock, which allows reading Python's library and no
writing; a seccomp allow-list, with EPERM for every other system call (no sockets, fork, threads, exec,
signals, ptrace, mounts). Then it attempts to escape, and runs the program only if all attempts fail.
"""

import ctypes
import json
import os
import platform
import resource
import signal
import sys

ALLOWED = {  # name: number on x86_64, on aarch64 (None: not available)
    "read": (0, 63),
    "write": (1, 64),
    "close": (3, 57),
    "fstat": (5, 80),
    "newfstatat": (262, 79),
    "lseek": (8, 62),
    "mmap": (9, 222),
    "mprotect": (10, 226),
    "munmap": (11, 215),
    "brk": (12, 214),
    "mremap": (25, 216),
    "madvise": (28, 233),
    "rt_sigaction": (13, 134),
    "rt_sigprocmask": (14, 135),
    "rt_sigreturn": (15, 139),
    "sigaltstack": (131, 132),
    "pread64": (17, 67),
    "openat": (257, 56),
    "open": (2, None),
    "stat": (4, None),
    "lstat": (6, None),
    "statx": (332, 291),
    "access": (21, None),
    "faccessat": (269, 48),
    "faccessat2": (439, 439),
    "readlink": (89, None),
    "readlinkat": (267, 78),
    "getcwd": (79, 17),
    "getdents64": (217, 61),
    "fcntl": (72, 25),
    "dup": (32, 23),
    "futex": (202, 98),
    "clock_gettime": (228, 113),
    "clock_getres": (229, 114),
    "clock_nanosleep": (230, 115),
    "nanosleep": (35, 101),
    "gettimeofday": (96, 169),
    "time": (201, None),
    "times": (100, 153),
    "getrusage": (98, 165),
    "getrandom": (318, 278),
    "select": (23, None),
    "pselect6": (270, 72),
    "poll": (7, None),
    "ppoll": (271, 73),
    "sched_yield": (24, 124),
    "uname": (63, 160),
    "getpid": (39, 172),
    "gettid": (186, 178),
    "getuid": (102, 174),
    "geteuid": (107, 175),
    "getgid": (104, 176),
    "getegid": (108, 177),
    "restart_syscall": (219, 128),
    "exit": (60, 93),
    "exit_group": (231, 94),
}
MACHINES = {
    "x86_64": (0, 0xC000003E),
    "aarch64": (1, 0xC00000B7),
}  # column in ALLOWED, the kernel's AUDIT_ARCH_*
KILL, REFUSE, ALLOW = (
    0x80000000,
    0x00050001,
    0x7FFF0000,
)  # SECCOMP_RET_KILL_PROCESS, _ERRNO with EPERM, _ALLOW
LANDLOCK_CREATE, LANDLOCK_ADD, LANDLOCK_RESTRICT = 444, 445, 446  # the same numbers on every machine
READ_FILE, READ_DIR = 1 << 2, 1 << 3
NEW_NAMESPACES = (
    0x10000000 | 0x40000000 | 0x20000000 | 0x08000000 | 0x04000000
)  # CLONE_NEW USER, NET, NS, IPC, UTS

libc = ctypes.CDLL(None, use_errno=True)


class SandboxUnavailable(Exception):
    """The kernel lacks a feature that the sandbox needs."""


class Filter(ctypes.Structure):
    _fields_ = [
        ("code", ctypes.c_uint16),
        ("yes", ctypes.c_uint8),
        ("no", ctypes.c_uint8),
        ("k", ctypes.c_uint32),
    ]


class Program(ctypes.Structure):
    _fields_ = [("length", ctypes.c_uint16), ("filters", ctypes.POINTER(Filter))]


class Ruleset(ctypes.Structure):
    _fields_ = [("files", ctypes.c_uint64), ("network", ctypes.c_uint64), ("scoped", ctypes.c_uint64)]


class PathRule(ctypes.Structure):
    _pack_ = 1
    _layout_ = "ms"
    _fields_ = [("allowed", ctypes.c_uint64), ("folder", ctypes.c_int32)]


def call(what: str, result: int) -> int:
    if result < 0:
        raise SandboxUnavailable(f"{what}: {os.strerror(ctypes.get_errno())}")
    return result


def limit(cpu_seconds: int, memory_bytes: int) -> None:
    """Set hard resource limits, which the program cannot raise."""
    for which, value in (
        (resource.RLIMIT_AS, memory_bytes),
        (resource.RLIMIT_CPU, cpu_seconds),
        (resource.RLIMIT_FSIZE, 0),
        (resource.RLIMIT_CORE, 0),
        (resource.RLIMIT_NOFILE, 64),
        (resource.RLIMIT_NPROC, 1),
    ):
        hard = resource.getrlimit(which)[1]
        value = value if hard == resource.RLIM_INFINITY else min(value, hard)
        resource.setrlimit(which, (value, value))


def only_read(folders: list[str]) -> None:
    """Landlock (Linux 5.13): allow reading `folders`; no other file access, no writing."""
    version = call("Landlock", libc.syscall(LANDLOCK_CREATE, None, ctypes.c_size_t(0), 1))
    rights = (
        (1 << 13) - 1 | (1 << 13) * (version >= 2) | (1 << 14) * (version >= 3) | (1 << 15) * (version >= 5)
    )
    rules = Ruleset(
        rights, 3 * (version >= 4), 3 * (version >= 6)
    )  # also TCP, abstract sockets and signals, if supported
    size = 8 if version < 4 else 16 if version < 6 else 24
    ruleset = call("Landlock", libc.syscall(LANDLOCK_CREATE, ctypes.byref(rules), ctypes.c_size_t(size), 0))
    for path in folders:
        opened = os.open(path, os.O_PATH | os.O_CLOEXEC)
        rule = PathRule(READ_FILE | READ_DIR if os.path.isdir(path) else READ_FILE, opened)
        call(f"Landlock {path}", libc.syscall(LANDLOCK_ADD, ruleset, 1, ctypes.byref(rule), 0))
        os.close(opened)
    call("Landlock", libc.syscall(LANDLOCK_RESTRICT, ruleset, 0))
    os.close(ruleset)


def only_call(column: int, architecture: int) -> None:
    """seccomp: allow the system calls in `ALLOWED`; another architecture's calling convention kills the
    process.
    """
    numbers = sorted(n[column] for n in ALLOWED.values() if n[column] is not None)
    lines = [
        (0x20, 0, 0, 4),
        (0x15, 1, 0, architecture),
        (0x06, 0, 0, KILL),
        (0x20, 0, 0, 0),
    ]  # load the architecture (BPF_LD), compare (BPF_JEQ), else return KILL (BPF_RET); load the call's number
    lines += [(0x15, len(numbers) - i, 0, number) for i, number in enumerate(numbers)]
    lines += [(0x06, 0, 0, REFUSE), (0x06, 0, 0, ALLOW)]
    program = Program(len(lines), (Filter * len(lines))(*(Filter(*line) for line in lines)))
    # PR_SET_SECCOMP, SECCOMP_MODE_FILTER
    call("seccomp", libc.prctl(22, 2, ctypes.byref(program), 0, 0))


def verify_confinement() -> None:
    """Attempt forbidden operations. `SandboxUnavailable` if one succeeds."""
    for what, attempt in (
        ("list /", lambda: os.listdir("/")),
        ("write to a file", lambda: os.open("/dev/null", os.O_WRONLY)),
        ("start a process", os.fork),
        ("signal its parent", lambda: os.kill(os.getppid(), 0)),
        ("open a socket", lambda: call("socket", libc.socket(2, 1, 0))),
    ):
        try:
            attempt()
        except (OSError, SandboxUnavailable):
            continue
        raise SandboxUnavailable(f"a confined process could still {what}")


def confine(parent: int, cpu_seconds: int, memory_bytes: int) -> None:
    column, architecture = MACHINES.get(platform.machine() if sys.platform == "linux" else "", (None, 0))
    if column is None:
        raise SandboxUnavailable(
            f"needs Linux on x86_64 or aarch64, this is {sys.platform} on {platform.machine()}"
        )
    call("prctl", libc.prctl(1, signal.SIGKILL, 0, 0, 0))  # PR_SET_PDEATHSIG: die with the parent thread
    if os.getppid() != parent:
        raise SandboxUnavailable("its parent process ended")
    libraries = [*sys.path, f"{sys.base_prefix}/lib", "/lib", "/lib64", "/usr/lib", "/usr/lib64"]
    folders = sorted({os.path.realpath(p) for p in libraries if p and os.path.exists(p)})
    libc.unshare(NEW_NAMESPACES)  # where the kernel lets us; Landlock and seccomp do not depend on it
    limit(cpu_seconds, memory_bytes)
    call("no_new_privs", libc.prctl(38, 1, 0, 0, 0))  # PR_SET_NO_NEW_PRIVS
    only_read(folders)
    only_call(column, architecture)
    verify_confinement()


def main() -> None:
    out = int(sys.argv[1])
    request = json.loads(sys.stdin.buffer.read())
    token = request["token"]  # a program that inspects the frames of its interpreter can read it (sandbox.py)
    try:
        confine(request["parent"], request["cpu_seconds"], request["memory_bytes"])
    except SandboxUnavailable as error:
        os.write(out, f"refused {error}\n".encode())
        os._exit(1)
    os.write(out, b"confined\n")
    verdict = f"passed {token}"
    try:
        exec(compile(request["program"], "program.py", "exec"), {"__name__": "__main__"})
    except BaseException as error:  # also SystemExit: a program that exits early has not completed
        verdict = f"failed {type(error).__name__}: {str(error)[:200]}"
    os.write(out, f"{verdict}\n".encode(errors="replace"))
    os._exit(0)


if __name__ == "__main__":
    main()
