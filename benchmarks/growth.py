"""Scaling of throughput (tokens/s) with sequence length, batch size, completions per prompt, and model size
from 1M to 135M.

Every point is a separate process on random tokens. Models are randomly initialised Llamas; the largest has
the shape of SmolLM2-135M. `step`: a likelihood step; `group`: the same on siblings that share half of their
tokens (length is of a whole row); `sample`: answers of half the length to prompts of the other half.
`sample_processes` and `score_processes` spread one stage's calls over engine processes of one thread each.
"""

from __future__ import annotations

import random
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

from benchmarks.child import Clock, main
from benchmarks.compare import child

# name -> hidden, layers, heads, key-value heads, intermediate, vocabulary
SHAPES = {
    "1M": (160, 4, 5, 5, 480, 512),
    "5M": (256, 6, 4, 2, 768, 2048),
    "20M": (384, 10, 6, 2, 1024, 8192),
    "60M": (512, 16, 8, 4, 1408, 24576),
    "135M": (576, 30, 9, 3, 1536, 49152),
}
PROCESSES = (1, 2, 4)
PARTS, ROWS = 8, 16
"""Slices of a call that is spread over engine processes, and answers in each."""
MILLIONS = {"1M": 1, "5M": 5, "20M": 20, "60M": 60, "135M": 135}
LIMITS = {"tiny": ("1M",), "smollm2": tuple(SHAPES)}


def points(model: str) -> list[dict[str, Any]]:
    """The measured points: one dimension varied at a time around 8 rows of 128 tokens of the largest allowed
    model.
    """
    sizes = LIMITS[model]
    middle: dict[str, Any] = {"size": sizes[-1], "length": 128, "batch": 8, "completions": 8}
    wanted = [
        ("tokens a row", "length", (32, 64, 128, 256, 512, 1024), ("step", "sample")),
        ("rows a step", "batch", (1, 2, 4, 8, 16, 32), ("step", "sample")),
        ("completions a prompt", "completions", (1, 2, 4, 8, 16), ("group", "sample")),
        ("million parameters", "size", sizes, ("step", "sample")),
    ]
    found = []
    for axis, key, values, works in wanted:
        for work in works:
            for value in values:
                point = {
                    **middle,
                    key: value,
                    "work": work,
                    "axis": axis,
                    "value": MILLIONS.get(value, value),
                }
                if key == "completions":
                    point["batch"] = 16
                if key == "length" and work == "sample" and value > 256:
                    continue
                found.append(point)
    for work in ("sample_processes", "score_processes"):
        found += [{**middle, "work": work, "axis": "engine processes", "value": count} for count in PROCESSES]
    return found


def measured(
    model: str, folder: Path, threads: int, environment: dict[str, str], say: Callable[[str], None]
) -> list[dict[str, Any]]:
    """Every point with `tokens_per_second` and `peak_mib`; a failed point is reported and omitted."""
    import json

    found, file = [], folder / "growth-point.json"
    for point in points(model):
        file.write_text(json.dumps({**point, "learning_rate": 1e-5}))
        result = child(
            [
                sys.executable,
                "-m",
                "benchmarks.growth",
                "--work",
                point["work"],
                "--inputs",
                str(file.resolve()),
                "--threads",
                str(threads),
            ],
            environment,
        )
        if "error" in result:
            say(f"growth {point}: {result['error'].splitlines()[-1]}")
            continue
        speed = sum(result["tokens"]) / sum(result["seconds"])
        say(
            f"growth {point['work']:7s} {point['axis']:22s} {point['value']:6} {speed:10.1f} tokens/s "
            f"{result['peak_mib']:7.0f} MiB"
        )
        found.append(
            {**point, "tokens_per_second": round(speed, 2), "peak_mib": round(result["peak_mib"], 1)}
        )
    file.unlink(missing_ok=True)
    return found


def fresh(size: str, folder: Path) -> Path:
    """A model directory of that shape with random weights and a ChatML tokenizer."""
    from transformers import LlamaConfig, LlamaForCausalLM

    from ratchet.components.models.load import save_model
    from ratchet.components.models.tiny import _tokenizer

    hidden, layers, heads, kv, intermediate, vocabulary = SHAPES[size]
    tokenizer = _tokenizer(0)
    model = LlamaForCausalLM(
        LlamaConfig(
            vocab_size=vocabulary,
            hidden_size=hidden,
            intermediate_size=intermediate,
            num_hidden_layers=layers,
            num_attention_heads=heads,
            num_key_value_heads=kv,
            max_position_embeddings=4096,
            tie_word_embeddings=True,
            pad_token_id=tokenizer.pad_token_id,  # pyright: ignore[reportArgumentType]
            eos_token_id=tokenizer.eos_token_id,  # pyright: ignore[reportArgumentType]
            bos_token_id=None,
        )
    )
    save_model(model, tokenizer, folder)  # pyright: ignore[reportArgumentType]
    return folder


def step(point: dict[str, Any], setting: str) -> dict[str, Any]:
    return _learn(point, shared=0, siblings=1)


def group(point: dict[str, Any], setting: str) -> dict[str, Any]:
    return _learn(point, shared=point["length"] // 2, siblings=point["completions"])


def _learn(point: dict[str, Any], *, shared: int, siblings: int) -> dict[str, Any]:
    """One warm-up step and two timed ones. Tokens of all rows, shared prefixes counted for each."""

    from benchmarks.ours import TOKENS, trajectory
    from ratchet.components.stages.job import deterministic
    from ratchet.components.training.objectives import parts
    from ratchet.components.training.torch import TorchLearner
    from ratchet.components.training.trainer import one_step
    from ratchet.components.types import Group, Prompt

    deterministic()
    dice = random.Random(0)
    vocabulary, length, rows = SHAPES[point["size"]][-1], point["length"], point["batch"]

    def drawn(count: int) -> list[int]:
        return [dice.randrange(3, vocabulary) for _ in range(count)]

    groups = []
    for number in range(-(-rows // siblings)):
        prompt = drawn(max(shared, 1))
        answers = [drawn(length - len(prompt)) for _ in range(min(siblings, rows - number * siblings))]
        groups.append(Group(Prompt(str(number), ()), tuple(trajectory(prompt, answer) for answer in answers)))
    with tempfile.TemporaryDirectory() as folder:
        learner = TorchLearner(fresh(point["size"], Path(folder)), learning_rate=point["learning_rate"])
        update, clock = (
            parts([{"name": "likelihood", "reduce": "token_mean", "weight": 1.0, "label": "likelihood"}]),
            Clock(),
        )
        for _ in range(3):
            with clock:
                one_step({"policy": learner}, {"policy": update}, groups, tokens=TOKENS)
    return {"seconds": clock.seconds[1:], "tokens": [rows * length] * 2, "checks": {}}


def sample(point: dict[str, Any], setting: str) -> dict[str, Any]:
    """Answers of half the length: a random model hardly ever samples end-of-turn, and shorter answers count
    fewer tokens.
    """
    from ratchet.components.inference.torch import TorchEngine
    from ratchet.components.types import Request

    dice = random.Random(0)
    vocabulary, length = SHAPES[point["size"]][-1], point["length"]
    count = point["completions"] if point["axis"] == "completions a prompt" else 1
    prompts = [
        [dice.randrange(3, vocabulary) for _ in range(length - length // 2)]
        for _ in range(max(point["batch"] // count, 1))
    ]
    with tempfile.TemporaryDirectory() as folder:
        engine, clock = (
            TorchEngine(fresh(point["size"], Path(folder)), rows=max(point["batch"], count)),
            Clock(),
        )
        engine.generate([Request(prompts[0], count=2, max_tokens=2)])
        with clock:
            found = engine.generate(
                [
                    Request(tokens, count=count, max_tokens=length // 2, seed=i)
                    for i, tokens in enumerate(prompts)
                ]
            )
    return {
        "seconds": clock.seconds,
        "tokens": [sum(len(s.tokens) for answers in found for s in answers)],
        "checks": {},
    }


def sample_processes(point: dict[str, Any], setting: str) -> dict[str, Any]:
    """`PARTS` slices of `ROWS` answers each, by as many engine processes as the point says."""
    from ratchet.components.types import Request

    half = point["length"] // 2

    def requests(number: int) -> list[Any]:
        dice = random.Random(number)  # the warm-up has other prompts: what was computed is not computed again
        return [Request(_tokens(point, dice, half), max_tokens=half, seed=i) for i in range(number)]

    def work(engine: Any, number: int) -> int:
        return sum(len(s.tokens) for answers in engine.generate(requests(number)) for s in answers)

    return _spread(point, work)


def score_processes(point: dict[str, Any], setting: str) -> dict[str, Any]:
    """Log-probs of `PARTS` slices of `ROWS` rows each."""
    from benchmarks.ours import trajectory
    from ratchet.components.types import Group, Prompt

    length = point["length"]

    def row(number: int, dice: random.Random) -> Any:
        prompt = _tokens(point, dice, length // 2)
        return Group(
            Prompt(str(number), ()), (trajectory(prompt, _tokens(point, dice, length - len(prompt))),)
        )

    def work(engine: Any, number: int) -> int:
        dice = random.Random(number)
        engine.score([row(i, dice) for i in range(number)], frozenset({"logprobs"}))
        return number * length

    return _spread(point, work)


def _tokens(point: dict[str, Any], dice: random.Random, count: int) -> list[int]:
    return [dice.randrange(3, SHAPES[point["size"]][-1]) for _ in range(count)]


def _spread(point: dict[str, Any], work: Callable[[Any, int], int]) -> dict[str, Any]:
    """Time `work(engine, rows) -> tokens` of an engine over `point["value"]` processes, after one call in
    which each of them loads the model. With one process the stage's own computes, as in a run.
    """
    import torch

    from ratchet.components.recipes.plain_values import plain
    from ratchet.components.recipes.profile import Profile
    from ratchet.components.stages import shards
    from ratchet.components.stages.job import computing
    from ratchet.tasks.process.engines import start_engines, stop_engines

    count, tokens = point["value"], ROWS * point["length"] // shards.BATCHES  # a slice of scores has 16 rows
    profile = plain(
        Profile(threads=count, engines=count, max_num_seqs=ROWS, tokens_per_microbatch=max(tokens, 1))
    )
    request = {"does": "rollout", "options": {"profile": profile}}
    with tempfile.TemporaryDirectory() as folder, computing({**profile, "threads": 1}):
        place, clock = Path(folder), Clock()
        torch.manual_seed(0)
        model = fresh(point["size"], place / "model")
        workers, connections = [], []
        if count > 1:
            workers, connections = start_engines(request, count, place / "engines.log", ())
        shards.connect(connections)
        try:
            with shards.sharding("rollout", place):
                engine = shards.sharded_engine({**profile, "threads": 1}, model)
                work(engine, count * ROWS)
                with clock:
                    tokens = work(engine, PARTS * ROWS)
        finally:
            shards.connect(())
            for connection in connections:
                connection.close()
            stop_engines(workers)
    return {"seconds": clock.seconds, "tokens": [tokens], "checks": {}}


WORKS = {
    "step": step,
    "group": group,
    "sample": sample,
    "sample_processes": sample_processes,
    "score_processes": score_processes,
}

if __name__ == "__main__":
    main(WORKS, ("torch", "transformers"))
