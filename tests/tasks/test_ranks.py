"""A stage on two ranks through the launcher: the profile says how many, a killed one is told, the next run goes on."""

from __future__ import annotations

import dataclasses
import importlib.util
import json
import multiprocessing
import os
import re
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from components import ranks
from components.errors import RatchetError, RecipeError, StageError
from components.models.load import load_policy
from components.plan import plan
from components.recipe import load
from components.run import as_request
from components.schema import Profile
from components.store import RunDirectory, Store
from tasks.launch import launch
from tasks.pipeline import Pipeline
from tasks.ranks import ranks_of

needs_deepspeed = pytest.mark.skipif(importlib.util.find_spec("deepspeed") is None, reason="the extra `scale` is not installed")


def pipeline(recipe: str, home: Path, overrides: list[str], **profile: Any) -> Pipeline:
    """A run of a recipe whose `test` profile is changed."""
    loaded, chosen = load(recipe, overrides=overrides, profile="test")
    chosen = dataclasses.replace(chosen, launch="child", **profile)
    return Pipeline(loaded, chosen, plan(loaded, chosen), Store(home), RunDirectory(home, "a-run"))


def make(line: Pipeline, last: str) -> Path:
    for name in line.stages:
        artifact = line.make(name)
        if name == last:
            return artifact.path
    raise AssertionError(f"no stage {last!r}")


def kill_rank(log: Path, metrics: Callable[[], Path | None], steps: int) -> None:
    """SIGKILL to rank 1 once `steps` steps are in the metrics."""
    deadline = time.monotonic() + 300
    while time.monotonic() < deadline:
        file = metrics()
        if file is not None and len(file.read_text().splitlines()) >= steps:
            break
        time.sleep(0.01)
    os.kill(int(re.findall(r"rank 1 of 2: process (\d+)", log.read_text())[-1]), signal.SIGKILL)


@needs_deepspeed
def test_a_killed_rank_is_told_and_the_next_run_goes_on(tiny_model: Path, fresh_home: Callable[[str], Path]) -> None:
    overrides = ["sft.limit=96", "sft.fit.save_every=2", "sft.validation=null", "sft.fit.epochs=2"]
    home = fresh_home("ranks")
    two = pipeline("sft", home, overrides, learner="deepspeed", ranks=2, zero_stage=2)
    log = two.run.path / "logs" / "sft.log"
    killer = threading.Thread(target=kill_rank, args=(log, lambda: next((home / "store" / ".work").glob("sft-*/product/metrics.jsonl"), None), 5))
    killer.start()
    with pytest.raises(StageError, match=r"stage 'sft': rank 1 of 2 was killed by SIGKILL.*run again to continue from the last checkpoint") as caught:
        make(two, "sft")
    killer.join()
    assert caught.value.retryable and not multiprocessing.active_children()
    assert not alive(log), "a rank outlived the stage"
    assert list((home / "store" / ".work").glob("sft-*/progress/checkpoint-*"))
    product = make(pipeline("sft", home, overrides, learner="deepspeed", ranks=1, zero_stage=0), "sft")  # fewer ranks, another stage
    lines = [json.loads(line)["step"] for line in (product / "metrics.jsonl").read_text().splitlines()]
    assert lines == list(range(1, len(lines) + 1)), "a step is missing or stands twice"
    alone = make(pipeline("sft", fresh_home("alone"), overrides), "sft")
    ours, theirs = load_policy(product).state_dict(), load_policy(alone).state_dict()
    assert max(float((ours[name] - theirs[name]).abs().max()) for name in theirs) < 1e-3


def alive(log: Path) -> list[int]:
    """The ranks named in the log that still run, three seconds later at most."""
    found = [int(pid) for pid in re.findall(r"rank \d of \d: process (\d+)", log.read_text())]
    deadline = time.monotonic() + 3
    while time.monotonic() < deadline:
        found = [pid for pid in found if Path(f"/proc/{pid}").exists()]
        if not found:
            return []
        time.sleep(0.1)
    return found


@needs_deepspeed
@pytest.mark.slow
@pytest.mark.parametrize(("recipe", "overrides", "stage"), [
    ("reward_model", ["reward.limit=48", "reward.limit_validation=24", "reward.certificate.min_accuracy=0.0"], "reward"),
    ("dpo", ["offline.limit=32"], "offline"),
    ("rlvr_grpo", ["online.rounds=3"], "improve"),
    ("ppo", ["online.rounds=2", "online.prompts_per_round=8"], "improve"),
    ("rlvr_grpo", ["online.rounds=3", "online.fit.adapter={name: lora}", "online.prepare=[{name: scoring.logprobs}]",
                   "online.fit.updates.policy=[{name: clip, old: sampled}, {name: kl, weight: 0.05}]"], "improve"),
])
def test_recipes_on_two_ranks_end_as_alone(recipe: str, overrides: list[str], stage: str, tiny_model: Path,
                                           fresh_home: Callable[[str], Path]) -> None:
    homes = [fresh_home("alone"), fresh_home("ranks")]
    products = [make(pipeline(recipe, homes[0], overrides), stage),
                make(pipeline(recipe, homes[1], overrides, learner="deepspeed", ranks=2, zero_stage=3), stage)]
    alone, together = ([json.loads(line)["metrics"] for line in (product / "metrics.jsonl").read_text().splitlines()] for product in products)
    assert len(alone) == len(together)
    for one, two in zip(alone, together, strict=True):
        assert two == pytest.approx(one, abs=1e-3, rel=1e-3)


def test_an_error_of_a_rank_is_the_stages_own(tmp_path: Path) -> None:
    pytest.importorskip("deepspeed")
    (tmp_path / "work" / "product").mkdir(parents=True)
    (tmp_path / "work" / "progress").mkdir()
    recipe, profile = load("sft", profile="test")
    options = {**dataclasses.asdict(recipe.sft), "seed": 0, "profile": {**dataclasses.asdict(profile), "learner": "deepspeed", "ranks": 2}}
    with pytest.raises(RatchetError, match="policy") as caught:
        launch(as_request("sft", json.loads(json.dumps(options)), {}, tmp_path / "work"), tmp_path / "log")
    assert not caught.value.retryable


def test_only_what_learns_takes_more_than_one_process() -> None:
    sizes = dataclasses.asdict(Profile(learner="deepspeed", ranks=4))
    assert ranks_of({"options": {"fit": {}, "profile": sizes}}) == 4
    assert ranks_of({"options": {"rollout": {}, "profile": sizes}}) == ranks_of({"options": {"section": {}}}) == 1


@pytest.mark.parametrize(("profile", "why"), [
    ({"ranks": 2}, "ranks: 2 with `learner: torch`"), ({"learner": "deepspeed", "ranks": 0}, "at least 1"),
    ({"precision": "bfloat16"}, "learns in float32"), ({"offload_optimizer": True}, "an offload with `learner: torch`"),
    ({"learner": "deepspeed", "precision": "bfloat16", "zero_stage": 1}, "keeps no float32 weights"),
    ({"learner": "deepspeed", "offload_optimizer": True, "zero_stage": 0}, "take 1, 2 or 3"),
    ({"learner": "deepspeed", "offload_parameters": True, "zero_stage": 2}, "only stage 3"),
])
def test_a_profile_that_cannot_be_is_one_sentence(profile: dict[str, Any], why: str) -> None:
    with pytest.raises(RecipeError, match=f"profile mine: .*{why}"):
        Profile(name="mine", **profile)


def test_without_deepspeed_a_profile_that_needs_it_is_one_sentence(tmp_path: Path) -> None:
    hidden = tmp_path / "deepspeed.py"
    hidden.write_text("raise ImportError('not here')")
    code = ("from components.learners.deepspeed import DeepSpeedLearner\nfrom components.errors import RecipeError\n"
            "try:\n    DeepSpeedLearner('nowhere')\nexcept RecipeError as error:\n    print(error)")
    root = Path(__file__).resolve().parents[2]
    done = subprocess.run([sys.executable, "-c", code], cwd=root, env={**os.environ, "PYTHONPATH": f"{tmp_path}:{root}"}, capture_output=True, text=True)
    assert "`learner: deepspeed`, and DeepSpeed cannot be imported (not here); pip install 'ratchet-rlhf[scale]'" in done.stdout


def test_where_work_is_done_is_no_part_of_its_key() -> None:
    recipe, profile = load("sft", profile="test")
    many = dataclasses.replace(profile, learner="deepspeed", launch="child")
    more = dataclasses.replace(many, ranks=8, zero_stage=3, offload_optimizer=True, offload_parameters=True)
    one, other = plan(recipe, many), plan(recipe, more)
    assert {n: s.key for n, s in one.items()} == {n: s.key for n, s in other.items()}
    assert other["sft"].options["profile"]["ranks"] == 8


def test_alone_everything_is_mine() -> None:
    assert ranks.count() == 1 and ranks.first() and ranks.gather(3) == [3] and ranks.once(lambda: 5) == 5
    assert ranks.share([3, 1, 2], float) == [0, 1, 2] and ranks.spread([1, 2], lambda items: [i * 2 for i in items]) == [2, 4]
