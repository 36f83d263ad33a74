"""Engine processes of a stage: one inference engine per device, besides its own process.

They are forked from the launcher's fork server and connected to the stage's process by pipes
(`components/stages/shards.py`). They end with the stage and with the flow process. Those of other machines:
`tasks/process/remote_engines.py`.
"""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import socket
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ratchet.components.errors import RecipeError
from ratchet.components.recipes.profile import engine_processes, gpus_per_engine
from ratchet.components.stages.shards import STAGES, serve
from ratchet.tasks.process.child import send_error, set_up_process

if TYPE_CHECKING:
    from multiprocessing.connection import Connection
    from multiprocessing.process import BaseProcess


def engines_of(request: Mapping[str, Any]) -> int:
    """Number of engine processes of a stage on this machine; 0: it computes in its own process."""
    profile = request["options"].get("profile")
    if not profile or request["does"] not in STAGES:
        return 0
    count = engine_processes(profile)
    return count if count > 1 or int(profile.get("machines", 1)) > 1 else 0


def start_engines(
    request: Mapping[str, Any], count: int, log: Path, devices: Sequence[str]
) -> tuple[list[BaseProcess], list[Connection]]:
    """The processes, and the stage's ends of their connections."""
    workers, connections = [], []
    for number in range(count):
        ours, theirs = multiprocessing.Pipe()
        workers.append(start_engine(theirs, request, (number, count, tuple(devices)), str(log)))
        connections.append(ours)
    return workers, connections


def start_engine(
    connection: Connection, request: Mapping[str, Any], place: tuple[int, int, tuple[str, ...]], log: str
) -> BaseProcess:
    """Start an engine process and hand it the connection. `place`: its number, their count, GPUs of all."""
    given = (connection, request["does"], request["options"]["profile"], place, log, os.getpid())
    process = multiprocessing.get_context("forkserver").Process(target=serve_slices, args=given)
    process.start()
    connection.close()
    return process


def stop_engines(workers: Sequence[BaseProcess]) -> None:
    """End the processes: an idle one has ended with the stage's process."""
    for process in workers:
        process.join(1)
        if process.is_alive():
            process.kill()
            process.join()


def serve_slices(
    connection: Connection,
    does: str,
    profile: Mapping[str, Any],
    place: tuple[int, int, tuple[str, ...]],
    log: str,
    parent: int,
) -> None:
    """Main function of an engine process. An error is sent to the stage, which raises it."""
    number, count, devices = place
    set_up_process(parent, log)
    print(f"engine {number + 1} of {count}: process {os.getpid()}", flush=True)
    where = f"stage {does!r}: engine {number + 1} of {count} on {socket.gethostname()}"
    try:
        _choose_gpus(profile, number, count, devices)
        from ratchet.components.stages.job import computing, peak_bytes, processor_seconds

        own = {**profile, "threads": threads_per_engine(profile["threads"], count)}
        with computing(own):
            serve(connection, own, lambda: (processor_seconds(), peak_bytes() - shared_bytes()))
    except BaseException as error:
        advice = "use fewer `engines` or a smaller profile (max_num_seqs), and run again: shards are kept"
        send_error(connection, where, error, advice, log)


def shared_bytes() -> int:
    """Resident memory of this process that is counted with other processes: of a page that k processes share
    (libraries, mapped weights, what was inherited by fork), the share (k - 1) / k. 0 where the kernel does
    not say; Linux does.
    """
    with contextlib.suppress(OSError):
        lines = Path("/proc/self/smaps_rollup").read_text().splitlines()[1:]
        kilobytes = {name: int(rest.split()[0]) for name, _, rest in (line.partition(":") for line in lines)}
        return 1024 * (kilobytes["Rss"] - kilobytes["Pss"])
    return 0


def threads_per_engine(threads: int | None, count: int) -> int:
    """CPU threads of each of `count` engines: their share of the stage's threads, at least one."""
    return max(1, (threads or len(os.sched_getaffinity(0))) // count)


def _choose_gpus(profile: Mapping[str, Any], number: int, count: int, devices: tuple[str, ...]) -> None:
    """Restrict this process to its GPUs, before CUDA is initialised. `RecipeError` if there are too few."""
    import torch

    if not (found := torch.cuda.device_count()):  # read from the driver, without initialising CUDA
        return
    named = os.environ.get("CUDA_VISIBLE_DEVICES")
    visible = list(devices) or (named.split(",") if named else [str(i) for i in range(found)])
    each = gpus_per_engine(profile)
    if len(visible) < count * each:
        seen = f"{len(visible)} GPU{'s are' if len(visible) != 1 else ' is'} visible"
        raise RecipeError(
            f"the profile needs {count} engines of {each} GPU{'s' * (each > 1)}, but {seen}; set `engines` "
            f"to {max(1, len(visible) // each)}"
        )
    os.environ["CUDA_VISIBLE_DEVICES"] = ",".join(visible[number * each : (number + 1) * each])
