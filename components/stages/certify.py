"""Stage `certify`: certificate of a reward model trained elsewhere, on held-out pairs of the recipe's
data.
"""

from __future__ import annotations

import json
from typing import Any

import torch

from ratchet.components.data.groups import read_groups
from ratchet.components.errors import DataError
from ratchet.components.evaluation import plots
from ratchet.components.inference.torch import TorchEngine
from ratchet.components.stages import progress
from ratchet.components.stages.job import Job
from ratchet.components.stages.probe import SavedReward, pixels
from ratchet.components.stages.reward import RESCORED, examine, limits_of, verified_answers
from ratchet.components.storage.store import write_atomic
from ratchet.components.text.images import images_of


def certify(job: Job) -> dict[str, Any]:
    """Score the held-out pairs with the engine, the first ones also in plain transformers, and certify. Pairs
    longer than the model's context are left out and counted.
    """
    options, path = job.options, job.path("model")
    records = read_groups(job.path("data") / f"{options['validation']}.parquet")
    if wrong := next((g for g in records if len(g.trajectories) != 2), None):
        raise DataError(
            f"{options['validation']}: expected preference pairs, chosen first; {wrong.prompt.id!r} has "
            f"{len(wrong.trajectories)} answers"
        )
    engine = TorchEngine(path, kind="reward", threads=options["profile"]["threads"])
    longest = getattr(engine.model.config.get_text_config(), "max_position_embeddings", None)
    pairs = [
        g
        for g in map(engine.encode, records)
        if not longest or max(len(t.inputs["tokens"]) for t in g.trajectories) <= longest
    ]
    if not pairs:
        raise DataError(
            f"{options['validation']}: none of {len(records)} pairs fits into the context of {path.name} "
            f"({longest} tokens); shorten them"
        )
    del engine
    answers, truth = verified_answers(job)
    progress.expect(
        "texts", 2 * len(pairs) + sum(len(g.trajectories) for g in answers) + 2 * len(pairs[:RESCORED])
    )
    saved = SavedReward(path)
    with torch.no_grad():
        alone = [
            [
                float(saved(torch.as_tensor(t.inputs["tokens"]), torch.as_tensor(t.mask), shown))
                for t in pair.trajectories
            ]
            for pair in pairs[:RESCORED]
            for shown in [pixels(path, images_of(pair.prompt))]
        ]
    del saved
    certificate = examine(
        path,
        pairs,
        alone,
        limits_of(options),
        threads=options["profile"]["threads"],
        answers=answers,
        truth=truth,
    )
    write_atomic(job.work.product / "certificate.json", json.dumps(certificate, indent=1))
    plots.certificate(certificate, job.work.product / "plots")
    return {
        "counts": {
            "pairs": len(records),
            "kept": len(pairs),
            "longer than the context": len(records) - len(pairs),
        },
        "certificate": certificate,
    }
