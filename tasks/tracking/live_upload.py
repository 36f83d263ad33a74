"""Background thread that uploads a run to MLflow. An unreachable server does not stop the run; the rest is
uploaded later or by `ratchet sync`.
"""

from __future__ import annotations

import contextlib
import itertools
import logging
import threading
import time
from pathlib import Path
from urllib.parse import urlsplit

from ratchet.components.errors import redacted
from ratchet.tasks.tracking.mlflow_runs import ROOT
from ratchet.tasks.tracking.server import tracking_uri
from ratchet.tasks.tracking.upload import Uploader

log = logging.getLogger("ratchet.tracking")


class BackgroundUploader:
    """Uploads `run_dir` every `every_seconds` between `start` and `close`. Only `close` and methods with
    `wait_seconds` block.
    """

    def __init__(self, run_dir: Path, home: Path, *, every_seconds: float = 5.0) -> None:
        self.run_dir, self.home, self.every_seconds = Path(run_dir).resolve(), Path(home), every_seconds
        self.ids: dict[str, str] = {}  # MLflow run ids by our keys
        self.last_error: str | None = None  # why the last upload failed
        self.uploader: Uploader | None = None
        self._failures, self._stop, self._wake = 0, threading.Event(), threading.Event()
        self._thread = threading.Thread(target=self._upload_loop, name="mlflow-upload", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def close(self, wait_seconds: float = 30.0) -> bool:
        """Wait briefly for a final upload. Returns False if not everything is uploaded (see `last_error`)."""
        self._stop.set()
        self._wake.set()
        self._thread.join(wait_seconds)
        if self._thread.is_alive():
            silent = f"{tracking_uri(self.home)} has not answered for {wait_seconds:g} s"
            self.last_error = self.last_error or redacted(silent)
        if self.last_error:
            rest = f"`ratchet sync` uploads the rest of {self.run_dir}"
            log.warning("MLflow is not up to date: %s. Nothing is lost; %s", self.last_error, rest)
        return self.last_error is None

    def run_id(self, stage: str = ROOT, wait_seconds: float = 0.0) -> str | None:
        """MLflow's id of a run once uploaded; None after `wait_seconds` or three failures."""
        end, enough = time.monotonic() + wait_seconds, self._failures + 3
        for poll in itertools.count():
            if stage in self.ids or self._failures >= enough or time.monotonic() >= end:
                break
            if poll % 10 == 0:
                self._wake.set()
            time.sleep(0.1)
        return self.ids.get(stage)

    def artifact_url(self, artifact: str, wait_seconds: float = 0.0) -> str | None:
        """URL of an artifact in the MLflow UI; None without an HTTP server (the address of `ratchet ui`
        changes) or if the run is not uploaded after `wait_seconds`.
        """
        server = urlsplit(tracking_uri(self.home))
        if server.scheme not in ("http", "https") or not self.run_id(wait_seconds=wait_seconds):
            return None
        # without a password
        address = f"{server.scheme}://{server.netloc.rpartition('@')[2]}{server.path.rstrip('/')}"
        inside = self.uploader and self.uploader.link(artifact)
        return inside and f"{address}/{inside}"

    def _upload_loop(self) -> None:
        """Upload periodically, with backoff after failures; one last attempt on stop."""
        pause = self.every_seconds
        with contextlib.ExitStack() as stack:
            while True:
                last = self._stop.is_set()
                try:
                    if self.uploader is None:
                        self.uploader = stack.enter_context(
                            contextlib.closing(Uploader(self.run_dir, self.home))
                        )
                    self.uploader.upload()
                    self.ids |= {key: sent.id for key, sent in self.uploader.sent.items()}
                    self.last_error, pause = None, self.every_seconds
                except Exception as error:  # MLflow errors must not stop the run
                    text = (str(error).splitlines() or [""])[0][:300]
                    self.last_error = redacted(f"{type(error).__name__}: {text}")
                    self._failures, pause = self._failures + 1, min(60.0, pause * 2)
                if last:
                    return
                self._wake.wait(pause)
                self._wake.clear()
