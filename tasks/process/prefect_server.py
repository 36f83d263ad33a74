"""Local Prefect server of a run without a configured one: a separate process on a free port that ends with
the run.

Prefect can start one itself, but first imports the whole server into the run, which takes as long as starting
the server.
"""

from __future__ import annotations

import atexit
import contextlib
import os
import shutil
import socket
import sqlite3
import subprocess
import sys
import time
import urllib.request
from dataclasses import dataclass, field
from importlib.metadata import version
from pathlib import Path

from ratchet.components.errors import ServiceError
from ratchet.tasks.process.child import interrupts_blocked
from ratchet.tasks.process.locks import file_lock

STARTUP = "PREFECT_SERVER_EPHEMERAL_STARTUP_TIMEOUT_SECONDS"
"""Prefect's setting for the start-up timeout."""
SETTINGS = {
    "PREFECT_UI_ENABLED": "0",  # the UI is served by `ratchet ui`
    "PREFECT__SERVER_EPHEMERAL": "1",
    "PREFECT__SERVER_FINAL": "1",
}  # no background services of a shared server
GRACE = 5.0


@dataclass
class PrefectServer:
    """A starting or running server. `address`: URL of its API. `unkept`: its new database, not yet cached.
    `making`: lock held until the database has been created, that is until the server answers.
    """

    address: str
    process: subprocess.Popen[bytes]
    unkept: Path | None = None
    making: contextlib.ExitStack = field(default_factory=contextlib.ExitStack)

    def wait(self, seconds: float) -> None:
        """Wait until it answers. `ServiceError` if it exits or does not answer within `seconds`."""
        end = time.monotonic() + seconds
        while not self._answers(max(end - time.monotonic(), 0.1)):
            if self.process.poll() is not None:
                raise ServiceError(
                    f"Prefect's own server ended with exit code {self.process.returncode} before it "
                    "answered; its output is above"
                )
            if time.monotonic() > end:
                raise ServiceError(
                    f"Prefect's own server did not start within {seconds:g} s: the machine is too busy; "
                    f"raise {STARTUP}, or start `prefect server start` and set PREFECT_API_URL"
                )
            time.sleep(0.05)
        if self.unkept:
            _keep(self.unkept)
        self.making.close()

    def _answers(self, seconds: float) -> bool:
        with contextlib.suppress(OSError), urllib.request.urlopen(f"{self.address}/health", timeout=seconds):
            return True
        return False

    def stop(self) -> None:
        self.process.terminate()
        try:
            self.process.wait(GRACE)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()


def start(folder: Path) -> PrefectServer:
    """Start a server on a free local port and set PREFECT_API_URL to it. Its database is in `folder` unless
    Prefect's settings say otherwise.

    It ends with this process and ignores Ctrl-C, which a terminal sends to the whole process group: a stopped
    run must still be able to report to its server.
    """
    database = folder / "prefect.db"
    with contextlib.ExitStack() as lock:  # two servers creating one database would fail
        lock.enter_context(file_lock(folder / "database.lock", f"Prefect's database of {folder}"))
        unkept = None if database.exists() or _take(database) else database
        # the server gets the open socket: no other process can take the port, and early callers wait
        with socket.create_server(("127.0.0.1", 0)) as listening, interrupts_blocked():
            command = ["uvicorn", "--factory", "prefect.server.api.server:create_app"]
            options = ["--fd", str(listening.fileno()), "--log-level", "error", "--lifespan", "on"]
            process = subprocess.Popen(
                [sys.executable, "-m", *command, *options],
                env={**os.environ, **SETTINGS},
                pass_fds=[listening.fileno()],
            )
            address = f"http://127.0.0.1:{listening.getsockname()[1]}/api"
        server = PrefectServer(address, process, unkept)
        if unkept:
            server.making = lock.pop_all()
    atexit.register(server.stop)
    os.environ["PREFECT_API_URL"] = address
    return server


def kept() -> Path:
    """Cached empty Prefect database: its hundred migrations are the slowest part of the start-up."""
    caches = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(caches) / "ratchet" / f"prefect-{version('prefect')}.db"


def _take(database: Path) -> bool:
    """Copy the cached database; returns whether there was one."""
    copy = database.with_suffix(".copy")
    with contextlib.suppress(OSError, RuntimeError):  # no home directory, or no permission
        shutil.copyfile(kept(), copy).replace(database)
        return True
    return False


def _keep(database: Path) -> None:
    """Cache a copy of a new database, in which no run is yet."""
    with contextlib.suppress(OSError, RuntimeError, sqlite3.Error):
        copy = kept().with_suffix(f".{os.getpid()}")
        copy.parent.mkdir(parents=True, exist_ok=True)
        with contextlib.closing(sqlite3.connect(f"file:{database}?mode=ro", uri=True)) as ours:
            ours.execute("VACUUM INTO ?", (str(copy),))
        copy.replace(kept())
