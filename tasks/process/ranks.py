"""Run a stage as several processes (ranks) on one machine or on several: torchrun's launcher with its c10d rendezvous.

The stage's own process hosts the rendezvous store and describes the job in `job.json` of its workspace; `ratchet join` on another machine
(`tasks/process/joining.py`) reads it there and enters the same rendezvous. Nothing is restarted: a second run of the stage goes on from its last checkpoint.
A rank that fails says why in `ranks/` of the workspace, which all machines see.
"""

from __future__ import annotations

import contextlib
import hashlib
import importlib.util
import json
import multiprocessing
import os
import secrets
import shutil
import signal
import socket
import sys
import threading
import time
import traceback
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from ratchet.components import errors
from ratchet.components.errors import ContractError, RatchetError, RecipeError, StageError, redacted
from ratchet.components.piece import ROOT
from ratchet.components.recipes.profile import Profile
from ratchet.components.storage.store import Workspace, write_atomic
from ratchet.tasks.machine.provenance import packages
from ratchet.tasks.process.child import PRELOAD, die_with, write_to

JOB, REPORTS, META = "job.json", "ranks", "meta.json"
JOIN_SECONDS = int(os.environ.get("RATCHET_JOIN_SECONDS", "1800"))  # to wait for machines to join
CONNECT_SECONDS = float(os.environ.get("RATCHET_CONNECT_SECONDS", "900"))
"""For the ranks to connect to each other. gloo itself would try for as long as a rank may work (`ranks.PATIENCE`)."""
REPORT_SECONDS = 15.0  # for the other machines' reports, once a stage has failed


@dataclass(frozen=True)
class Job:
    """A stage of `ranks` processes on `machines`, whose rendezvous is at `endpoint`."""

    request: Mapping[str, Any]
    log: str
    ranks: int
    machines: int
    endpoint: str
    leader: str = field(default_factory=socket.gethostname)
    since: float = field(default_factory=time.time)
    id: str = field(default_factory=lambda: secrets.token_hex(8))

    @property
    def each(self) -> int:
        return self.ranks // self.machines

    @property
    def reports(self) -> Path:
        return Path(self.request["work"]) / REPORTS

    @property
    def name(self) -> str:
        return f"stage {self.request['does']!r}"


def ready(profile: Profile) -> None:
    """Refuse to begin what would end at the first stage that learns."""
    if profile.learner == "deepspeed" and importlib.util.find_spec("deepspeed") is None:
        raise RecipeError(f"profile {profile.name}: `learner: deepspeed`, and DeepSpeed is not installed here; "
                          "pip install 'ratchet-rlhf[scale]', or take `learner: torch`")


def ranks_of(request: Mapping[str, Any]) -> int:
    """How many processes a stage takes: the profile's `ranks` where something learns, else one."""
    profile = request["options"].get("profile") or {}
    return int(profile.get("ranks", 1)) if "fit" in request["options"] else 1


def execute_on_ranks(request: Mapping[str, Any], log: str) -> dict[str, Any]:
    """The stage's meta, from the first rank. Raises the `RatchetError` of the rank that failed first, or a `StageError` that names the
    rank which died and its machine; also when not enough machines join."""
    from torch.distributed import TCPStore
    from torch.distributed.elastic.multiprocessing.errors import ChildFailedError
    from torch.distributed.elastic.rendezvous import RendezvousTimeoutError

    count, machines, work = ranks_of(request), int(request["options"]["profile"].get("machines", 1)), Workspace(Path(request["work"]))
    if short := short_of_devices(count // machines):
        raise RecipeError(f"stage {request['does']!r}: the profile says `ranks: {count}`{f' on `machines: {machines}`' if machines > 1 else ''}, {short}")
    store = TCPStore("localhost", 0, is_master=True, wait_for_workers=False)  # of the rendezvous; lives as long as this call
    host = os.environ.get("RATCHET_ADDRESS", socket.gethostname()) if machines > 1 else "localhost"
    job, command = Job(request, log, count, machines, f"{host}:{store.port}"), f"ratchet join --home {work.root.parents[2]}"
    shutil.rmtree(job.reports, ignore_errors=True)
    job.reports.mkdir(parents=True)
    if machines > 1:
        print(f"waiting for {machines - 1} more machine{'s' * (machines > 2)}: run `{command}` on each", flush=True)
        write_atomic(work.steps, json.dumps({"step": 1, "of": machines, "unit": "machines", "time": time.time(), "metrics": {}}))
        write_atomic(work.root / JOB, json.dumps(asdict(job)))
    try:
        run_ranks(job, log)
        return json.loads((job.reports / META).read_text())
    except RendezvousTimeoutError:
        raise StageError(f"{job.name} needs {machines} machines, and not all joined within {JOIN_SECONDS} s; run `{command}` on each of the "
                         "others (what it prints says why it stays away), then the same command again") from None
    except ChildFailedError:
        raise why(job, reported(job)) from None
    finally:
        (work.root / JOB).unlink(missing_ok=True)
        shutil.rmtree(job.reports, ignore_errors=True)


def run_ranks(job: Job, log: str) -> None:
    """Start this machine's ranks once all machines have joined, and wait for them. Raises torch's `ChildFailedError`, `RendezvousError`
    and, when this process is told to end, `SignalException`; the ranks are gone by then and their exit codes are reported."""
    from torch.distributed.elastic.multiprocessing.errors import ChildFailedError
    from torch.distributed.launcher.api import LaunchConfig, elastic_launch

    multiprocessing.get_context("forkserver").set_forkserver_preload(PRELOAD)  # a process that has seen a GPU must not be forked
    config = LaunchConfig(
        min_nodes=job.machines, max_nodes=job.machines, nproc_per_node=job.each, max_restarts=0, run_id=job.id, rdzv_backend="c10d",
        rdzv_endpoint=job.endpoint, rdzv_configs={"is_host": "false", "join_timeout": JOIN_SECONDS}, local_addr=os.environ.get("RATCHET_ADDRESS"),
        start_method="forkserver", signals_to_handle="SIGTERM", shutdown_timeout=3)
    try:
        elastic_launch(config, _rank)(job, log, os.getpid())
    except ChildFailedError as failed:
        for rank, failure in failed.failures.items():
            report(job, rank, log, exitcode=failure.exitcode)
        raise


def short_of_devices(each: int) -> str:
    """What a machine says that has fewer GPUs than ranks to start; nothing when it has enough, or has none."""
    import torch

    devices = torch.cuda.device_count() if torch.cuda.is_available() else each
    return f"one a GPU, and {socket.gethostname()} has {devices} for {each}; take fewer ranks or more machines" if each > devices else ""


def _rank(job: Job, log: str, agent: int) -> None:
    """One rank, in a process of its own. What goes wrong is reported in a file; the launcher sees an exit code."""
    die_with(agent)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    write_to(log)
    rank = int(os.environ["RANK"])
    print(f"rank {rank} of {job.ranks}: process {os.getpid()}", flush=True)
    from ratchet.components.stages.run import execute
    from ratchet.components.training import ranks

    connecting = threading.Timer(CONNECT_SECONDS, _give_up, (job, rank, log))
    connecting.daemon = True
    try:
        connecting.start()
        ranks.join()
        connecting.cancel()
        if job.machines > 1:
            threading.Thread(target=_end_with_others, args=(job,), daemon=True).start()
            _require_same_code(ranks.gather((socket.gethostname(), code())))
        meta = execute(job.request)
        if ranks.first():
            write_atomic(job.reports / META, json.dumps(meta))
    except BaseException as error:
        print(redacted(traceback.format_exc()), flush=True)
        report(job, rank, log, kind=type(error).__name__, text=redacted(str(error)))
        if not isinstance(error, RatchetError):
            time.sleep(1.0)  # a broken connection is an echo: the launcher shall first see which rank died
        sys.exit(1)  # torch would print what is raised here, and a secret in it


def report(job: Job, rank: int, log: str, **what: Any) -> None:
    """Write down how a rank ended: its exit code, or the kind and text of its error."""
    with contextlib.suppress(OSError):  # the workspace is gone: the leader has ended
        write_atomic(job.reports / f"{rank}.{'exit' if 'exitcode' in what else 'error'}",
                     json.dumps({"host": socket.gethostname(), "log": log, **what}))


def reported(job: Job) -> dict[int, dict[str, Any]]:
    """What is known of each rank that ended badly. Waits for the reports of other machines, which a shared disk shows late."""
    deadline = time.monotonic() + (REPORT_SECONDS if job.machines > 1 else 0)
    while len(list(job.reports.glob("*.exit"))) < job.ranks and time.monotonic() < deadline:
        time.sleep(0.2)
    found: dict[int, dict[str, Any]] = {}
    for file in sorted(job.reports.glob("*.e*")):
        found.setdefault(int(file.stem), {}).update(json.loads(file.read_text()))
    return found


def why(job: Job, found: Mapping[int, Mapping[str, Any]]) -> RatchetError:
    """The one sentence about a stage whose ranks ended badly: a death explains the errors of the others, one of our own errors explains
    the broken connections of the rest."""
    def where(rank: int) -> str:
        return f"{job.name}: rank {rank} of {job.ranks}" + (f" on {found[rank]['host']}" if job.machines > 1 else "")

    def end(rank: int) -> str:
        return f"the other ranks were stopped; run again to continue from the last checkpoint (log: {found[rank]['log']})"

    for rank, one in sorted(found.items()):
        if one.get("exitcode", 0) < 0 and one["exitcode"] != -signal.SIGTERM:
            name = signal.Signals(-one["exitcode"]).name
            memory = "; the machine probably ran out of memory" if name == "SIGKILL" else ""
            return StageError(f"{where(rank)} was killed by {name}{memory}; {end(rank)}", died=True)
    told = {rank: (one["kind"], one["text"]) for rank, one in sorted(found.items()) if "kind" in one}
    for rank, (kind, text) in told.items():
        own = getattr(errors, kind, None)
        if own is StageError:
            return StageError(f"{where(rank)} {text}; {end(rank)}", died=True)
        if isinstance(own, type) and issubclass(own, RatchetError):
            return own(text)
        if kind == "MemoryError":
            return StageError(f"{where(rank)} ran out of memory; use a smaller profile (tokens_per_batch), "
                              f"more ranks or a higher zero_stage; {end(rank)}", died=True)
    for host in sorted(file.stem for file in job.reports.glob("*.left")):
        return StageError(f"{job.name}: `ratchet join` was stopped on {host}; {end(min(found))}", died=True)
    for rank, (kind, text) in told.items():
        gone = " (another machine may be gone)" if job.machines > 1 else ""
        return StageError(f"{where(rank)} failed: {kind}: {text}{gone}; {end(rank)}", died=job.machines > 1)
    codes = ", ".join(f"rank {rank}: exit code {one['exitcode']}" for rank, one in sorted(found.items()))
    return StageError(f"{job.name} ended without a result ({codes}); {end(min(found))}", died=True)


def code() -> dict[str, str]:
    """What ranks of one stage must have in common: our code, and the packages that they compute and communicate with."""
    sources = hashlib.sha256()
    for file in sorted([*ROOT.rglob("*.py"), *Path(__file__).parents[1].rglob("*.py")]):
        sources.update(file.read_bytes())
    return {"ratchet": sources.hexdigest()[:12], **{name: packages().get(name, "none") for name in ("torch", "transformers", "peft", "deepspeed")}}


def _require_same_code(machines: list[tuple[str, dict[str, str]]]) -> None:
    first, ours = machines[0]
    for host, theirs in machines:
        if other := next((name for name in ours if ours[name] != theirs[name]), None):
            raise ContractError(f"{other} is {theirs[other]} on {host} and {ours[other]} on {first}; all machines of a stage must run the same")


def _give_up(job: Job, rank: int, log: str) -> None:
    report(job, rank, log, kind="StageError", text=f"did not reach all others within {CONNECT_SECONDS:.0f} s; GLOO_SOCKET_IFNAME "
                                                   "(NCCL_SOCKET_IFNAME) names the network interface that ranks talk through")
    os._exit(1)


def _end_with_others(job: Job) -> None:
    """End this process once ranks of another machine have failed or the stage is over: NCCL would wait for them."""
    while job.reports.is_dir() and not list(job.reports.glob("*.exit")):
        time.sleep(1.0)
    time.sleep(5.0)  # for what this rank itself may have to say
    os._exit(1)
