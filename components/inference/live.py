"""Engines of models in training: they follow a learner's weights, in memory."""

from __future__ import annotations

import functools
import hashlib
import os
import shutil
import socket
import tempfile
from collections.abc import Callable, Mapping
from multiprocessing.util import Finalize
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from filelock import FileLock, Timeout

from ratchet.components.inference.choose import Kind, engine_of
from ratchet.components.models.device import inference_dtype
from ratchet.components.models.families import is_family
from ratchet.components.training import ranks

if TYPE_CHECKING:
    from ratchet.components.protocols import ModelEngine

MEMORY = Path("/dev/shm")
"""File system in memory of Linux; containers often have only 64 MB there."""
PREFIX, IN_USE = f"ratchet-weights-{os.getuid()}-", "in-use.lock"


def live_engine(
    profile: Mapping[str, Any], learner: Any, folder: Path, kind: Kind
) -> tuple[ModelEngine, Callable[[], None]]:
    """An engine with a learner's weights, and a function that follows them after an update. Collective.

    The built-in engine, and that of models of arrays, share the weights of a learner in this process, in
    float32. Others read the weights, in the precision in which the engine scores, from a folder in memory; a
    vLLM server that was not started here from `folder`, which it must see.
    """
    from ratchet.components.inference.arrays import ArrayEngine
    from ratchet.components.inference.torch import TorchEngine

    dtype = inference_dtype(profile["precision"])
    if hasattr(learner, "merged") and is_family(learner.model):
        engine = ArrayEngine.following(learner)
        return engine, functools.partial(engine.follow, learner)  # pyright: ignore[reportReturnType]
    if profile["engine"] == "torch" and dtype == torch.float32 and hasattr(learner, "merged"):
        engine = TorchEngine.following(
            learner, rows=profile["max_num_seqs"], tokens=profile["tokens_per_microbatch"]
        )
        return engine, functools.partial(engine.follow, learner)
    # of a parameter that ZeRO-3 shards, `numel` is 0
    size = sum(getattr(p, "ds_numel", p.numel()) for p in learner.model.parameters()) * dtype.itemsize
    shared = bool(profile["engine"] == "vllm" and profile["vllm"]["server"])
    place = folder if shared else memory_folder(size) or folder

    def save() -> str:
        learner.save(place, precision=dtype, each_machine=place != folder)
        return ranks.once(lambda: version(place))

    save()
    other: Any = engine_of(profile, place, kind)
    return other, lambda: other.load(place, save())


def memory_folder(size: int) -> Path | None:
    """A new folder in memory, one on each machine of the ranks, for a model of `size` bytes; None unless all
    have twice that much room, as a new version is written before the old one goes. Removed when this process
    ends; that of a killed one by the next call. Collective.
    """
    mine = ""
    if ranks.first_of_machine() and os.access(MEMORY, os.W_OK):
        with FileLock(MEMORY / f"{PREFIX}lock"):
            _remove_abandoned()
            if shutil.disk_usage(MEMORY).free > 2 * size:
                mine = tempfile.mkdtemp(prefix=PREFIX, dir=MEMORY)
                lock = FileLock(Path(mine) / IN_USE)
                lock.acquire()
                # at the end of a process of multiprocessing too, where atexit is not run
                Finalize(None, shutil.rmtree, [mine], {"ignore_errors": True}, exitpriority=1)
                _KEPT.append(lock)
    host = socket.gethostname()
    found = ranks.gather((host, mine))
    by_host = {name: path for name, path in found if path}
    return Path(by_host[host]) if set(by_host) == {name for name, _ in found} else None


_KEPT: list[FileLock] = []
"""Locks of this process's folders, held until it ends."""


def _remove_abandoned() -> None:
    """Remove the folders of processes that were killed: their lock is free."""
    for folder in MEMORY.glob(f"{PREFIX}*/"):
        try:
            with FileLock(folder / IN_USE, timeout=0):
                shutil.rmtree(folder, ignore_errors=True)
        except (Timeout, OSError):
            continue


def version(path: Path) -> str:
    """Digest of a directory's weights by torch's XOR hash of every tensor, read at the speed of memory: tells
    the versions of one run apart, and is no protection against tampering.
    """
    from safetensors import safe_open

    digest = hashlib.sha256()
    for file in sorted([*path.glob("*.safetensors"), *path.glob("*.st")]):
        with safe_open(file, "pt") as weights:
            for name in sorted(weights.keys()):
                found = torch.hash_tensor(weights.get_tensor(name)).view(torch.int64)
                digest.update(f"{name} {int(found)} ".encode())
    return digest.hexdigest()
