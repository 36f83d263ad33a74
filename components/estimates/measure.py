"""Throughput benchmark of this machine with a recipe's model: tokens per second in training, scoring and
sampling, and seconds of an optimiser step, in under a minute.

Run as a process: `python -m ratchet.components.estimates.measure request.json answer.json` writes the second
file.
"""

from __future__ import annotations

import importlib
import json
import os
import random
import sys
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from ratchet.components.inference.choose import engine_of
from ratchet.components.models.load import load_tokenizer
from ratchet.components.models.products import product_precision
from ratchet.components.recipes.profile import engine_processes
from ratchet.components.stages.train import make_learner
from ratchet.components.storage.store import write_atomic
from ratchet.components.training.packing import pack
from ratchet.components.types import Group, Prompt, Request, Trajectory

ANSWER = 16  # tokens sampled per row
SECONDS = 3.0  # of repeated training, and of repeated scoring
FIT = {
    "learning_rate": 1e-9,
    "betas": (0.9, 0.999),
    "weight_decay": 0.0,
    "max_grad_norm": 1.0,
    "schedule": "constant",
}


def measure(
    model: Path,
    profile: Mapping[str, Any],
    adapters: Mapping[str, Mapping[str, Any]],
    *,
    length: int,
    prompt: int,
    each: int,
) -> dict[str, Any]:
    """Throughput as in `ratchet.components.estimates.rates.Rates`. Texts are random tokens of `length`, half
    of them in the loss mask; prompts of `prompt` tokens get `each` answers, with as many rows as the profile
    decodes at once.
    """
    texts, engine_rates = _measure_engine(model, profile, length=length, prompt=prompt, each=each)
    learn, update = {}, {}
    for name, adapter in adapters.items():
        learner = make_learner(model, "policy", {**FIT, "adapter": adapter}, profile, total=1, warmup=0)
        updating: list[float] = []

        def step(some: list[Group], learner: Any = learner, updating: list[float] = updating) -> None:
            for batch in pack(some, unit="row", tokens=profile["tokens_per_microbatch"]):
                logprobs = learner(batch, frozenset({"logprobs"})).logprobs
                learner.backward(-(logprobs * batch.mask).sum() / batch.mask.sum())
            started = time.monotonic()
            learner.step()
            updating.append(time.monotonic() - started)

        step(texts[:1])
        each_step = len(texts) * length / _rate(len(texts) * length, lambda step=step: step(texts))
        update[name] = sum(updating[1:]) / len(updating[1:])  # the first creates AdamW's moments
        learn[name] = len(texts) * length / max(each_step - update[name], 1e-9)
    return {"learn": learn, "update": update, **engine_rates}


def _measure_engine(
    model: Path, profile: Mapping[str, Any], *, length: int, prompt: int, each: int
) -> tuple[list[Group], dict[str, float]]:
    """Random texts to train on, an engine's load time, and the throughput of as many engines as the profile
    has, which share its threads. The engine is freed afterwards.
    """
    started, count = time.monotonic(), engine_processes(profile)
    threads = max(1, (profile["threads"] or os.cpu_count() or 1) // count)
    engine = engine_of({**profile, "threads": threads}, model)
    rng = random.Random(0)
    tokens = [t for t in range(len(load_tokenizer(model))) if t not in engine.contract.eos]
    texts = [
        _text([rng.choice(tokens) for _ in range(length)])
        for _ in range(max(1, profile["tokens_per_microbatch"] // length))
    ]
    outputs = frozenset({"logprobs"})
    engine.score(texts[:1], outputs)  # warm-up
    load = time.monotonic() - started
    score = count * _rate(len(texts) * length, lambda: engine.score(texts, outputs))
    requests = [
        Request([rng.choice(tokens) for _ in range(prompt)], count=each, max_tokens=ANSWER, seed=i)
        for i in range(max(1, profile["max_num_seqs"] // each))
    ]
    engine.generate(requests[:1])
    started = time.monotonic()
    sampled = count * sum(len(answer.tokens) for answers in engine.generate(requests) for answer in answers)
    return texts, {"score": score, "sample": sampled / (time.monotonic() - started), "load": load}


def _text(ids: list[int]) -> Group:
    mask = [i >= len(ids) // 2 for i in range(len(ids))]
    prompt = Prompt("measured", ({"role": "user", "content": "?"},))
    return Group(prompt, (Trajectory(({"role": "assistant", "content": "!"},), {"tokens": ids}, mask),))


def _rate(count: int, work: Callable[[], object]) -> float:
    """`count` a second of repeated work, without the first time, when kernels are chosen."""
    work()
    started, times = time.monotonic(), 0
    while (taken := time.monotonic() - started) < SECONDS or not times:
        work()
        times += 1
    return times * count / taken


if __name__ == "__main__":
    request = json.loads(Path(sys.argv[1]).read_text())
    profile = request.pop("profile")
    for module in request.pop("imports"):  # which a stage's process has when it starts
        importlib.import_module(module)
    with product_precision(profile["precision"]):
        found = measure(Path(request.pop("model")), profile, request.pop("adapters"), **request)
    write_atomic(Path(sys.argv[2]), json.dumps(found))
