"""Recipes for GSM8K and HH-RLHF on small samples in the published format; the published test file is the
evaluation.
"""

from __future__ import annotations

import gzip
import json
import subprocess
import sys
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from ratchet.components.data.groups import read_groups
from ratchet.components.recipes.recipe import load
from ratchet.tasks.pipeline import Pipeline

ROOT = Path(__file__).resolve().parents[2]
RECIPES = ["sft_gsm8k", "rlvr_gsm8k", "reward_hh", "dpo_hh"]
CARD = """---
license: mit
configs:
- config_name: main
  data_files:
  - {split: train, path: main/train-*}
  - {split: test, path: main/test-*}
- config_name: socratic
  data_files:
  - {split: train, path: socratic/train-*}
  - {split: test, path: socratic/test-*}
---
"""
TINY = {"source": "generate:tiny?seed=0", "sha256": None, "format": "tiny", "shape": None}


def gsm8k(folder: Path) -> Path:
    """Parquet files of `question` and `answer`, a worked solution with <<calculations>> and the number after
    ####; two configurations.
    """
    sums = [(a, b) for a in range(10) for b in range(10)]
    rows = [
        {
            "question": f"What is {a} + {b}?",
            "answer": f"There are {a} + {b} = <<{a}+{b}={a + b}>>{a + b} of them.\n#### {a + b}",
        }
        for a, b in sums
    ]
    for config in ("main", "socratic"):
        (folder / config).mkdir(parents=True)
        for name, part in {"train": rows[:70], "test": rows[70:]}.items():
            pq.write_table(pa.Table.from_pylist(part), folder / config / f"{name}-00000-of-00001.parquet")
    (folder / "README.md").write_text(CARD)
    return folder


def hh(folder: Path) -> Path:
    """Gzipped JSON lines of `chosen` and `rejected`, each a whole dialogue in one text."""

    def dialogue(i: int, answer: str) -> str:
        before = f"\n\nHuman: hello there\n\nAssistant: Hi! How are you, number {i}?" if i % 3 == 0 else ""
        return f"{before}\n\nHuman: What is {i % 10} + {i // 10}?\nPlease.\n\nAssistant: {answer}"

    lines = [
        json.dumps(
            {
                "chosen": dialogue(i, f"It is {i % 10 + i // 10}."),
                "rejected": dialogue(i, "Who cares?" if i % 2 else "No."),
            }
        )
        for i in range(100)
    ]
    folder.mkdir(parents=True)
    for name, part in {"train": lines[:76], "test": lines[76:]}.items():
        with gzip.open(folder / f"{name}.jsonl.gz", "wt") as file:
            file.write("\n".join(part) + "\n")
    return folder


def opened(recipe: str, folder: Path, home: Path, *changes: str) -> Pipeline:
    data_folder = gsm8k(folder / "gsm8k") if "gsm8k" in recipe else hh(folder / "hh-rlhf" / "helpful-base")
    small = {
        "gsm8k": ["sft.fit.epochs=1"],
        "hh": ["reward.fit.batch=8", "reward.certificate.min_accuracy=null", "reward.fit.learning_rate=1e-3"],
    }[recipe.rpartition("_")[2]]
    pipeline = Pipeline.open(
        recipe,
        home=home,
        profile="test",
        overrides=[f"data.source=path:{data_folder}", f"models.policy={json.dumps(TINY)}", *small, *changes],
    )
    pipeline.begin()
    return pipeline


CHANGES = {
    "sft_gsm8k": ["sft.fit.batch=16", "sft.fit.learning_rate=1e-3", "sft.fit.epochs=3"],
    "rlvr_gsm8k": [
        "sft.fit.batch=16",
        "online.rounds=2",
        "online.prompts_per_round=6",
        "online.rollout.responses_per_prompt=8",
        "online.rollout.max_tokens=48",
    ],
    "reward_hh": [],
    "dpo_hh": ["sft.fit.batch=8", "offline.fit.batch=8"],
}
SPLITS = {
    "sft_gsm8k": {"sft", "sft_validation"},
    "rlvr_gsm8k": {"sft", "sft_validation", "prompts"},
    "reward_hh": {"reward"},
    "dpo_hh": {"sft", "sft_validation", "pairs", "reward"},
}


@pytest.mark.parametrize("recipe", RECIPES)
def test_published_test_files_are_never_trained_on(recipe: str, tmp_path: Path, tiny_home: Path) -> None:
    pipeline = opened(recipe, tmp_path, tiny_home, *CHANGES[recipe])
    for name in pipeline.stages:
        if name == "evaluate":
            break
        pipeline.make(name)
    curated = pipeline.artifact("curated").path
    prompts = {
        split.stem: {g.prompt.messages[-1]["content"] for g in read_groups(split)}
        for split in curated.glob("*.parquet")
        if split.stem != "statistics"
    }
    published = (
        {f"What is {a} + {b}?" for a in range(7, 10) for b in range(10)}
        if "gsm8k" in recipe
        else {f"What is {i % 10} + {i // 10}?\nPlease." for i in range(76, 100)}
    )
    held_out = set(prompts) - SPLITS[recipe]
    assert held_out == (
        {"evaluate"} if "gsm8k" in recipe else {"evaluate", "reward_validation"} & set(prompts)
    ) and SPLITS[recipe] <= set(prompts)
    assert (
        all(prompts[name] <= published for name in held_out)
        and set().union(*(prompts[name] for name in held_out)) == published
    )
    assert not any(prompts[name] & published for name in SPLITS[recipe])
    trained = [s for s in pipeline.stages.values() if s.does in ("sft", "optimise", "improve", "reward")]
    assert trained and all(pipeline.artifact(stage.name).meta["steps"] > 0 for stage in trained)
    if "gsm8k" in recipe:
        assert pipeline.artifact("drafts").meta["gold"]["rewards.math_verify"][0] >= 30, (
            "the data's own answers were scored first"
        )
        (first, *_) = read_groups(curated / "sft.parquet")
        assert "<<" not in first.trajectories[0].text and first.trajectories[0].text.endswith(
            f"#### {first.prompt.answer}"
        )


@pytest.mark.slow
@pytest.mark.parametrize("recipe", RECIPES)
def test_published_recipe_runs_to_its_report(recipe: str, tmp_path: Path, tiny_home: Path) -> None:
    pipeline = opened(recipe, tmp_path, tiny_home, *CHANGES[recipe])
    for name in pipeline.stages:
        pipeline.make(name)
    assert all(s.state == "done" for s in pipeline.status())
    if "evaluate" in pipeline.stages:
        metrics = json.loads((pipeline.artifact("evaluate").path / "results.json").read_text())["metrics"]
        assert pipeline.recipe.register and all(
            f"{gate}.low" in metrics for gate in pipeline.recipe.register.gates
        ), "every gate is measured"


@pytest.mark.parametrize("recipe", RECIPES)
def test_a_published_recipe_is_checked_offline(recipe: str) -> None:
    """In under two seconds of CPU time, without network."""
    code = (
        "import socket, sys, time; socket.socket.connect = lambda *_: sys.exit('the network was asked')\n"
        f"from ratchet.flows.cli import main; sys.argv = ['ratchet', 'recipes', 'check', {recipe!r}]\n"
        "try: main()\nexcept SystemExit as done: print(done.code or 0)\n"
        "print(time.process_time() < 2)"
    )
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, timeout=120)
    assert f"{recipe}: ok" in done.stdout and done.stdout.strip().endswith("True"), done.stdout + done.stderr


def test_stage_limits_are_not_below_split_limits() -> None:
    """No bound of a stage is under that of its split, or pairs that curation kept would be dropped later."""
    for name in RECIPES:
        recipe = load(name)[0]
        for section in (recipe.sft, recipe.reward, recipe.offline):
            assert section is None or section.max_tokens >= recipe.data.of(section.data).max_tokens, name
        assert recipe.evaluate is None or recipe.evaluate.max_tokens + recipe.data.evaluate.max_tokens <= 1024
        assert recipe.data.sha256 is None and recipe.data.source.startswith("hub:datasets/")
