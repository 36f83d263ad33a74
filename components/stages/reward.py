"""The reward model: Bradley-Terry on human pairs, and the certificate without which the loop refuses it."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from components.engines.torch import TorchEngine
from components.evaluation.certificate import certify
from components.models.load import load_tokenizer, new_reward
from components.run import Job
from components.stages.train import encoded, learn
from components.store import write_atomic
from components.types import Group


def reward(job: Job) -> dict[str, Any]:
    """Train member `member` of the reward models and certify it on held-out pairs."""
    options = job.options
    start = job.work.progress / "start"
    seed = options["seed"] + 1000 * options["member"]
    if not (start / "config.json").exists():
        new_reward(job.path("policy"), start, layers=options["layers"], pool=options["pool"], seed=seed)
    tokenizer = load_tokenizer(start)
    pairs, counts = encoded(job.path("data") / f"{options['data']}.parquet", tokenizer, options["max_tokens"], options["limit"])
    held_out, _ = encoded(job.path("data") / f"{options['validation']}.parquet", tokenizer, options["max_tokens"],
                          options["limit_validation"])
    members = dataclasses.replace(job, options={**options, "seed": seed})
    summary = learn(members, start, pairs, held_out, kind="reward")
    certificate = examine(job.work.product, held_out, options["certificate"], threads=options["profile"]["threads"])
    write_atomic(job.work.product / "certificate.json", json.dumps(certificate, indent=1))
    return {"data": counts, **summary, "certificate": certificate}


def examine(path: Path, pairs: Sequence[Group], limits: Any, *, threads: int | None) -> dict[str, Any]:
    """The certificate of a saved reward model on held-out pairs, read back from disk as the loop will read it."""
    engine = TorchEngine(path, kind="reward", threads=threads)
    scores = score(engine, pairs)
    again = score(TorchEngine(path, kind="reward", threads=threads), pairs[:8])
    alone = [score(engine, [pair])[0] for pair in pairs[:8]]
    lengths = [[sum(t.mask) for t in pair.trajectories] for pair in pairs]
    return certify(scores=scores, lengths=lengths, reloaded=again, alone=alone, limits=limits)


def score(engine: TorchEngine, pairs: Sequence[Group]) -> list[list[float]]:
    """Chosen and rejected score of each pair."""
    return [list(row["scores"]) for row in engine.score(pairs, frozenset({"scores"}))]
