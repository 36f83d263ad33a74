"""A Prefect and an MLflow server of our own on loopback, to be killed and started again, and a gate before
MLflow.
"""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

from ratchet.flows.ui import free_port, wait_for


class Gate:
    """TCP proxy to a local port. After `cut`, open connections break and new ones are refused."""

    def __init__(self, port: int) -> None:
        self.to, self._cut, self._open = port, False, set[socket.socket]()
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port: int = self._listener.getsockname()[1]
        threading.Thread(target=self._accept, daemon=True).start()

    @property
    def cut(self) -> bool:
        return self._cut

    @cut.setter
    def cut(self, value: bool) -> None:
        self._cut = value
        for one in list(self._open) if value else ():
            _end(one)

    def close(self) -> None:
        self.cut = True
        _end(self._listener)

    def _accept(self) -> None:
        while True:
            try:
                near, _ = self._listener.accept()
            except OSError:
                return
            try:
                if self._cut:
                    raise ConnectionRefusedError
                far = socket.create_connection(("127.0.0.1", self.to), 5)
                far.settimeout(None)
            except OSError:
                _end(near)
                continue
            self._open |= {near, far}
            for a, b in ((near, far), (far, near)):
                threading.Thread(target=self._pass, args=(a, b), daemon=True).start()

    def _pass(self, source: socket.socket, target: socket.socket) -> None:
        with contextlib.suppress(OSError):
            while data := source.recv(65536):
                target.sendall(data)
        for one in (source, target):
            _end(one)
            self._open.discard(one)


def _end(one: socket.socket) -> None:
    with contextlib.suppress(OSError):
        one.shutdown(socket.SHUT_RDWR)
    one.close()


class Servers:
    """Both servers, with all they keep in `folder`. Use as a context: leaving it ends them."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.children = folder.resolve(), dict[str, subprocess.Popen[bytes]]()
        self.ports = {name: free_port() for name in ("prefect", "mlflow")}
        self.database = self.folder / "mlflow.db"
        self.gate = Gate(self.ports["mlflow"])

    def env(self) -> dict[str, str]:
        """Environment variables with the servers' addresses."""
        return {
            "PREFECT_API_URL": f"http://127.0.0.1:{self.ports['prefect']}/api",
            "MLFLOW_TRACKING_URI": f"http://127.0.0.1:{self.gate.port}",
        }

    def start(self, name: str) -> None:
        port = str(self.ports[name])
        command = {
            "prefect": ["prefect", "server", "start", "--host", "127.0.0.1", "--port", port],
            "mlflow": [
                "mlflow",
                "server",
                "--host",
                "127.0.0.1",
                "--port",
                port,
                "--workers",
                "1",
                "--backend-store-uri",
                f"sqlite:///{self.database}",
                "--artifacts-destination",
                str(self.folder / "artifacts"),
            ],
        }[name]
        self.folder.mkdir(parents=True, exist_ok=True)
        log = self.folder / f"{name}.log"
        with log.open("ab") as out:
            child = subprocess.Popen(
                [sys.executable, "-m", *command],
                stdout=out,
                stderr=out,
                start_new_session=True,
                env={
                    **os.environ,
                    "PREFECT_HOME": str(self.folder / "prefect"),
                    "PREFECT_SERVER_ANALYTICS_ENABLED": "false",
                    "PREFECT_SERVER_UI_ENABLED": "false",
                    "DO_NOT_TRACK": "1",
                    "MLFLOW_DISABLE_TELEMETRY": "true",
                    "MLFLOW_SERVER_ENABLE_JOB_EXECUTION": "false",
                },
            )
        self.children[name] = child
        wait_for(
            f"http://127.0.0.1:{port}{'/api/health' if name == 'prefect' else '/health'}",
            child,
            log,
            seconds=300,
        )

    def kill(self, name: str) -> None:
        """SIGKILL to the server and its workers."""
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.children[name].pid, signal.SIGKILL)
        self.children[name].wait()

    def __enter__(self) -> Servers:
        try:
            for name in self.ports:
                self.start(name)
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_: Any) -> None:
        self.gate.close()
        for name in self.children:
            self.kill(name)
