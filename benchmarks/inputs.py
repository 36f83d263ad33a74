"""Benchmark inputs as token ids, written once for all libraries: conversations, pairs, groups, prompts, and
the model.

Model and conversations come from recipes: `smollm2` from `chat`, `tiny` from `sft`. A pair is a human reply
against a human reply to another prompt; a group is a prompt with eight answers sampled from the model, with
random rewards (the work does not depend on them).
"""

from __future__ import annotations

import argparse
import json
import random
from collections.abc import Mapping, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

from benchmarks.child import device

RECIPES = {"tiny": ("sft", "test"), "smollm2": ("chat", None)}
SIZES = {
    "cpu": {
        "steps": 3,
        "batch": 8,
        "prompts_per_step": 4,
        "completions": 8,
        "prompts": 64,
        "max_tokens": 40,
    },
    "cuda": {
        "steps": 6,
        "batch": 32,
        "prompts_per_step": 16,
        "completions": 8,
        "prompts": 256,
        "max_tokens": 40,
    },
}
"""By device. `steps`: training steps, of which the first is not timed."""
PROMPT_TOKENS = {"tiny": (4, 160), "smollm2": (48, 96)}
OPTIMISER = {
    "learning_rate": 1e-5,
    "betas": [0.9, 0.999],
    "eps": 1e-8,
    "weight_decay": 0.0,
    "max_grad_norm": 1.0,
}


def make(model: str, home: Path, folder: Path) -> Path:
    """Write the inputs file of a model, unless it exists with these sizes and its models exist."""
    file, sizes = folder / f"{model}.json", SIZES[device()]
    if file.exists():
        kept = json.loads(file.read_text())
        same = all(kept.get(name) == value for name, value in {**sizes, **OPTIMISER}.items())
        if same and Path(kept["model"]).is_dir() and Path(kept["reward_model"]).is_dir():
            return file
    from ratchet.tasks.pipeline import Pipeline

    recipe, profile = RECIPES[model]
    pipeline = Pipeline.open(recipe, home=home, profile=profile)
    for stage in (
        "model_policy",
        *[n for n in pipeline.stages if n.startswith("model_") and n != "model_policy"],
        "raw",
        "drafts",
        "curated",
    ):
        pipeline.make(stage)
    written = collect(
        model, pipeline.artifact("model_policy").path, pipeline.artifact("curated").path, folder, sizes
    )
    folder.mkdir(parents=True, exist_ok=True)
    partial = file.with_suffix(".partial")
    partial.write_text(json.dumps(written))
    partial.replace(file)
    return file


def collect(
    model: str, policy: Path, curated: Path, folder: Path, sizes: Mapping[str, int] = SIZES["cpu"]
) -> dict[str, Any]:
    """Collect everything the tasks read. `DataError` if there is too little data."""
    from ratchet.components.data.groups import read_groups
    from ratchet.components.errors import DataError
    from ratchet.components.models.load import load_tokenizer, new_reward, save_model
    from ratchet.components.text.chat import encode_group, encode_prompt
    from ratchet.components.types import Group

    tokenizer = load_tokenizer(policy)
    talks = [
        done
        for group in read_groups(curated / "sft.parquet")
        if (done := encode_group(tokenizer, group, 160)[0]) is not None
    ]
    shortest, longest = PROMPT_TOKENS[model]
    asked: list[tuple[list[int], list[int]]] = []  # prompt and human reply
    for group in read_groups(curated / "prompts.parquet"):
        done, fate = (
            encode_group(tokenizer, group, 400) if len(group.trajectories) == 1 else (None, "dropped")
        )
        if done is None or fate != "kept":
            continue
        tokens = list(done.trajectories[0].inputs["tokens"])
        prompt = encode_prompt(tokenizer, group.prompt)
        if (
            shortest <= len(prompt) <= longest
            and len(tokens) <= longest + 64
            and all(done.trajectories[0].mask[len(prompt) :])
        ):
            asked.append((prompt, tokens[len(prompt) :]))
    steps, size, count = sizes["steps"], sizes["batch"], sizes["prompts"]
    pairs = [
        {"prompt": prompt, "chosen": reply, "rejected": other}
        for (prompt, reply), (_, other) in pairwise(asked)
        if reply != other
    ][: size * steps]
    if len(talks) < (size + 1) * steps or len(asked) < count or len(pairs) < size * steps:
        raise DataError(
            f"{curated}: {len(talks)} conversations, {len(asked)} prompts of {shortest} to {longest} "
            f"tokens with a reply, {len(pairs)} pairs "
            f"of different replies; the benchmarks need {(size + 1) * steps}, {count} and {size * steps}. "
            "Use a recipe with more data"
        )

    def row(group: Group) -> dict[str, Any]:
        return {
            "tokens": list(group.trajectories[0].inputs["tokens"]),
            "mask": [int(m) for m in group.trajectories[0].mask],
        }

    prompts = [prompt for prompt, _ in asked[:count]]
    rewards = new_reward(policy, seed=0)
    save_model(rewards, tokenizer, folder / f"{model}_reward")
    return {
        "name": model,
        "model": str(policy.resolve()),
        "reward_model": str((folder / f"{model}_reward").resolve()),
        **sizes,
        **OPTIMISER,
        "beta": 0.1,
        "pad": tokenizer.pad_token_id,
        "eos": tokenizer.eos_token_id,
        "sft": _steps([row(group) for group in talks], steps, size),
        "pairs": _steps(pairs, steps, size),
        "groups": _steps(
            _sampled(policy, prompts[: sizes["prompts_per_step"] * steps], sizes),
            steps,
            sizes["prompts_per_step"],
        ),
        "asked": prompts,
        "probe": [row(group) for group in talks[size * steps : size * steps + 4]],
    }


def _steps(rows: Sequence[Any], steps: int, size: int) -> list[list[Any]]:
    return [list(rows[i * size : (i + 1) * size]) for i in range(steps)]


def _sampled(policy: Path, prompts: Sequence[list[int]], sizes: Mapping[str, int]) -> list[dict[str, Any]]:
    from ratchet.components.inference.torch import TorchEngine
    from ratchet.components.types import Request

    asked = [
        Request(tokens, count=sizes["completions"], max_tokens=sizes["max_tokens"], seed=i)
        for i, tokens in enumerate(prompts)
    ]
    dice = random.Random(0)
    return [
        {
            "prompt": list(request.tokens),
            "completions": [list(s.tokens) for s in samples],
            "rewards": [dice.random() for _ in samples],
        }
        for request, samples in zip(asked, TorchEngine(policy).generate(asked), strict=True)
    ]


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--model", choices=sorted(RECIPES), required=True)
    parser.add_argument("--home", type=Path, required=True)
    parser.add_argument("--folder", type=Path, required=True)
    given = parser.parse_args()
    print(make(given.model, given.home, given.folder))
