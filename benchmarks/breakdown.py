"""Profile of one training step: `python -m benchmarks.breakdown --work sft --inputs FILE --threads N`.

Time in operators (torch profiler), grouped by purpose; matmuls are distinguished by their shapes. The rest is
Python and waiting.
"""

from __future__ import annotations

import time
from collections import defaultdict
from pathlib import Path
from typing import Any

from benchmarks.child import main

KINDS = (
    ("scaled_dot_product", "attention"),
    ("flash_attention", "attention"),
    ("adam", "AdamW"),
    ("norm", "norms and clipping"),
    ("exp", "softmax of the output layer"),
    ("index", "gather and scatter"),
    ("gather", "gather and scatter"),
    ("scatter", "gather and scatter"),
    ("embedding", "embedding"),
    ("copy_", "copies"),
    ("cat", "copies"),
    ("repeat_interleave", "copies"),
    ("fill_", "fills"),
    ("zero_", "fills"),
)


def kind(name: str, shapes: list[Any], config: Any) -> str:
    """Purpose of an operator."""
    if name in ("aten::mm", "aten::addmm", "aten::addmm_", "aten::bmm", "mkldnn::_linear_pointwise"):
        sizes = {size for shape in shapes if isinstance(shape, list) for size in shape}
        if config.vocab_size in sizes:
            return "matmul: output layer"
        return "matmul: MLP" if config.intermediate_size in sizes else "matmul: attention projections"
    return next((what for part, what in KINDS if part in name), "elementwise and other")


def step(work: str, inputs: dict[str, Any]) -> dict[str, Any]:
    """Profile the second step of a training task; also its wall time without the profiler."""
    from torch.profiler import ProfilerActivity, profile

    from benchmarks.ours import TOKENS, UPDATES, as_sampled, steps_of
    from ratchet.components.stages.job import deterministic
    from ratchet.components.training.objectives import parts
    from ratchet.components.training.torch import TorchLearner
    from ratchet.components.training.trainer import one_step

    deterministic()
    learner = TorchLearner(
        Path(inputs["reward_model" if work == "reward" else "model"]),
        kind="reward" if work == "reward" else "policy",
        learning_rate=1e-6,
    )
    update = parts([{**UPDATES[work], "weight": 1.0, "label": work}])
    first, second, third = steps_of(work, inputs)[:3]
    if work != "sft":
        first, second, third = (
            [
                g.with_columns(
                    advantages=[1.0] * len(g.trajectories),
                    **{"logprobs.reference": [[0.0] * len(t.mask) for t in g.trajectories]},
                )
                for g in as_sampled(learner, groups)
            ]
            if work != "reward"
            else groups
            for groups in (first, second, third)
        )
    one_step({"policy": learner}, {"policy": update}, first, tokens=TOKENS)
    started = time.perf_counter()
    one_step({"policy": learner}, {"policy": update}, second, tokens=TOKENS)
    plain = time.perf_counter() - started
    started = time.perf_counter()
    with profile(activities=[ProfilerActivity.CPU], record_shapes=True) as recorded:
        one_step({"policy": learner}, {"policy": update}, third, tokens=TOKENS)
    wall = time.perf_counter() - started
    spent: dict[str, float] = defaultdict(float)
    operators: dict[str, float] = defaultdict(float)
    for event in recorded.key_averages(group_by_input_shape=True):
        spent[kind(event.key, event.input_shapes, learner.model.config)] += event.self_cpu_time_total / 1e6
        operators[event.key] += event.self_cpu_time_total / 1e6
    total = sum(spent.values())
    return {
        "seconds": [plain],
        "tokens": [sum(len(t.mask) for g in second for t in g.trajectories)],
        "checks": {},
        "profiled_seconds": wall,
        "shares": {
            name: round(seconds / total, 3) for name, seconds in sorted(spent.items(), key=lambda s: -s[1])
        },
        "operators": {
            name: round(seconds, 3) for name, seconds in sorted(operators.items(), key=lambda s: -s[1])[:25]
        },
    }


WORKS = {
    work: lambda inputs, setting, work=work: step(work, inputs) for work in ("sft", "reward", "dpo", "grpo")
}

if __name__ == "__main__":
    main(WORKS, ("torch", "transformers"))
