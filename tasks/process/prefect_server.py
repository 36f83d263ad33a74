"""Prefect's server of a run that has no other: its own process, on a port of its own, gone when the run ends.

Prefect starts one by itself too, and imports the whole server into the run first to do so, which takes as long as the server itself.
"""

from __future__ import annotations

import atexit
import contextlib
import os
import shutil
import signal
import socket
import sqlite3
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request
from dataclasses import dataclass, field
from importlib.metadata import version
from pathlib import Path

from ratchet.components.errors import ServiceError
from ratchet.tasks.process.turns import held

STARTUP = "PREFECT_SERVER_EPHEMERAL_STARTUP_TIMEOUT_SECONDS"
"""How long it may take, as Prefect's own setting has it."""
SETTINGS = {"PREFECT_UI_ENABLED": "0",  # its page is `ratchet ui`'s
            "PREFECT__SERVER_EPHEMERAL": "1", "PREFECT__SERVER_FINAL": "1"}  # no services that belong to a server of many runs
GRACE = 5.0


@dataclass
class PrefectServer:
    """A server that is starting or runs; `address` is that of its API. `unkept`: its new database, of which no copy is kept yet, and
    `making`: that it is being made, which ends when the server answers."""

    address: str
    process: subprocess.Popen[bytes]
    unkept: Path | None = None
    making: contextlib.ExitStack = field(default_factory=contextlib.ExitStack)

    def wait(self, seconds: float) -> None:
        """Until it answers. `ServiceError` when it ends or has not answered after `seconds`."""
        end = time.monotonic() + seconds
        while self.process.poll() is None and time.monotonic() < end:
            try:
                with urllib.request.urlopen(f"{self.address}/health", timeout=max(end - time.monotonic(), 0.1)):
                    break
            except (urllib.error.URLError, OSError):
                time.sleep(0.05)
        else:
            raise ServiceError(f"Prefect's own server did not start within {seconds:g} s: the machine is too busy; raise {STARTUP}, or start "
                               "`prefect server start` and set PREFECT_API_URL" if self.process.poll() is None else
                               f"Prefect's own server ended with exit code {self.process.returncode} before it answered; what it said stands above")
        if self.unkept:
            _keep(self.unkept)
        self.making.close()

    def stop(self) -> None:
        self.process.terminate()
        try:
            self.process.wait(GRACE)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()


def start(folder: Path) -> PrefectServer:
    """Start a server on a free port of this machine and make it this process's: PREFECT_API_URL names it from now on. Its database lies
    in `folder` unless Prefect is told otherwise.

    It ends with this process and is deaf to Ctrl-C: a terminal sends that to every process of the group, and a run that was
    stopped must still find its server to tell it so."""
    with contextlib.ExitStack() as turn:
        turn.enter_context(held(folder / "database.lock", f"Prefect's database of {folder}"))  # two servers that make one end each other
        database = folder / "prefect.db"
        unkept = None if database.exists() or _take(database) else database
        server = PrefectServer(*_begin(), unkept)
        if unkept:
            server.making = turn.pop_all()
    atexit.register(server.stop)
    os.environ["PREFECT_API_URL"] = server.address
    return server


def _begin() -> tuple[str, subprocess.Popen[bytes]]:
    """The address and the process of a server that starts."""
    with socket.create_server(("127.0.0.1", 0)) as listening:  # handed over open, so that nobody takes the port and early callers wait
        heard = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})  # what is started now inherits this
        try:
            process = subprocess.Popen(
                [sys.executable, "-m", "uvicorn", "--factory", "prefect.server.api.server:create_app", "--fd", str(listening.fileno()),
                 "--log-level", "error", "--lifespan", "on"],
                env={**os.environ, **SETTINGS}, pass_fds=[listening.fileno()])
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, heard)
        return f"http://127.0.0.1:{listening.getsockname()[1]}/api", process


def kept() -> Path:
    """Prefect's empty database, once one was made: its hundred migrations take longer than all else that a run starts."""
    caches = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(caches) / "ratchet" / f"prefect-{version('prefect')}.db"


def _take(database: Path) -> bool:
    """Begin with the kept database; whether it was there."""
    with contextlib.suppress(OSError, RuntimeError), tempfile.TemporaryDirectory(dir=database.parent) as folder:  # no home, no right to read
        os.replace(shutil.copyfile(kept(), Path(folder) / "copy"), database)
        return True
    return False


def _keep(database: Path) -> None:
    """Keep a copy for the next home, unless somebody's runs are in it already."""
    with contextlib.suppress(OSError, RuntimeError, sqlite3.Error):
        kept().parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=kept().parent) as folder:
            copy = Path(folder) / "copy"
            with contextlib.closing(sqlite3.connect(f"file:{database}?mode=ro", uri=True)) as ours, contextlib.closing(sqlite3.connect(copy)) as theirs:
                ours.backup(theirs)
                empty = not theirs.execute("SELECT count(*) FROM flow_run").fetchone()[0]
            if empty:
                os.replace(copy, kept())
