"""Sandbox of model-written code: every attack in `ATTACKS` fails inside and succeeds outside."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest

from ratchet.components.environments import confinement
from ratchet.components.environments.sandbox import execute
from ratchet.components.errors import SandboxError

ROOT = Path(__file__).resolve().parents[3]
SECRET = "hunter2-planted"

# Each prints its success only if the attack worked.
ATTACKS = {
    "fork": "import os\nif os.fork() == 0: os._exit(0)",
    "fork, past Python": "import ctypes\nassert ctypes.CDLL(None).fork() >= 0",
    "a process": "import subprocess\nsubprocess.run(['true'], check=True)",
    "exec": "import os, sys\nos.execv('/bin/true', ['true'])",
    "a thread": "import threading\nt = threading.Thread(target=print)\nt.start()",
    "memory": "held = bytearray(700 << 20)",
    "memory, past Python": "import mmap\nheld = mmap.mmap(-1, 700 << 20)",
    "network": "import socket\nsocket.create_connection(('127.0.0.1', {port}), 2).send(b'secret')",
    "unix socket": "import socket\nsocket.socket(socket.AF_UNIX)",
    "a file": "assert {secret!r} in open({file!r}).read()",
    "the environment": "import os\nassert {secret!r} in os.environ.values()",
    "its own environment": "assert {secret!r}.encode() in open('/proc/self/environ', 'rb').read()",
    "its parent's environment": "import os\nassert open(f'/proc/{{os.getppid()}}/environ', 'rb').read()",
    "a listing": "import os\nassert os.listdir({folder!r})",
    "a write": "open({folder!r} + '/written', 'w').write('x')",
    "an overwrite": "open({file!r}, 'a').write('x')",
    "a removal": "import os\nos.remove({folder!r} + '/victim')",
    "a truncation": "import os\nos.truncate({folder!r} + '/victim', 0)",
    "a rename": "import os\nos.rename({folder!r} + '/victim', {folder!r} + '/gone')",
    "a mode": "import os\nos.chmod({file!r}, 0o777)",
    "the temporary folder": "import tempfile\ntempfile.NamedTemporaryFile().write(b'x')",
    "shared memory": "from multiprocessing import shared_memory\nm = "
    "shared_memory.SharedMemory(create=True, size=8)\nm.unlink()",
    "its parent": "import os, signal\nos.kill(os.getppid(), 0)",
    "everybody": "import os, signal\nos.kill({pid}, 0)",
    "a trace": "import ctypes\nassert ctypes.CDLL(None).ptrace(0, 0, 0, 0) == 0",
}


@pytest.fixture
def planted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """Targets of the attacks: a secret in a file and in the environment, a listening server, a process to
    kill.
    """
    monkeypatch.setenv("API_TOKEN", SECRET)
    (tmp_path / "key").write_text(SECRET)
    (tmp_path / "victim").write_text("here")
    with socket.create_server(("127.0.0.1", 0)) as server:
        server.settimeout(0.2)
        yield {
            "secret": SECRET,
            "file": str(tmp_path / "key"),
            "folder": str(tmp_path),
            "port": server.getsockname()[1],
            "pid": os.getpid(),
            "server": server,
        }


@pytest.mark.parametrize("name", ATTACKS)
def test_attacks_fail_in_the_sandbox_and_succeed_outside(name: str, planted, tmp_path: Path) -> None:
    program = ATTACKS[name].format(**planted)
    assert not execute(program).passed
    if name == "network":
        with pytest.raises(TimeoutError):
            planted["server"].accept()
    assert (tmp_path / "key").read_text() == SECRET and (tmp_path / "victim").read_text() == "here"
    assert sorted(os.listdir(tmp_path)) == ["key", "victim"]
    free = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, env={**os.environ})
    assert free.returncode == 0, f"the attack is none: {free.stderr}"


CALLER = """
import os, sys
from ratchet.components.environments.sandbox import execute
program = "import time\\ntime.sleep(0.5)\\n" + sys.argv[1].replace("PARENT", str(os.getpid()))  # there long enough to be counted
verdict = execute(program, cpu_seconds=1, wall_seconds=60)
print("still here:", verdict)
"""  # noqa: E501


def session(leader: int) -> set[int]:
    """Living processes of a session. Forks stay in it, and a sandboxed process cannot leave it."""
    found = set()
    for entry in Path("/proc").iterdir():
        try:
            fields = (entry / "stat").read_text().rpartition(")")[2].split() if entry.name.isdigit() else []
        except OSError:  # gone meanwhile
            continue
        if fields and int(fields[3]) == leader and fields[0] != "Z":
            found.add(int(entry.name))
    return found


def attacked(program: str) -> tuple[str, int]:
    """Run a program in the sandbox from a caller in a separate process; returns the caller's last output and
    the maximum number of processes in the program's session.
    """
    caller = subprocess.Popen(
        [sys.executable, "-c", CALLER, program],
        cwd=ROOT,
        stdout=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    children = Path(f"/proc/{caller.pid}/task/{caller.pid}/children")
    leader, most = 0, 0
    while caller.poll() is None:
        leader = leader or next(map(int, children.read_text().split()), 0)
        now = session(leader) if leader else set()
        most = max(most, len(now))
        if len(now) > 1:
            os.killpg(leader, signal.SIGKILL)
        time.sleep(0.002)
    assert leader and not session(leader), "something of the program is left"
    assert caller.stdout is not None
    return caller.stdout.read(), most


@pytest.mark.parametrize(
    ("program", "why"),
    [
        ("import os\nwhile True: os.fork()", "PermissionError"),
        ("import os\nwhile True:\n    try: os.fork()\n    except OSError: pass", "CPU time"),
        ("import ctypes\nfork = ctypes.CDLL(None).fork\nwhile True: fork()", "CPU time"),
    ],
)
def test_sandbox_prevents_forks(program: str, why: str) -> None:
    output, most = attacked(program)
    assert output.startswith("still here: Verdict(passed=False") and why in output and most == 1


def test_process_count_detects_a_second_process() -> None:
    """Checks the process count itself with an unconfined fork."""
    free = subprocess.Popen(
        [sys.executable, "-c", "import os, time\nos.fork()\ntime.sleep(600)"], start_new_session=True
    )
    end = time.monotonic() + 60
    while len(session(free.pid)) < 2 and time.monotonic() < end:
        time.sleep(0.05)
    assert len(session(free.pid)) == 2
    os.killpg(free.pid, signal.SIGKILL)
    free.wait()
    while session(free.pid) and time.monotonic() < end:
        time.sleep(0.05)
    assert not session(free.pid)


@pytest.mark.parametrize(
    "program",
    [
        "import os\nos.kill(os.getppid(), 9)",
        "import os\nos.kill(PARENT, 9)",
        "import os\nos.killpg(os.getpgid(PARENT), 9)",
        "import signal\nsignal.pidfd_send_signal(__import__('os').pidfd_open(PARENT), 9)",
    ],
)
def test_sandbox_cannot_kill_its_parent(program: str) -> None:
    output, most = attacked(program)
    assert most == 1 and output.startswith("still here: Verdict(passed=False, reason='PermissionError")


def test_honest_code_passes_with_the_standard_library() -> None:
    verdict = execute(
        "import collections, datetime, decimal, functools, hashlib, heapq, itertools, math, random, re, "
        "string\n"
        "assert math.isqrt(50) == 7 and re.sub('a', 'b', 'aa') == 'bb' and hashlib.md5(b'x').hexdigest()\n"
        "assert datetime.date(2024, 2, 29).weekday() == 3 and random.Random(0).random() == "
        "random.Random(0).random()\n"
        "print('shown to nobody')"
    )
    assert verdict.passed, verdict.reason


def test_failing_code_reports_its_own_error() -> None:
    assert execute("assert 1 == 2, 'one is not two'").reason == "AssertionError: one is not two"
    assert execute("def f(:").reason.startswith("SyntaxError")


def test_cpu_and_wall_time_limits() -> None:
    verdict = execute(
        "while True:\n    try:\n        while True: pass\n    except BaseException: pass", cpu_seconds=1
    )
    assert not verdict.passed and "CPU time" in verdict.reason
    begun = time.monotonic()
    assert "timeout" in execute("import time\ntime.sleep(600)", wall_seconds=2).reason
    assert time.monotonic() - begun < 30


@pytest.mark.parametrize(
    "program",
    [
        "raise SystemExit(0)",
        "import os\nos._exit(0)",
        "import sys\nsys.exit()",
        "quit = exit = None\nimport os\nos.abort()",
        "import os\nfor fd in range(3, 64):\n    try: os.write(fd, b'passed 0\\n')\n    except OSError: "
        "pass\nos._exit(0)",
        "import os\nfor fd in range(3, 64):\n    try: os.write(fd, b'x' * 9999)\n    except OSError: pass\n",
        "import ctypes\nctypes.string_at(0)",
        "def f(n): return f(n + 1)\nimport sys\nsys.setrecursionlimit(10**9)\nf(0)",
    ],
)
def test_early_exit_does_not_pass(program: str) -> None:
    assert not execute(program, cpu_seconds=1, wall_seconds=5).passed


def test_sandbox_without_landlock_is_an_error() -> None:
    """Simulates a kernel without Landlock with a seccomp filter that denies the call."""
    script = (
        "from ratchet.components.environments import confinement as c\nfrom "
        "ratchet.components.environments.sandbox import execute\n"
        "lines = [(0x20, 0, 0, 0), (0x15, 0, 1, c.LANDLOCK_CREATE), (0x06, 0, 0, c.REFUSE), (0x06, 0, 0, "
        "c.ALLOW)]\n"
        "program = c.Program(4, (c.Filter * 4)(*(c.Filter(*line) for line in lines)))\n"
        "assert c.libc.prctl(38, 1, 0, 0, 0) == 0 and c.libc.prctl(22, 2, c.ctypes.byref(program), 0, 0) "
        "== 0\n"
        "execute('open(\"/etc/passwd\")')"
    )
    done = subprocess.run([sys.executable, "-c", script], cwd=ROOT, capture_output=True, text=True)
    assert (
        f"{SandboxError.__name__}: model-written code cannot be run safely on this machine (Landlock: "
        in done.stderr
    )


def test_broken_confinement_is_detected() -> None:
    with pytest.raises(confinement.SandboxUnavailable, match="list /"):
        confinement.verify_confinement()  # here, unconfined


def test_sandboxed_program_exits_with_its_caller() -> None:
    script = (
        "from ratchet.components.environments.sandbox import execute\nexecute('while True: pass', "
        "cpu_seconds=600, wall_seconds=600)"
    )
    caller = subprocess.Popen([sys.executable, "-c", script], cwd=ROOT)
    children = Path(f"/proc/{caller.pid}/task/{caller.pid}/children")
    end = time.monotonic() + 60
    while not children.read_text().split() and time.monotonic() < end:
        time.sleep(0.05)
    (child,) = map(int, children.read_text().split())
    time.sleep(0.5)
    os.kill(caller.pid, signal.SIGKILL)
    caller.wait()
    while Path(f"/proc/{child}").exists() and time.monotonic() < end:
        time.sleep(0.05)
    assert not Path(f"/proc/{child}").exists()
