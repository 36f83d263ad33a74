"""This project's side of every task, as a stage does it: the same learner, engine, pieces and determinism.

Training uses gradient checkpointing (as `gradient_checkpointing: true` of a profile), at the cost of a fifth
of the speed; `kept` stores activations. The other settings each switch one optimisation off: `apart` computes
a shared prefix per row instead of per group; `full_logits` materialises all logits; `unpacked` uses one
forward pass per unit (row, pair or group); `prefill_each` reads a prompt once per sample; `blas` uses torch's
BLAS instead of oneDNN (`components/models/products.py`); `not_deterministic` allows non-deterministic
algorithms; `memory_returned` and `awake` omit an environment variable that `ratchet.tasks.process.launch`
sets for stages (see `compare.runner`).
"""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from benchmarks.child import WARM_UP, Clock, device, main
from ratchet.components.inference.torch import TorchEngine
from ratchet.components.models import attention, products, reading
from ratchet.components.pieces.advantages.group_norm import group_norm
from ratchet.components.pieces.scoring.logprobs import logprobs
from ratchet.components.recipes.recipe import load_profile
from ratchet.components.training.objectives import parts
from ratchet.components.training.packing import pack
from ratchet.components.training.torch import TorchLearner
from ratchet.components.training.trainer import one_step
from ratchet.components.types import Context, Group, Prompt, Request, Trajectory

TOKENS = 2048
"""Packed tokens of one forward pass, as in the profile `cpu`; on a GPU as in `gpu`."""
UPDATES: dict[str, dict[str, Any]] = {
    "sft": {"name": "likelihood", "reduce": "token_mean"},
    "reward": {"name": "ranking.bradley_terry", "reduce": "unit_mean"},
    "dpo": {"name": "preference.dpo", "reduce": "unit_mean"},
    "grpo": {"name": "clip", "low": 0.2, "high": 0.2, "old": "sampled", "reduce": "row_mean"},
}


def trajectory(prompt: list[int], answer: list[int], mask: list[int] | None = None) -> Trajectory:
    chosen = [bool(m) for m in mask] if mask else [False] * len(prompt) + [True] * len(answer)
    return Trajectory((), {"tokens": [*prompt, *answer]}, chosen)


def steps_of(work: str, inputs: dict[str, Any]) -> list[list[Group]]:
    """The groups of each step."""
    if work == "sft":
        return [
            [
                Group(Prompt(f"{s}.{i}", ()), (trajectory([], r["tokens"], r["mask"]),))
                for i, r in enumerate(rows)
            ]
            for s, rows in enumerate(inputs["sft"])
        ]
    if work == "grpo":
        return [
            [
                Group(
                    Prompt(f"{s}.{i}", ()),
                    tuple(trajectory(g["prompt"], c) for c in g["completions"]),
                    {"reward.given": g["rewards"]},
                )
                for i, g in enumerate(groups)
            ]
            for s, groups in enumerate(inputs["groups"])
        ]
    return [
        [
            Group(
                Prompt(f"{s}.{i}", ()),
                (trajectory(p["prompt"], p["chosen"]), trajectory(p["prompt"], p["rejected"])),
            )
            for i, p in enumerate(pairs)
        ]
        for s, pairs in enumerate(inputs["pairs"])
    ]


def train(work: str, inputs: dict[str, Any], setting: str) -> dict[str, Any]:
    """All steps of a training task. Work done before the learner starts is included if the peer does it
    within its
    step: DPO's reference log-probs are; GRPO's answers with their log-probs are given.
    """
    kind = "reward" if work == "reward" else "policy"
    path = Path(inputs["reward_model" if kind == "reward" else "model"])
    steps = steps_of(work, inputs)
    packed = packed_tokens()
    before, clock = Clock(), Clock()
    with switched_off(setting), products.product_precision(inputs["precision"]):
        if work == "dpo":
            engine = TorchEngine(path, precision=inputs["precision"], tokens=packed)
            for number, groups in enumerate(steps):
                with before:
                    columns = logprobs(groups, Context(models={"reference": engine}))
                    steps[number] = [
                        g.with_columns(**{"logprobs.reference": c})
                        for g, c in zip(groups, columns["logprobs.reference"], strict=True)
                    ]
            del engine
            gc.collect()
        learner = TorchLearner(
            path,
            kind=kind,
            learning_rate=inputs["learning_rate"],
            betas=tuple(inputs["betas"]),
            eps=inputs["eps"],
            weight_decay=inputs["weight_decay"],
            max_grad_norm=inputs["max_grad_norm"],
            gradient_checkpointing=setting != "kept",
        )
        update = parts(
            [
                {
                    **UPDATES[work],
                    "weight": 1.0,
                    "label": work,
                    **({"beta": inputs["beta"]} if work == "dpo" else {}),
                }
            ]
        )
        lines = []
        for groups in steps:
            if work == "grpo":
                groups = as_sampled(learner, groups)
            with clock:
                if work == "grpo":
                    advantages = group_norm(groups, Context(), reward="reward.given", epsilon=1e-4)[
                        "advantages"
                    ]
                    groups = [g.with_columns(advantages=a) for g, a in zip(groups, advantages, strict=True)]
                lines.append(
                    one_step(
                        {"policy": learner},
                        {"policy": update},
                        groups,
                        tokens=1 if setting == "unpacked" else packed,
                    )
                )
    seconds = [a + b for a, b in zip(clock.seconds, before.seconds or [0.0] * len(steps), strict=True)]
    return {
        "seconds": seconds[WARM_UP:],
        "tokens": [rows_tokens(groups) for groups in steps][WARM_UP:],
        "checks": {
            "loss": [line["policy/loss"] for line in lines],
            "grad_norm": [line["policy/grad_norm"] for line in lines],
            "after": after(learner, inputs),
        },
    }


def packed_tokens() -> int:
    """Packed tokens of one forward pass on this device."""
    return TOKENS if device() == "cpu" else load_profile("gpu").tokens_per_microbatch


def rows_tokens(groups: list[Group]) -> int:
    """Number of tokens of all rows, with prompts and without padding."""
    return sum(len(t.mask) for g in groups for t in g.trajectories)


def as_sampled(learner: TorchLearner, groups: list[Group]) -> list[Group]:
    """The answers with the log-probs that a sampler with these weights would have stored."""
    with torch.no_grad():
        found = learner(
            pack(groups, unit="group", tokens=1 << 30)[0], frozenset({"logprobs"})
        ).logprobs.tolist()
    rows = iter(found)
    return [
        g.replace([replace(t, logprobs=next(rows)[: len(t.mask)]) for t in g.trajectories]) for g in groups
    ]


def after(learner: TorchLearner, inputs: dict[str, Any]) -> list[float]:
    """Output of the trained model on held-out rows: a score or the mean log-prob of the masked-in tokens, per
    row.
    """
    rows = [
        Group(Prompt(str(i), ()), (trajectory([], r["tokens"], r["mask"]),))
        for i, r in enumerate(inputs["probe"])
    ]
    batch = pack(rows, unit="row", tokens=1 << 30)[0]
    with torch.no_grad():
        if learner.kind == "reward":
            return learner(batch, frozenset({"scores"})).scores.tolist()
        return batch.row_mean(learner(batch, frozenset({"logprobs"})).logprobs).tolist()


def score(inputs: dict[str, Any], setting: str) -> dict[str, Any]:
    """Log-probs of given answers: eight answers to each of eight prompts, or (`score_single`) one to each."""
    groups = [group for step in steps_of("grpo", inputs)[:2] for group in step]
    return _score(inputs, setting, groups)


def score_single(inputs: dict[str, Any], setting: str) -> dict[str, Any]:
    """Log-probs of given answers to different prompts, where nothing is shared."""
    return _score(inputs, setting, [g.take([0]) for step in steps_of("dpo", inputs) for g in step])


def _score(inputs: dict[str, Any], setting: str, groups: list[Group]) -> dict[str, Any]:
    engine = TorchEngine(Path(inputs["model"]), precision=inputs["precision"], tokens=packed_tokens())
    clock = Clock()
    with switched_off(setting), products.product_precision(inputs["precision"]):
        for _ in range(1 + WARM_UP):
            with clock:
                found = engine.score(groups, frozenset({"logprobs"}))
    sums = [sum(steps) for row in found for steps in row["logprobs"]]
    return {"seconds": clock.seconds[WARM_UP:], "tokens": [rows_tokens(groups)], "checks": {"logprobs": sums}}


def sample(inputs: dict[str, Any], setting: str) -> dict[str, Any]:
    """All completions of all prompts, until end-of-turn or the limit. Tokens: all sampled ones, including the
    last.
    """
    profile = load_profile("cpu" if device() == "cpu" else "gpu")
    engine = TorchEngine(Path(inputs["model"]), rows=profile.max_num_seqs, precision=inputs["precision"])
    clock = Clock()
    count, most = inputs["completions"], inputs["max_tokens"]
    greedy = [Request(tokens, max_tokens=16, temperature=0.0) for tokens in inputs["asked"][:4]]
    checked = [samples[0] for samples in engine.generate(greedy)]
    asked = [
        Request(tokens, count=count, max_tokens=most, seed=i) for i, tokens in enumerate(inputs["asked"])
    ]
    if setting == "prefill_each":
        asked = [
            replace(request, count=1, seed=request.seed * count + n)
            for request in asked
            for n in range(count)
        ]
    with switched_off(setting), products.product_precision(inputs["precision"]), clock:
        answers = engine.generate(asked)
    return {
        "seconds": clock.seconds,
        "tokens": [sum(len(s.tokens) for samples in answers for s in samples)],
        "checks": {
            "greedy_tokens": [t for s in checked for t in s.tokens],
            "greedy_logprobs": [p for s in checked for p in s.logprobs],
        },
    }


@contextmanager
def switched_off(setting: str) -> Iterator[None]:
    """Context in which one optimisation is replaced by its plain equivalent."""
    kept, strict = (
        (attention.SHARED, reading.chosen_logprobs, products.onednn_is_faster),
        torch.are_deterministic_algorithms_enabled(),
    )
    torch.use_deterministic_algorithms(setting != "not_deterministic", warn_only=device() == "cuda")
    torch.utils.deterministic.fill_uninitialized_memory = False  # pyright: ignore[reportAttributeAccessIssue]
    if setting == "apart":
        attention.SHARED = 1 << 30
    if setting == "full_logits":
        reading.chosen_logprobs = full_logprobs
    if setting == "blas":
        products.onednn_is_faster = lambda: False
    try:
        yield
    finally:
        attention.SHARED, reading.chosen_logprobs, products.onednn_is_faster = kept
        torch.use_deterministic_algorithms(strict)


def full_logprobs(
    hidden: Tensor, weight: Tensor, targets: Tensor, *, bias: Tensor | None = None, **rest: Any
) -> tuple[Tensor, None]:
    """Log-probs of `targets` (N,) from all logits (N, V) at once, with torch's autograd."""
    return torch.nn.functional.linear(hidden, weight, bias).log_softmax(-1).gather(1, targets[:, None])[
        :, 0
    ], None


WORKS = {
    **{work: lambda inputs, setting, work=work: train(work, inputs, setting) for work in UPDATES},
    "score": score,
    "score_single": score_single,
    "sample": sample,
}

if __name__ == "__main__":
    main(WORKS, ("torch", "transformers"))
