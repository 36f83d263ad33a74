"""A stage's job: its options, inputs and workspace, and how it is carried out.

A stage function takes a `Job` and returns the product's `meta`. It reads its inputs, works in its workspace and writes its product; it
knows no orchestrator and no tracker. All that is here belongs to the key of every product (`plan.source_digest`).
"""

from __future__ import annotations

import resource
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ratchet.components.inference.choose import SAMPLE, ready
from ratchet.components.stages import progress
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
        """The rounds whose product is an input, by what the plan calls it before the round's number."""
        return sorted(int(name.removeprefix(prefix)) for name in self.inputs if name.startswith(prefix))


def carry_out(function: Callable[[Job], Mapping[str, Any] | None], request: Mapping[str, Any]) -> dict[str, Any]:
    """Set the process up (threads, determinism), see that the inputs share a contract, call the stage's function, return its meta."""
    profile = request["options"].get("profile")
    if profile:
        if request["does"] in SAMPLE:
            ready(profile)
        import torch
        from transformers.utils import logging

        logging.disable_progress_bar()
        deterministic()
        if profile["threads"]:
            torch.set_num_threads(profile["threads"])
    inputs = {
        name: Artifact(a["kind"], Path(a["path"]), a["digest"], tuple(a["parents"]), a["meta"])
        for name, a in request["inputs"].items()
    }
    work = Workspace(Path(request["work"]))
    agreed = agree(request["does"], inputs, request["options"])
    before = _processor_seconds()
    with progress.told_in(work.steps):
        meta = function(Job(request["options"], inputs, work)) or {}
    spent = {"cpu_seconds": round(_processor_seconds() - before, 2), "peak_gb": round(_peak_bytes() / 1e9, 3)}
    return {**meta, **record(work.product, agreed), "spent": spent}


def deterministic() -> None:
    """Have torch compute the same numbers from the same numbers, always."""
    import torch

    torch.use_deterministic_algorithms(True, warn_only=torch.cuda.is_available())  # a GPU has no other attention backward
    torch.utils.deterministic.fill_uninitialized_memory = False  # a pass over each new tensor, to find readers of unwritten memory


def _processor_seconds() -> float:
    """Of this process and of those it started that have ended."""
    return sum(u.ru_utime + u.ru_stime for u in map(resource.getrusage, (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)))


def _peak_bytes() -> int:
    """The most memory this process, or the largest it started, ever held. A stage run inline shares its caller's."""
    unit = 1 if sys.platform == "darwin" else 1024
    return unit * max(resource.getrusage(who).ru_maxrss for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))
