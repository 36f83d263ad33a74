"""Benchmark tasks, their peers, and target ratios."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, replace


@dataclass(frozen=True)
class Peer:
    """Another library doing a task. The comparison uses the fastest of `settings` whose numbers agree. A
    library may occur twice, for example with slower settings that need less memory.
    """

    name: str
    settings: tuple[str, ...]
    speed: float | None = None
    memory: float | None = None

    @property
    def module(self) -> str:
        return f"benchmarks.peer_{self.name}"


@dataclass(frozen=True)
class Work:
    """A benchmark task. `tricks`: settings that switch one optimisation off; `loose`: tolerance per check."""

    name: str
    about: str
    peers: tuple[Peer, ...]
    tricks: tuple[str, ...] = ()
    loose: Mapping[str, float] = field(default_factory=dict)


TRAINING = {"grad_norm": 1e-3}  # sums over 135 M squares in different orders
BFLOAT16 = {
    "loss": 2e-2, "grad_norm": 1e-1, "after": 5e-2, "logprobs": 1e-1,
    "greedy_tokens": math.inf, "greedy_logprobs": math.inf,
}  # fmt: skip
"""Tolerances in mixed precision, where a product has 8 significant bits: about 2 % of a step's loss. Greedy
answers may part at any token, so they are not compared.
"""

WORKS: dict[str, Work] = {
    work.name: work
    for work in (
        Work(
            "sft",
            "SFT step, 8 conversations (on a GPU 32)",
            (
                Peer("trl", ("padded", "padding_free", "packed"), 2.0, 0.6),
                Peer("trl", ("padding_free+checkpointing",)),
                Peer("transformers", ("default",)),
            ),
            ("kept", "blas", "full_logits", "unpacked", "not_deterministic", "memory_returned"),
            TRAINING,
        ),
        Work(
            "reward",
            "reward-model step, 8 pairs (32)",
            (Peer("trl", ("padded",), 2.0, 0.6), Peer("trl", ("padded+checkpointing",))),
            ("kept", "blas", "apart", "unpacked", "not_deterministic"),
            TRAINING,
        ),
        Work(
            "dpo",
            "DPO step, 8 pairs (32), reference included",
            (Peer("trl", ("in_step", "precomputed"), 4.0, 0.4), Peer("trl", ("in_step+checkpointing",))),
            ("kept", "blas", "apart", "full_logits", "unpacked", "not_deterministic"),
            TRAINING,
        ),
        Work(
            "grpo",
            "GRPO update, 4 prompts (16) × 8 completions (given)",
            (Peer("trl", ("8", "16"), 4.0, 0.6), Peer("trl", ("8+checkpointing",))),
            ("kept", "blas", "apart", "full_logits", "unpacked", "not_deterministic"),
            TRAINING,
        ),
        Work(
            "sample",
            "sampling 64 prompts (256) × 8 completions with log-probs",
            (Peer("transformers", ("32", "64", "128"), 4.0), Peer("vllm", ("eager", "compiled"), 6.0)),
            ("blas", "prefill_each", "awake"),
        ),
        Work(
            "score",
            "scoring 8 prompts (32) × 8 responses",
            (Peer("transformers", ("one",), 2.0, 0.3), Peer("transformers", ("16",))),
            ("blas", "apart", "full_logits"),
        ),
        Work(
            "score_single",
            "scoring 24 responses (192) to as many prompts",
            (Peer("transformers", ("one",), 2.0, 0.3), Peer("transformers", ("8",))),
            ("blas", "full_logits"),
        ),
    )
}


def in_precision(work: Work, precision: str) -> Work:
    """The task with the tolerances of a precision."""
    return replace(work, loose=BFLOAT16) if precision == "bfloat16" else work
