"""Stage `gold`: fits the gold measure, an independent evaluator with another backbone and other data that is
never optimised.
"""

from __future__ import annotations

from typing import Any

from ratchet.components.data.groups import read_groups
from ratchet.components.evaluation import plots
from ratchet.components.evaluation.gold import train_gold
from ratchet.components.stages.job import Job


def gold(job: Job) -> dict[str, Any]:
    """Fit the measure on the `gold` split, which neither policy nor reward model sees, and plot its
    certificate.
    """
    pairs = read_groups(job.path("data") / "gold.parquet")
    held_out = read_groups(job.path("data") / "gold_validation.parquet")
    certificate = train_gold(pairs, held_out, job.path("encoder"), job.work.product)
    plots.certificate(certificate, job.work.product / "plots")
    return {"certificate": certificate}
