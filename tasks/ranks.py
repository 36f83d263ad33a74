"""A stage on several processes of one machine: torchrun's agent, inside the process that the launcher made for the stage.

The agent (`torch.distributed.launcher`, what the command `torchrun` calls) starts the ranks, watches them, and ends all when
one ends badly. Nothing is restarted here: a second run of the stage goes on from its last checkpoint.
"""

from __future__ import annotations

import importlib.util
import json
import multiprocessing
import os
import shutil
import signal
import sys
import time
import traceback
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from components import errors
from components.errors import RatchetError, RecipeError, StageError, redacted
from components.schema import Profile
from components.store import write_atomic


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
    """The stage's meta, as the first rank tells it. Raises the `RatchetError` of the rank that failed first, or a
    `StageError` that names the rank which died."""
    import torch
    from torch.distributed.elastic.multiprocessing.errors import ChildFailedError
    from torch.distributed.launcher.api import LaunchConfig, elastic_launch

    from tasks.launch import PRELOAD

    count, told = ranks_of(request), Path(request["work"]) / "ranks"
    devices = torch.cuda.device_count() if torch.cuda.is_available() else count
    if count > devices:
        raise RecipeError(f"stage {request['does']!r}: the profile says `ranks: {count}`, one a GPU, and this machine has {devices}; "
                          f"take at most {devices}")
    shutil.rmtree(told, ignore_errors=True)
    told.mkdir(parents=True)
    multiprocessing.get_context("forkserver").set_forkserver_preload(PRELOAD)  # a process that has seen a GPU must not be forked
    config = LaunchConfig(min_nodes=1, max_nodes=1, nproc_per_node=count, max_restarts=0, start_method="forkserver",
                          rdzv_backend="c10d", rdzv_endpoint="localhost:0", run_id=f"{request['does']}-{os.getpid()}", shutdown_timeout=3)
    try:
        return elastic_launch(config, _rank)(dict(request), str(told), log, os.getpid())[0]
    except ChildFailedError as error:
        raise _why(request["does"], count, error.failures, told, log) from error
    finally:
        shutil.rmtree(told, ignore_errors=True)


def _rank(request: dict[str, Any], told: str, log: str, agent: int) -> dict[str, Any] | None:
    """One rank, in a process of its own. What goes wrong is written down for the agent, which otherwise sees an exit code."""
    from tasks.launch import die_with, write_to

    die_with(agent)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    write_to(log)
    print(f"rank {os.environ['RANK']} of {os.environ['WORLD_SIZE']}: process {os.getpid()}", flush=True)
    from components import ranks
    from components.run import execute

    try:
        ranks.join()
        meta = execute(request)
        return meta if ranks.first() else None
    except BaseException as error:
        print(redacted(traceback.format_exc()), flush=True)
        number = int(os.environ["RANK"])
        write_atomic(Path(told) / f"{number}.json", json.dumps({"kind": type(error).__name__, "text": redacted(str(error))}))
        if not isinstance(error, RatchetError):
            time.sleep(1.0)  # a broken connection is an echo: the agent shall first see who died
        sys.exit(1)  # torch's agent would print what is raised here, and a secret in it


def _why(does: str, count: int, failures: Mapping[int, Any], told: Path, log: str) -> RatchetError:
    """The one sentence about a stage whose ranks ended badly: a death explains the errors of the others, and one of our
    own errors explains the broken connections of the rest."""
    end = f"the other ranks were stopped; run again to continue from the last checkpoint (log: {log})"
    for rank, failure in sorted(failures.items()):
        if failure.exitcode < 0 and failure.exitcode != -signal.SIGTERM:
            name = signal.Signals(-failure.exitcode).name
            memory = "; the machine probably ran out of memory" if name == "SIGKILL" else ""
            return StageError(f"stage {does!r}: rank {rank} of {count} was killed by {name}{memory}; {end}", died=True)
    written = [(int(file.stem), json.loads(file.read_text())) for file in sorted(told.glob("*.json"))]
    for rank, note in written:
        kind = getattr(errors, note["kind"], None)
        if isinstance(kind, type) and issubclass(kind, RatchetError):
            return kind(note["text"])
        if note["kind"] == "MemoryError":
            return StageError(f"stage {does!r}: rank {rank} of {count} ran out of memory; use a smaller profile (tokens_per_batch), "
                              f"more ranks or a higher zero_stage; {end}", died=True)
    for rank, note in written:
        return StageError(f"stage {does!r}: rank {rank} of {count} failed: {note['kind']}: {note['text']}; {end}")
    codes = ", ".join(f"rank {rank}: exit code {failure.exitcode}" for rank, failure in sorted(failures.items()))
    return StageError(f"stage {does!r} ended without a result ({codes}); {end}", died=True)
