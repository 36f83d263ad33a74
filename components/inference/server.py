"""A vLLM behind HTTP: `vllm serve`, asked for tokens, from any number of workers.

The same server speaks the OpenAI API to everybody else; tokens in and out go through its `/inference/v1/generate`. Each answer
carries the version of the weights that gave it, which is our digest of them, so neither a server that restarted with its first
weights nor a second worker that loaded others can slip in an answer of another policy. Weights are refreshed from a directory
that both see, which needs the server's VLLM_SERVER_DEV_MODE=1; those endpoints ask for no key, so keep them on a closed network.
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
from ratchet.components.inference.vllm import Answer, check_lengths, engine_arguments, shape
from ratchet.components.models.load import trusted
from ratchet.components.stages.progress import advance

TRIES = 5
"""How often one row is asked again when its answer was lost or came from other weights."""

OPENER = urllib.request.build_opener(urllib.request.ProxyHandler({}))  # an engine is never behind a web proxy

BORN = """
import ctypes, os, signal, sys
ctypes.CDLL(None).prctl(1, signal.SIGTERM)
if os.getppid() != int(sys.argv[1]): sys.exit("the parent is gone")
os.execv(sys.argv[2], sys.argv[2:])
"""


class Lost(Exception):
    """The server did not answer: it is down, restarting or dropped the connection."""


@final
class Server:
    """A server at `url`, or one of our own started from the environment of `python`: our child, gone when we are (Linux).

    A server that is lost is waited for (our own is started again) for `wait_seconds`, given its weights back, and asked the rows
    it still owes: they have seeds, so they come out as they would have. After that it is one `ServiceError`.
    """

    def __init__(self, options: Mapping[str, Any], *, rows: int) -> None:
        self.options, self.rows = options, rows
        self.url: str | None = options["server"].rstrip("/") if options["server"] else None
        self.key = os.environ.get("VLLM_API_KEY", "")
        self.child: subprocess.Popen[bytes] | None = None
        self.path: Path | None = None
        self.shape: dict[str, Any] = {}
        self.weights = ""
        self.refreshed = self.answered = False

    def load(self, path: Path, weights: str) -> None:
        """Take these weights from now on; they are sent for with the next answer."""
        if self.shape and self.shape != shape(path):
            raise ContractError(f"{path}: another architecture than the vLLM server holds; a server refreshes weights, not shapes")
        self.path, self.weights, self.shape, self.refreshed = path.resolve(), weights, shape(path), False

    def answer(self, rows: Sequence[Sequence[int]], asked: Sequence[Mapping[str, Any]]) -> list[Answer]:
        """One answer a row, all with the weights loaded last."""
        check_lengths(rows, asked, self.options["max_model_len"])
        answers: list[Answer | None] = [None] * len(rows)
        why = ""
        for _ in range(TRIES):
            owed = [i for i, answer in enumerate(answers) if answer is None]
            if not owed:
                break
            self._ready(why)
            with ThreadPoolExecutor(min(self.rows, len(owed))) as pool:
                for i, found in zip(owed, pool.map(lambda i: self._ask(rows[i], asked[i]), owed), strict=True):
                    if isinstance(found, Answer):
                        answers[i] = found
                        advance()
                    else:
                        why, self.refreshed = found, False
        done = [answer for answer in answers if answer is not None]
        if len(done) < len(rows):
            raise ServiceError(f"the vLLM server at {self.url} left {len(rows) - len(done)} of {len(rows)} requests unanswered after "
                               f"{TRIES} tries; the last: {why}. Give each concurrent run a server of its own, and look at its log")
        return done

    def close(self) -> None:
        """Stop a server of our own, whole process group; somebody else's is left alone."""
        if self.child is not None:
            _stop(self.child)
            self.child = self.url = None
            self.refreshed = False

    def _ask(self, row: Sequence[int], asked: Mapping[str, Any]) -> Answer | str:
        """The answer, or why there is none yet."""
        try:
            said = self._post("/inference/v1/generate", {"token_ids": list(row), "sampling_params": dict(asked)})
        except Lost as lost:
            return str(lost)
        choice = said["choices"][0]
        versions = [span["version"] for span in choice["weight_versions"] or ()]
        if versions != [self.weights]:
            return f"it answered with weights {versions}, not {self.weights}"
        if choice["finish_reason"] not in ("stop", "length"):
            return f"it ended with {choice['finish_reason']!r}"
        given = [0.0 if at is None else at[str(token)]["logprob"] for token, at in zip(row, said["prompt_logprobs"] or (), strict=False)]
        steps = (choice["logprobs"] or {}).get("content") or ()
        return Answer(tuple(choice["token_ids"]), tuple(step["logprob"] for step in steps), tuple(given))

    def _ready(self, why: str) -> None:
        """Wait until there is a server that holds our weights; `why` it was lost goes into the error."""
        end = time.monotonic() + self.options["wait_seconds"]
        while not self.refreshed:
            if self.options["python"]:
                self._run()
            try:
                self._get("/health")
                self.answered = True
                self._refresh()
                self.refreshed = True
            except Lost as lost:
                if time.monotonic() > end:
                    raise ServiceError(f"no vLLM server answered at {self.url} for {self.options['wait_seconds']:g} s ({why or lost}); "
                                       "start it again, or correct `vllm.server` in the profile, and run again") from None
                time.sleep(0.5)

    def _run(self) -> None:
        """Start our server, or start it again after it died in service; one that died before it answered would do so again."""
        if self.child is not None and self.child.poll() is None:
            return
        if self.child is not None and not self.answered:
            raise ServiceError(f"the vLLM server of {self.options['python']} ended with exit code {self.child.returncode} before it could "
                               "answer; what it said stands above in this stage's log")
        self._start()

    def _refresh(self) -> None:
        """The weights of `path` in place, between requests; nothing computed with earlier ones is kept."""
        try:
            if self._get("/weight_info")["weight_version"] == self.weights and not self._get("/is_paused")["is_paused"]:
                return  # one that is paused lost its worker before the end of this
            self._post("/pause?mode=wait", {})
            try:
                self._post("/collective_rpc", {"method": "reload_weights", "kwargs": {"weights_path": str(self.path)}})
                self._post("/reset_prefix_cache", {})
                self._post("/update_weight_version", {"new_version": self.weights})
            finally:
                self._post("/resume", {})
        except FileNotFoundError as missing:
            raise ServiceError(f"the vLLM server at {self.url} cannot refresh its weights ({missing}); start it with VLLM_SERVER_DEV_MODE=1 "
                               "(vLLM 0.32 or later) where it sees the run's directory") from None

    def _start(self) -> None:
        if self.child is not None:
            _stop(self.child)  # what a killed server left behind in its group
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            port = probe.getsockname()[1]
        self.url, self.refreshed = f"http://127.0.0.1:{port}", False
        self.answered = False
        arguments = [f"--{name.replace('_', '-')}" if value is True else f"--{name.replace('_', '-')}={value}"
                     for name, value in engine_arguments(self.options, self.rows).items() if value is not False]
        served = [self.options["python"], "-m", "vllm.entrypoints.openai.api_server", "--model", str(self.path), "--served-model-name", "policy",
                  "--host", "127.0.0.1", "--port", str(port), "--enable-scale-out", "--disable-log-stats", "--disable-uvicorn-access-log",
                  *arguments, *(["--trust-remote-code"] if self.path and trusted(self.path) else [])]
        environment = {**os.environ, "VLLM_SERVER_DEV_MODE": "1", "VLLM_NO_USAGE_STATS": "1", "HF_HUB_OFFLINE": "1",
                       "VLLM_CPU_OMP_THREADS_BIND": "nobind", "VLLM_LOGGING_LEVEL": os.environ.get("VLLM_LOGGING_LEVEL", "WARNING")}
        environment.pop("PYTHONPATH", None)  # ours, not that environment's
        self.child = subprocess.Popen([sys.executable, "-c", BORN, str(os.getpid()), *served], env=environment, stdin=subprocess.DEVNULL,
                                      start_new_session=True)
        weakref.finalize(self, _stop, self.child)  # nobody has to remember to close an engine

    def _get(self, where: str) -> Any:
        return self._call(urllib.request.Request(f"{self.url}{where}", headers=self._headers()))

    def _post(self, where: str, body: Mapping[str, Any]) -> Any:
        return self._call(urllib.request.Request(f"{self.url}{where}", json.dumps(body).encode(), headers=self._headers()))

    def _headers(self) -> dict[str, str]:
        return {"Content-Type": "application/json", **({"Authorization": f"Bearer {self.key}"} if self.key else {})}

    def _call(self, request: urllib.request.Request) -> Any:
        """The JSON reply. `Lost` for what may pass, `FileNotFoundError` for 404, `ServiceError` for what will not pass."""
        try:
            with OPENER.open(request, timeout=self.options["wait_seconds"]) as reply:
                body = reply.read()
        except urllib.error.HTTPError as error:
            said = error.read().decode(errors="replace")[:500]
            if error.code == 404:
                raise FileNotFoundError(f"{request.selector}: not found") from None
            if error.code in (408, 429, 502, 503, 504) or (error.code == 500 and "collective_rpc" not in request.selector):
                raise Lost(f"{request.selector}: HTTP {error.code}: {said}") from None
            key = "; set VLLM_API_KEY to the server's key" if error.code == 401 else ""
            raise ServiceError(f"the vLLM server at {self.url} refused {request.selector}: HTTP {error.code}: {said}{key}") from None
        except (OSError, http.client.HTTPException) as error:  # refused, reset, timed out, or half a reply
            raise Lost(f"{type(error).__name__}: {error}") from None
        return json.loads(body) if body.strip() else None


def _stop(child: subprocess.Popen[bytes]) -> None:
    """SIGTERM, ten seconds, then SIGKILL to the whole group, which outlives a leader that was killed."""
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
