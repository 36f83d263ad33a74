"""Stage launcher: runs each stage in a subprocess, so that running out of memory kills only the stage.

Children are forked from a fork server that has preloaded slow imports, so a stage starts in milliseconds. A
child exits with its parent; cancelling the flow terminates it.
"""

from __future__ import annotations

import contextlib
import gc
import multiprocessing
import os
import signal
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from multiprocessing import resource_tracker
from multiprocessing.forkserver import ensure_running
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ratchet.components.errors import StageError
from ratchet.tasks.process.child import PRELOAD, interrupts_blocked, killed_by, send_error, set_up_process
from ratchet.tasks.process.engines import accept_engines, engines_of, start_engines, stop_engines
from ratchet.tasks.process.ranks import execute_on_ranks, ranks_of

if TYPE_CHECKING:
    from multiprocessing.connection import Connection

ENVIRONMENT = {
    # Keep freed memory for the next training step. By default glibc returns it to the system, at a cost of a
    # hundred thousand page faults per step (10 to 20 % of the step time of SmolLM2).
    "GLIBC_TUNABLES": "glibc.malloc.mmap_threshold=4294967296:glibc.malloc.trim_threshold=274877906944",
    # OpenMP threads busy-wait (spin) for each other; GOMP_SPINCOUNT 3,000 instead of 300,000 avoids
    # starvation when cores are oversubscribed: two runs sampling on two cores are 7x faster, a single run is
    # 4 % slower.
    "GOMP_SPINCOUNT": "3000",
}
"""Environment of stage processes and their children. Variables set by the user take precedence."""


def launch(
    request: Mapping[str, Any],
    log: Path,
    *,
    inline: bool = False,
    tick: Callable[[], object] | None = None,
    devices: Sequence[str] = (),
) -> dict[str, Any]:
    """Run the stage and return its metadata. Output goes to `log`. `devices`: GPUs visible to the stage, as
    in CUDA_VISIBLE_DEVICES; by default those visible to this process.

    Raises the stage's own `RatchetError`; any other exception, or the death of the process, becomes a
    `StageError` with the cause. `tick` is called about five times per second while waiting.
    """
    engines = engines_of(request)
    # CUDA reads CUDA_VISIBLE_DEVICES once per process
    if inline and ranks_of(request) == 1 and not engines and not devices:
        from ratchet.components.stages.run import execute

        return execute(request)
    prepare()
    context = multiprocessing.get_context("forkserver")
    receive, send = context.Pipe(duplex=False)
    log.parent.mkdir(parents=True, exist_ok=True)
    with without_main():
        workers, connections = start_engines(request, engines, log, devices)
        given = (dict(request), send, str(log), os.getpid(), tuple(devices), connections)
        child = context.Process(target=_child, args=given, daemon=False)
        child.start()
    for connection in (send, *connections):
        connection.close()
    try:
        while not receive.poll(0.2) and child.is_alive():
            if tick:
                tick()
        answer = None
        with contextlib.suppress(EOFError):
            answer = receive.recv() if receive.poll(0) else None
        child.join(30)
    except BaseException:
        _terminate(child)
        raise
    finally:
        stop_engines(workers)
    if answer is None:
        code = child.exitcode or 0
        again = "run again to continue from its last checkpoint"
        why = f"{killed_by(-code)}; {again}" if code < 0 else f"ended without a result, exit code {code}"
        raise StageError(f"stage {request['does']!r} {why} (log: {log})", died=True)
    kind, value = answer
    if kind == "error":
        raise value
    return value


def prepare() -> None:
    """Start the fork server if it is not running; it preloads modules in the background."""
    multiprocessing.get_context("forkserver").set_forkserver_preload(PRELOAD)
    resource_tracker.ensure_running()  # the fork server starts it otherwise, and it unblocks interrupts
    added = environment()
    os.environ.update(added)
    try:
        with interrupts_blocked():
            ensure_running()
    finally:
        for name in added:
            os.environ.pop(name, None)  # another thread may have removed it


def environment() -> dict[str, str]:
    """`ENVIRONMENT` without what the user has set or contradicts; set it before torch is imported."""
    theirs = {*os.environ, *(["GOMP_SPINCOUNT"] if "OMP_WAIT_POLICY" in os.environ else [])}
    return {name: value for name, value in ENVIRONMENT.items() if name not in theirs}


@contextlib.contextmanager
def without_main() -> Iterator[None]:
    """Prevent multiprocessing from re-running the script that started the flow."""
    main = sys.modules["__main__"]
    kept = {name: vars(main)[name] for name in ("__spec__", "__file__") if name in vars(main)}
    try:
        main.__spec__ = None
        vars(main).pop("__file__", None)
        yield
    finally:
        vars(main).update(kept)


def _child(
    request: dict[str, Any],
    send: Any,
    log: str,
    parent: int,
    devices: tuple[str, ...],
    engines: Sequence[Connection],
) -> None:
    # the fork server is shared and has not initialised CUDA; ranks and a vLLM server inherit this
    if devices:
        os.environ["CUDA_VISIBLE_DEVICES"] = ",".join(devices)
    os.setsid()
    set_up_process(parent, log)
    gc.freeze()  # exclude preloaded objects from garbage collection
    try:
        from ratchet.components.stages.run import execute
        from ratchet.components.stages.shards import connect

        with accept_engines(request, log) as arrivals:
            connect(engines, arrivals)
            meta = execute(request) if ranks_of(request) == 1 else execute_on_ranks(request, log)
        send.send(("meta", meta))
    except BaseException as error:
        advice = "use a smaller profile (tokens_per_microbatch, max_num_seqs) and run again"
        send_error(send, f"stage {request['does']!r}", error, advice, log)
    finally:
        send.close()


def _terminate(child: Any) -> None:
    for sign in (signal.SIGTERM, signal.SIGKILL):
        try:
            os.killpg(child.pid, sign)
        except (ProcessLookupError, PermissionError):
            child.kill()
        child.join(3)
        if not child.is_alive():
            return
