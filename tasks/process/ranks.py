"""Multi-process (data-parallel) and multi-node stages: torchrun's elastic launcher with c10d rendezvous.

The stage's process hosts the rendezvous store and describes the job in `job.json` of its workspace. On other
machines, `ratchet join` (`tasks/process/joining.py`) reads it and enters the same rendezvous. There are no
restarts: rerunning the stage resumes from its last checkpoint. A failing rank writes a report to `ranks/` of
the workspace, which is shared by all machines.
"""

from __future__ import annotations

import contextlib
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
from ratchet.components.recipes.profile import Profile
from ratchet.components.storage.store import Workspace, write_atomic
from ratchet.tasks.machine.provenance import code_versions
from ratchet.tasks.process.child import PRELOAD, killed_by, set_up_process

JOB, REPORTS, META = "job.json", "ranks", "meta.json"
JOIN_SECONDS = int(os.environ.get("RATCHET_JOIN_SECONDS", "1800"))  # timeout for machines to join
CONNECT_SECONDS = float(os.environ.get("RATCHET_CONNECT_SECONDS", "900"))
"""Timeout for ranks to connect; gloo itself would wait for the `TIMEOUT` of components/training/ranks.py."""
REPORT_SECONDS = 15.0  # timeout for reports of other machines after a failure


@dataclass(frozen=True)
class Job:
    """A stage of `ranks` processes on `machines` nodes, which meet at `endpoint`: the ranks of a training
    stage, or, with a `key`, the inference engines of another, which need the versions `code`.
    """

    request: Mapping[str, Any]
    log: str
    ranks: int
    machines: int
    endpoint: str
    leader: str = field(default_factory=socket.gethostname)
    since: float = field(default_factory=time.time)
    id: str = field(default_factory=lambda: secrets.token_hex(8))
    key: str = field(default="", repr=False)
    code: Mapping[str, str] = field(default_factory=dict)

    @property
    def ranks_per_machine(self) -> int:
        return self.ranks // self.machines

    @property
    def reports(self) -> Path:
        return Path(self.request["work"]) / REPORTS

    @property
    def name(self) -> str:
        return f"stage {self.request['does']!r}"


def require_packages(profile: Profile) -> None:
    """Fail early if the profile needs a package that is not installed."""
    if profile.learner == "deepspeed" and importlib.util.find_spec("deepspeed") is None:
        raise RecipeError(
            f"profile {profile.name}: `learner: deepspeed`: DeepSpeed is not installed; "
            "run `pip install -e '.[scale]'` in the checkout, or set `learner: torch`"
        )


def ranks_of(request: Mapping[str, Any]) -> int:
    """Number of processes of a stage: the profile's `ranks` for training stages, else 1."""
    profile = request["options"].get("profile") or {}
    return int(profile.get("ranks", 1)) if "fit" in request["options"] else 1


def missing_devices(each: int) -> str:
    """Error message if this machine has fewer GPUs than ranks; empty if it has enough, or none."""
    import torch

    devices = torch.cuda.device_count() if torch.cuda.is_available() else each
    if each <= devices:
        return ""
    return (
        f"one per GPU, but {socket.gethostname()} has {devices} GPUs for {each} ranks; use fewer ranks or "
        "more machines"
    )


def execute_on_ranks(request: Mapping[str, Any], log: str) -> dict[str, Any]:
    """Run the stage on all ranks and return rank 0's metadata. Raises the root cause
    (`failure_of`): the `RatchetError` of a rank, or a `StageError` that names the rank that died and its
    machine. `StageError` also if too few machines join.
    """
    from torch.distributed import TCPStore  # pyright: ignore[reportPrivateImportUsage]
    from torch.distributed.elastic.multiprocessing.errors import ChildFailedError
    from torch.distributed.elastic.rendezvous import RendezvousTimeoutError

    profile, work = request["options"]["profile"], Workspace(Path(request["work"]))
    count, machines = ranks_of(request), int(profile.get("machines", 1))
    if short := missing_devices(count // machines):
        over = f" on `machines: {machines}`" if machines > 1 else ""
        raise RecipeError(f"stage {request['does']!r}: the profile says `ranks: {count}`{over}, {short}")
    # the rendezvous store lives as long as this call
    store = TCPStore("localhost", 0, is_master=True, wait_for_workers=False)
    host = os.environ.get("RATCHET_ADDRESS", socket.gethostname()) if machines > 1 else "localhost"
    job = Job(request, log, count, machines, f"{host}:{store.port}")
    command = f"ratchet join --home {work.root.parents[2]}"
    shutil.rmtree(job.reports, ignore_errors=True)
    job.reports.mkdir(parents=True)
    if machines > 1:
        others = f"{machines - 1} more machine{'s' * (machines > 2)}"
        print(f"waiting for {others}: run `{command}` on each", flush=True)
        step = {"step": 1, "of": machines, "unit": "machines", "time": time.time(), "metrics": {}}
        write_atomic(work.steps, json.dumps(step))
        write_atomic(work.root / JOB, json.dumps(asdict(job)))
    try:
        run_ranks(job, log)
        return json.loads((job.reports / META).read_text())
    except RendezvousTimeoutError:
        raise StageError(
            f"{job.name} needs {machines} machines, but not all joined within {JOIN_SECONDS} s; run "
            f"`{command}` on each of the others (it prints why it cannot join), or start workers of the "
            "pool that the deployment names for `machines`, then run again"
        ) from None
    except ChildFailedError:
        raise failure_of(job) from None
    finally:
        (work.root / JOB).unlink(missing_ok=True)
        shutil.rmtree(job.reports, ignore_errors=True)


def run_ranks(job: Job, log: str) -> None:
    """Start this machine's ranks once all machines have joined, and wait for them. Raises torch's
    `ChildFailedError`, `RendezvousError` and, on termination, `SignalException`; by then the ranks have
    exited and their exit codes are reported.
    """
    from torch.distributed.elastic.multiprocessing.errors import ChildFailedError
    from torch.distributed.launcher.api import LaunchConfig, elastic_launch

    # a process with an initialised CUDA context must not be forked
    multiprocessing.get_context("forkserver").set_forkserver_preload(PRELOAD)
    config = LaunchConfig(
        min_nodes=job.machines,
        max_nodes=job.machines,
        nproc_per_node=job.ranks_per_machine,
        max_restarts=0,
        run_id=job.id,
        rdzv_backend="c10d",
        rdzv_endpoint=job.endpoint,
        rdzv_configs={"is_host": "false", "join_timeout": JOIN_SECONDS},
        local_addr=os.environ.get("RATCHET_ADDRESS"),
        start_method="forkserver",
        signals_to_handle="SIGTERM",
        shutdown_timeout=3,
    )
    try:
        elastic_launch(config, _rank)(job, log, os.getpid())
    except ChildFailedError as failed:
        for rank, failure in failed.failures.items():
            report(job, rank, log, exitcode=failure.exitcode)
        raise


def _rank(job: Job, log: str, launcher_pid: int) -> None:
    """Main function of a rank. Errors are reported in a file; the launcher only sees an exit code."""
    set_up_process(launcher_pid, log)
    rank = int(os.environ["RANK"])
    print(f"rank {rank} of {job.ranks}: process {os.getpid()}", flush=True)
    from ratchet.components.stages.run import execute
    from ratchet.components.training import ranks

    def give_up() -> None:
        text = (
            f"could not connect to all ranks within {CONNECT_SECONDS:.0f} s; set GLOO_SOCKET_IFNAME "
            "(NCCL_SOCKET_IFNAME) to the network interface between the machines"
        )
        report(job, rank, log, kind="StageError", text=text)
        os._exit(1)

    connecting = threading.Timer(CONNECT_SECONDS, give_up)
    connecting.daemon = True
    try:
        connecting.start()
        ranks.join()
        connecting.cancel()
        if job.machines > 1:
            threading.Thread(target=_exit_with_other_machines, args=(job,), daemon=True).start()
            first, *others = ranks.gather((socket.gethostname(), code_versions()))
            for host, versions in others:
                if why := other_version(versions, host, first[1], first[0]):
                    raise ContractError(why)
        meta = execute(job.request)
        if ranks.first():
            write_atomic(job.reports / META, json.dumps(meta))
    except BaseException as error:
        print(redacted(traceback.format_exc()), flush=True)
        report(job, rank, log, kind=type(error).__name__, text=redacted(str(error)))
        if not isinstance(error, RatchetError):  # broken connections are follow-up errors: let the launcher
            time.sleep(1.0)  # see the dead rank first
        sys.exit(1)  # torch would print a raised exception, which may contain secrets


def other_version(
    theirs: Mapping[str, str], host: str, ours: Mapping[str, str], here: str = socket.gethostname()
) -> str:
    """Which version differs between two machines, as a message; empty if none does."""
    for name in ours:
        if ours[name] != theirs[name]:
            return (
                f"{name} is {theirs[name]} on {host} and {ours[name]} on {here}; all machines of a stage "
                "need the same version"
            )
    return ""


def report(job: Job, rank: int, log: str, **what: Any) -> None:
    """Write how a rank ended: its exit code, or its error type and message."""
    file = job.reports / f"{rank}.{'exit' if 'exitcode' in what else 'error'}"
    with contextlib.suppress(OSError):  # workspace removed: the leader has ended
        write_atomic(file, json.dumps({"host": socket.gethostname(), "log": log, **what}))


def failure_of(job: Job) -> RatchetError:
    """The root cause of a failed stage as one error: the death of a rank explains errors of the others, and a
    `RatchetError` explains broken connections. In this order: a rank killed by a signal, a `RatchetError`,
    out of memory, a machine that left, any other error. Waits for reports of other machines, which may appear
    late on a shared disk.
    """
    deadline = time.monotonic() + (REPORT_SECONDS if job.machines > 1 else 0)
    while len(list(job.reports.glob("*.exit"))) < job.ranks and time.monotonic() < deadline:
        time.sleep(0.2)
    found: dict[int, dict[str, Any]] = {}
    files = job.reports.glob("[0-9]*.e*")  # a report that is being written begins with a dot
    for file in sorted(files, key=lambda file: int(file.stem)):
        found.setdefault(int(file.stem), {}).update(json.loads(file.read_text()))

    def failed(rank: int, text: str, died: bool = True) -> StageError:
        host = f" on {found[rank]['host']}" if job.machines > 1 else ""
        return StageError(f"{job.name}: rank {rank} of {job.ranks}{host} {text}; {advice(rank)}", died=died)

    def advice(rank: int) -> str:
        again = "the other ranks were stopped; run again to continue from the last checkpoint"
        return f"{again} (log: {found[rank]['log']})"

    for rank, one in found.items():
        if one.get("exitcode", 0) < 0 and one["exitcode"] != -signal.SIGTERM:
            return failed(rank, killed_by(-one["exitcode"]))
    raised = {rank: (one["kind"], one["text"]) for rank, one in found.items() if "kind" in one}
    for rank, (kind, text) in raised.items():
        error_type = getattr(errors, kind, None)
        if error_type is StageError:
            return failed(rank, text)
        if isinstance(error_type, type) and issubclass(error_type, RatchetError):
            return error_type(text)
        if kind == "MemoryError":
            smaller = "use a smaller profile (tokens_per_microbatch), more ranks or a higher zero_stage"
            return failed(rank, f"ran out of memory; {smaller}")
    for host in sorted(file.stem for file in job.reports.glob("*.left")):
        text = f"{job.name}: `ratchet join` was stopped on {host}, or its flow run; {advice(min(found))}"
        return StageError(text, died=True)
    for rank, (kind, text) in raised.items():
        gone = " (another machine may be gone)" if job.machines > 1 else ""
        return failed(rank, f"failed: {kind}: {text}{gone}", job.machines > 1)
    codes = ", ".join(f"rank {rank}: exit code {one['exitcode']}" for rank, one in found.items())
    return StageError(f"{job.name} ended without a result ({codes}); {advice(min(found))}", died=True)


def _exit_with_other_machines(job: Job) -> None:
    """Exit once ranks of another machine have failed or the stage is over; NCCL would hang."""
    while job.reports.is_dir() and not list(job.reports.glob("*.exit")):
        time.sleep(1.0)
    time.sleep(5.0)  # time for this rank's own report
    os._exit(1)
