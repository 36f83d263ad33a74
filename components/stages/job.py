"""A stage's job: options, inputs and workspace, and its execution.

A stage function takes a `Job` and returns metadata of its output. It reads its inputs and writes its output,
without any orchestrator or tracker. The code here is part of every stage's store key (`plan.source_digest`).
"""

from __future__ import annotations

import resource
import socket
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ratchet.components.inference.choose import SAMPLE, ready
from ratchet.components.stages import progress
from ratchet.components.stages.shards import sharding
from ratchet.components.storage.store import Workspace
from ratchet.components.text.contract import agree, record
from ratchet.components.types import Artifact


@dataclass(frozen=True)
class Job:
    options: Mapping[str, Any]
    inputs: Mapping[str, Artifact]
    work: Workspace

    def path(self, name: str) -> Path:
        return self.inputs[name].path

    def rounds(self, prefix: str) -> list[int]:
        """Round numbers of the inputs whose names are `prefix` plus a number."""
        return sorted(int(name.removeprefix(prefix)) for name in self.inputs if name.startswith(prefix))


def run_job(
    function: Callable[[Job], Mapping[str, Any] | None], request: Mapping[str, Any]
) -> dict[str, Any]:
    """Set up the process (threads, precision, determinism), check that the inputs share a token contract, run
    the stage function, return its metadata.
    """
    profile = request["options"].get("profile")
    if profile and request["does"] in SAMPLE:
        ready(profile)
    inputs = {
        name: Artifact(a["kind"], Path(a["path"]), a["digest"], tuple(a["parents"]), a["meta"])
        for name, a in request["inputs"].items()
    }
    work = Workspace(Path(request["work"]))
    agreed = agree(request["does"], inputs, request["options"])
    before = processor_seconds()
    with (
        progress.report_progress(work.steps),
        computing(profile) if profile else nullcontext(),
        sharding(request["does"], work.progress) as shards,
    ):
        meta = function(Job(request["options"], inputs, work)) or {}
    usage = shards.usage if shards else {}  # of engine processes
    here = [peak for (host, _), (_, peak) in usage.items() if host == socket.gethostname()]
    spent = {
        "cpu_seconds": round(processor_seconds() - before + sum(cpu for cpu, _ in usage.values()), 2),
        "peak_gb": round((peak_bytes() + sum(here)) / 1e9, 3),
        **peak_gpu(),
    }
    return {**meta, **record(work.product, agreed), "spent": spent}


@contextmanager
def computing(profile: Mapping[str, Any]) -> Iterator[None]:
    """Set this process's threads, determinism and precision of matrix products as the profile says."""
    import torch
    from transformers.utils import logging

    from ratchet.components.models.products import product_precision

    logging.disable_progress_bar()
    deterministic()
    if profile["threads"]:
        torch.set_num_threads(profile["threads"])
    with product_precision(profile["precision"]):
        yield


def deterministic() -> None:
    """Enable torch's deterministic algorithms."""
    import torch

    torch.use_deterministic_algorithms(
        True, warn_only=torch.cuda.is_available()
    )  # the attention backward on GPU has no deterministic version
    torch.utils.deterministic.fill_uninitialized_memory = False  # pyright: ignore[reportAttributeAccessIssue]  costs a pass over each new tensor


def processor_seconds() -> float:
    """CPU seconds of this process and its finished children."""
    return sum(
        u.ru_utime + u.ru_stime
        for u in map(resource.getrusage, (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))
    )


def peak_gpu() -> dict[str, float]:
    """`gpu_gb`: peak memory that this process's torch reserved on its GPU; empty if it used none."""
    torch = sys.modules.get("torch")
    if torch is None or not torch.cuda.is_initialized():
        return {}
    return {"gpu_gb": round(torch.cuda.max_memory_reserved() / 1e9, 3)}


def peak_bytes() -> int:
    """Peak resident memory of this process or its largest child. A stage run inline shares its caller's."""
    unit = 1 if sys.platform == "darwin" else 1024
    return unit * max(
        resource.getrusage(who).ru_maxrss for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)
    )
