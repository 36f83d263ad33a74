"""Run a stage in a process of its own, so that running out of memory kills a stage and not the flow.

Children come from a fork server that has loaded already what takes seconds to load: a stage starts in milliseconds and
leaves nothing behind. A child dies with its parent; a cancelled flow takes its child down with it.
"""

from __future__ import annotations

import contextlib
import gc
import multiprocessing
import os
import signal
import sys
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from multiprocessing.forkserver import ensure_running
from pathlib import Path
from typing import Any

from ratchet.components.errors import RatchetError, StageError, redacted
from ratchet.tasks.process.child import PRELOAD, die_with, write_to
from ratchet.tasks.process.ranks import execute_on_ranks, ranks_of

ENVIRONMENT = {
    # What one training step freed, the next takes again. glibc would give it back to the system and fault it in anew, a hundred thousand
    # pages a step (10 to 20 % of the time of SmolLM2's).
    "GLIBC_TUNABLES": "glibc.malloc.mmap_threshold=4294967296:glibc.malloc.trim_threshold=274877906944",
    # torch's threads wait for each other awake, a hundredth of OpenMP's usual time: where something else computes beside them, the one that
    # is waited for has no processor. Two that sample on two cores are seven times as fast for it, one alone four per cent slower.
    "GOMP_SPINCOUNT": "3000",
}
"""Of a stage's process, and of those it starts. What a user sets himself stays."""


def launch(request: Mapping[str, Any], log: Path, *, inline: bool = False,
           tick: Callable[[], None] | None = None, devices: Sequence[str] = ()) -> dict[str, Any]:
    """Execute the stage and return its meta. What it prints goes to `log`. It sees the GPUs `devices`, as CUDA_VISIBLE_DEVICES
    names them, and no others; without any those that this process sees.

    Raises the stage's own `RatchetError`; anything else, or a process that dies, becomes a `StageError` that carries
    the cause. `tick` is called about five times a second while waiting.
    """
    if inline and ranks_of(request) == 1 and not devices:  # CUDA reads its variable once a process: GPUs of its own take a process of its own
        from ratchet.components.stages.run import execute

        return execute(request)
    prepare()
    context = multiprocessing.get_context("forkserver")
    receive, send = context.Pipe(duplex=False)
    log.parent.mkdir(parents=True, exist_ok=True)
    child = context.Process(target=_child, args=(dict(request), send, str(log), os.getpid(), tuple(devices)), daemon=False)
    with _without_main():
        child.start()
    send.close()
    try:
        while not receive.poll(0.2):
            if tick:
                tick()
            if not child.is_alive() and not receive.poll(0):
                break
        answer = receive.recv() if receive.poll(0) else None
        child.join(30)
    except EOFError:
        child.join(30)
        answer = None
    except BaseException:
        _take_down(child)
        raise
    if answer is None:
        raise StageError(_how_it_died(request["does"], child.exitcode, log), died=True)
    kind, value = answer
    if kind == "error":
        raise value
    return value


def prepare() -> None:
    """Start the fork server unless it runs. It loads its modules by itself; the first stage waits for it."""
    multiprocessing.get_context("forkserver").set_forkserver_preload(PRELOAD)
    with _environment(environment()):
        ensure_running()


def environment() -> dict[str, str]:
    """`ENVIRONMENT` as far as the user's own variables leave it in force; a process sets it before it loads torch."""
    return {k: v for k, v in ENVIRONMENT.items() if k != "GOMP_SPINCOUNT" or "OMP_WAIT_POLICY" not in os.environ}


@contextlib.contextmanager
def _without_main() -> Iterator[None]:
    """A stage needs nothing of the script that started the flow; multiprocessing would run that script again."""
    main = sys.modules["__main__"]
    kept = {name: getattr(main, name) for name in ("__spec__", "__file__") if hasattr(main, name)}
    try:
        main.__spec__ = None
        if "__file__" in kept:
            del main.__file__
        yield
    finally:
        for name, value in kept.items():
            setattr(main, name, value)


@contextlib.contextmanager
def _environment(more: Mapping[str, str]) -> Iterator[None]:
    """`more` in the environment of what is started meanwhile, the fork server; what a user set himself stays."""
    added = {name: value for name, value in more.items() if name not in os.environ}
    os.environ.update(added)
    try:
        yield
    finally:
        for name in added:
            os.environ.pop(name, None)  # another thread may have been first


def _child(request: dict[str, Any], send: Any, log: str, parent: int, devices: tuple[str, ...]) -> None:
    if devices:  # for the fork server, which other stages share, has touched no GPU; ranks and a vLLM server inherit it
        os.environ["CUDA_VISIBLE_DEVICES"] = ",".join(devices)
    os.setsid()
    die_with(parent)
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is the parent's to handle
    write_to(log)
    gc.freeze()  # what the fork server had loaded stays: no need to look through it for garbage again and again
    try:
        from ratchet.components.stages.run import execute

        send.send(("meta", execute(request) if ranks_of(request) == 1 else execute_on_ranks(request, log)))
    except RatchetError as error:
        send.send(("error", error))
        _write_down()
    except MemoryError:
        send.send(("error", StageError(f"stage {request['does']!r} ran out of memory; use a smaller profile "
                                       "(tokens_per_batch, sampler_rows) and run again", died=True)))
    except BaseException as error:
        send.send(("error", StageError(f"stage {request['does']!r} failed: {type(error).__name__}: {error} (log: {log})")))
        _write_down()
    finally:
        send.close()


def _write_down() -> None:
    """The traceback, into the log: after the cause was told, for on a full disk there may be no log."""
    with contextlib.suppress(OSError):
        print(redacted(traceback.format_exc()))


def _take_down(child: Any) -> None:
    if child.pid is None:
        return
    for sign in (signal.SIGTERM, signal.SIGKILL):
        try:
            os.killpg(child.pid, sign)
        except (ProcessLookupError, PermissionError):
            child.kill()
        child.join(3)
        if not child.is_alive():
            return


def _how_it_died(does: str, code: int | None, log: Path) -> str:
    if code is not None and code < 0:
        name = signal.Signals(-code).name
        why = "; the machine probably ran out of memory" if -code == signal.SIGKILL else ""
        return f"stage {does!r} was killed by {name}{why}; run again to continue from its last checkpoint (log: {log})"
    return f"stage {does!r} ended without a result, exit code {code} (log: {log})"
