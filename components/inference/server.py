"""vLLM server backend: `vllm serve` over HTTP, shared by any number of workers.

Token ids go through `/inference/v1/generate`; the same server offers the OpenAI API to other clients. Each
answer carries the version of its weights, which is our digest, so answers from a restarted server or from
another worker's weights are detected and requested again. Weights are reloaded from a directory that both
sides see; this needs VLLM_SERVER_DEV_MODE=1 on the server, whose endpoints are not authenticated: use a
closed network.
"""

from __future__ import annotations

import http.client
import json
import os
import signal
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
import weakref
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, final

from ratchet.components.errors import ContractError, ServiceError
from ratchet.components.inference.vllm import Answer
from ratchet.components.inference.vllm_arguments import check_lengths, server_command, server_environment
from ratchet.components.inference.vllm_weights import fits, shape, update
from ratchet.components.stages.progress import advance

TRIES = 5
"""Attempts per row if its answer was lost or came from other weights."""

LOADING = ("/collective_rpc", "/start_weight_update", "/update_weights", "/finish_weight_update")
"""Requests that load weights: an error of theirs would come again."""

OPENER = urllib.request.build_opener(urllib.request.ProxyHandler({}))  # never through a web proxy

PARENT_DEATH_LAUNCHER = """
import ctypes, os, signal, sys
ctypes.CDLL(None).prctl(1, signal.SIGTERM)
if os.getppid() != int(sys.argv[1]): sys.exit("the parent is gone")
os.execv(sys.argv[2], sys.argv[2:])
"""


class ServerUnavailable(Exception):
    """The server did not answer: down, restarting, or connection lost. The request is retried."""


@final
class Server:
    """A server at `url`, or one started from the Python environment `python` as a child that ends with this
    process (Linux).

    If the server is unavailable, it is awaited for `wait_seconds` (our own is restarted), its weights are
    loaded again and the missing rows requested again; answers are seeded, so they do not change. After that,
    `ServiceError`.
    """

    def __init__(self, options: Mapping[str, Any], *, rows: int) -> None:
        self.options, self.rows = options, rows
        self.url: str | None = options["server"].rstrip("/") if options["server"] else None
        self.key = os.environ.get("VLLM_API_KEY", "")
        self.child: subprocess.Popen[bytes] | None = None
        self.model: Path | None = None
        self.path = Path()
        self.shape: dict[str, Any] = {}
        self.weights = ""
        self.refreshed = self.answered = False

    def takes(self, path: Path) -> bool:
        """A server started here takes weights from files in memory, others reload a directory."""
        return bool(self.options["python"]) and self.model is not None and fits(self.shape, path)

    def load(self, path: Path, weights: str) -> None:
        """Set the weights for the next `answer`, which loads them."""
        if self.shape and not fits(self.shape, path):
            raise ContractError(
                f"{path}: its architecture differs from the model in the vLLM server, which can refresh "
                "weights only; restart the server with this model"
            )
        if not self.takes(path):
            self.model, self.shape = path.resolve(), shape(path)
        self.path, self.weights, self.refreshed = path.resolve(), weights, False

    def answer(self, rows: Sequence[Sequence[int]], params: Sequence[Mapping[str, Any]]) -> list[Answer]:
        """One answer per row, all from the weights loaded last."""
        if any(one.get("logprobs") for one in params):
            raise ContractError(
                "log-probs of the likeliest tokens need vLLM in this process (neither `vllm.server` nor "
                "`vllm.python`), or `engine: torch`"
            )
        check_lengths(rows, params, self.options["max_model_len"])
        answers: list[Answer | None] = [None] * len(rows)
        why = ""
        for _ in range(TRIES):
            missing = [i for i, answer in enumerate(answers) if answer is None]
            if not missing:
                break
            self._ready(why)
            with ThreadPoolExecutor(min(self.rows, len(missing))) as pool:
                for i, found in zip(
                    missing, pool.map(lambda i: self._request_row(rows[i], params[i]), missing), strict=True
                ):
                    if isinstance(found, Answer):
                        answers[i] = found
                        advance()
                    else:
                        why, self.refreshed = found, False
        done = [answer for answer in answers if answer is not None]
        if len(done) < len(rows):
            raise ServiceError(
                f"the vLLM server at {self.url} left {len(rows) - len(done)} of {len(rows)} requests "
                "unanswered after "
                f"{TRIES} tries; last error: {why}. Use one server per concurrent run, and see its log"
            )
        return done

    def close(self) -> None:
        """Stop a server started here, with its process group; leave others running."""
        if self.child is not None:
            _stop(self.child)
            self.child = self.url = None
            self.refreshed = False

    def _request_row(self, row: Sequence[int], params: Mapping[str, Any]) -> Answer | str:
        """The answer, or the reason why there is none yet."""
        try:
            body = self._post(
                "/inference/v1/generate", {"token_ids": list(row), "sampling_params": dict(params)}
            )
        except ServerUnavailable as lost:
            return str(lost)
        choice = body["choices"][0]
        versions = [span["version"] for span in choice["weight_versions"] or ()]
        if versions != [self.weights]:
            return f"answered with weights {versions}, expected {self.weights}"
        if choice["finish_reason"] not in ("stop", "length"):
            return f"finish_reason {choice['finish_reason']!r}"
        given = [
            0.0 if at is None else at[str(token)]["logprob"]
            for token, at in zip(row, body["prompt_logprobs"] or (), strict=False)
        ]
        steps = (choice["logprobs"] or {}).get("content") or ()
        return Answer(tuple(choice["token_ids"]), tuple(step["logprob"] for step in steps), tuple(given))

    def _ready(self, why: str) -> None:
        """Wait until a server with our weights answers; `why` it was lost goes into the error."""
        end = time.monotonic() + self.options["wait_seconds"]
        while not self.refreshed:
            if self.options["python"]:
                self._run()
            try:
                self._get("/health")
                self.answered = True
                self._refresh()
                self.refreshed = True
            except ServerUnavailable as lost:
                if time.monotonic() > end:
                    raise ServiceError(
                        f"no vLLM server answered at {self.url} within {self.options['wait_seconds']:g} s "
                        f"({why or lost}); "
                        "restart it, or correct `vllm.server` in the profile, and run again"
                    ) from None
                time.sleep(0.5)

    def _run(self) -> None:
        """Start our server, or restart one that died after it had answered. One that died before would die
        again.
        """
        if self.child is not None and self.child.poll() is None:
            return
        if self.child is not None and not self.answered:
            raise ServiceError(
                f"the vLLM server of {self.options['python']} ended with exit code "
                f"{self.child.returncode} before it "
                "answered; its output is in this stage's log, above"
            )
        self._start()

    def _refresh(self) -> None:
        """Load the weights in place while requests are paused, and reset the prefix cache."""
        if (
            self._get("/weight_info")["weight_version"] == self.weights
            and not self._get("/is_paused")["is_paused"]
        ):
            return  # a paused server lost its client during an update
        self._post("/pause?mode=wait", {})
        try:
            if self.options["python"]:
                self._post("/start_weight_update", {})
                self._post("/update_weights", {"update_info": update(self.path)})
                self._post("/finish_weight_update", {})
            else:
                self._post(
                    "/collective_rpc",
                    {"method": "reload_weights", "kwargs": {"weights_path": str(self.path)}},
                )
            self._post("/reset_prefix_cache", {})
            self._post("/update_weight_version", {"new_version": self.weights})
        finally:
            self._post("/resume", {})

    def _start(self) -> None:
        if self.child is not None:
            _stop(self.child)  # remaining processes of a killed server
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            port = probe.getsockname()[1]
        self.url, self.refreshed = f"http://127.0.0.1:{port}", False
        self.answered = False
        assert self.model is not None
        served = server_command(self.options, self.rows, self.model, port)
        self.child = subprocess.Popen(
            [sys.executable, "-c", PARENT_DEATH_LAUNCHER, str(os.getpid()), *served],
            env=server_environment(),
            stdin=subprocess.DEVNULL,
            start_new_session=True,
        )
        weakref.finalize(self, _stop, self.child)  # stopped when this object is garbage-collected

    def _get(self, where: str) -> Any:
        return self._call(urllib.request.Request(f"{self.url}{where}", headers=self._headers()))

    def _post(self, where: str, body: Mapping[str, Any]) -> Any:
        return self._call(
            urllib.request.Request(f"{self.url}{where}", json.dumps(body).encode(), headers=self._headers())
        )

    def _headers(self) -> dict[str, str]:
        return {
            "Content-Type": "application/json",
            **({"Authorization": f"Bearer {self.key}"} if self.key else {}),
        }

    def _call(self, request: urllib.request.Request) -> Any:
        """The JSON reply. `ServerUnavailable` for transient failures, `ServiceError` for permanent ones."""
        try:
            with OPENER.open(request, timeout=self.options["wait_seconds"]) as reply:
                body = reply.read()
        except urllib.error.HTTPError as error:
            body = error.read().decode(errors="replace")[:500]
            if error.code == 404:
                raise ServiceError(
                    f"the vLLM server at {self.url} has no {request.selector}; start vLLM 0.32 or later "
                    "with --enable-scale-out (takes token ids) and VLLM_SERVER_DEV_MODE=1 (loads weights)"
                ) from None
            if error.code in (408, 429, 502, 503, 504) or (
                error.code == 500 and request.selector not in LOADING
            ):
                raise ServerUnavailable(f"{request.selector}: HTTP {error.code}: {body}") from None
            key = "; set VLLM_API_KEY to the server's key" if error.code == 401 else ""
            raise ServiceError(
                f"the vLLM server at {self.url} refused {request.selector}: HTTP {error.code}: {body}{key}"
            ) from None
        except (OSError, http.client.HTTPException) as error:  # refused, reset, timed out, or half a reply
            raise ServerUnavailable(f"{type(error).__name__}: {error}") from None
        return json.loads(body) if body.strip() else None


def _stop(child: subprocess.Popen[bytes]) -> None:
    """SIGTERM, then after ten seconds SIGKILL, to the whole process group."""
    for sign, seconds in ((signal.SIGTERM, 10), (signal.SIGKILL, 10)):
        try:
            os.killpg(child.pid, sign)
        except ProcessLookupError:
            break
        try:
            child.wait(seconds)
        except subprocess.TimeoutExpired:
            continue
    child.poll()
