"""A stage on two data-parallel ranks through the launcher: killed ranks, errors, resume."""

from __future__ import annotations

import dataclasses
import importlib.util
import json
import multiprocessing
import os
import re
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from ratchet.components.errors import ContractError, RatchetError, RecipeError, StageError, TrainingError
from ratchet.components.models.load import load_policy
from ratchet.components.recipes.conform import conform
from ratchet.components.recipes.plain_values import plain
from ratchet.components.recipes.plan import plan
from ratchet.components.recipes.profile import Profile
from ratchet.components.recipes.recipe import load
from ratchet.components.stages.run import as_request
from ratchet.components.storage.run_directory import RunDirectory
from ratchet.components.storage.store import Store
from ratchet.components.training import ranks
from ratchet.components.types import Artifact
from ratchet.tasks.pipeline import Pipeline
from ratchet.tasks.process.launch import launch
from ratchet.tasks.process.ranks import Job, failure_of, ranks_of, report

needs_deepspeed = pytest.mark.skipif(
    importlib.util.find_spec("deepspeed") is None, reason="the extra `scale` is not installed"
)


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


def request(work: Path, inputs: dict[str, Artifact], data: str = "sft", **profile: Any) -> dict[str, Any]:
    """Twelve steps of `sft` in the workspace `work`, with a checkpoint after every second."""
    changes = [
        "sft.validation=null",
        "sft.fit.batch=8",
        "sft.fit.epochs=3",
        "sft.fit.save_every=2",
        "sft.fit.learning_rate=3e-3",
        f"sft.data={data}",
    ]
    recipe, sizes = load("sft", profile="test", overrides=changes)
    for folder in ("product", "progress"):
        (work / folder).mkdir(parents=True, exist_ok=True)
    return as_request(
        "sft",
        {
            **plain(recipe.sft),
            "where": "sft",
            "seed": 0,
            "profile": plain(dataclasses.replace(sizes, launch="child", **profile)),
        },
        inputs,
        work,
    )


def kill_rank(log: Path, metrics: Path, steps: int) -> None:
    """SIGKILL to rank 1 once `steps` steps are in the metrics."""
    while not metrics.exists() or len(metrics.read_text().splitlines()) < steps:
        time.sleep(0.01)
    os.kill(int(re.findall(r"rank 1 of 2: process (\d+)", log.read_text())[-1]), signal.SIGKILL)


@needs_deepspeed
def test_killed_rank_is_reported_and_the_next_run_resumes(
    inputs: dict[str, Artifact], tmp_path: Path
) -> None:
    work, log = tmp_path / "work", tmp_path / "log"
    metrics = work / "product" / "metrics.jsonl"
    threading.Thread(target=kill_rank, args=(log, metrics, 5), daemon=True).start()
    with pytest.raises(StageError, match=r"'sft': rank 1 of 2 .*SIGKILL.*checkpoint") as caught:
        launch(request(work, inputs, learner="deepspeed", ranks=2, zero_stage=2), log)
    assert caught.value.retryable and not multiprocessing.active_children()
    assert not alive(log), "a rank outlived the stage"
    assert list((work / "progress").glob("checkpoint-*")) and len(metrics.read_text().splitlines()) < 12, (
        "the kill came too late"
    )
    launch(request(work, inputs, learner="deepspeed", zero_stage=3), log)  # one rank now, and another stage
    assert [json.loads(line)["step"] for line in metrics.read_text().splitlines()] == list(range(1, 13)), (
        "a step is missing or stands twice"
    )
    launch(request(tmp_path / "alone", inputs), log, inline=True)
    ours, theirs = (
        load_policy(work / "product").state_dict(),
        load_policy(tmp_path / "alone" / "product").state_dict(),
    )
    assert max(float((ours[name] - theirs[name]).abs().max()) for name in theirs) < 1e-4


def alive(log: Path) -> list[int]:
    """The ranks named in the log that still run, half a minute later at most."""
    found = [int(pid) for pid in re.findall(r"rank \d of \d: process (\d+)", log.read_text())]
    deadline = time.monotonic() + 30
    while time.monotonic() < deadline:
        found = [pid for pid in found if Path(f"/proc/{pid}").exists()]
        if not found:
            return []
        time.sleep(0.1)
    return found


@needs_deepspeed
@pytest.mark.slow
@pytest.mark.parametrize(
    ("recipe", "overrides", "stage"),
    [
        (
            "reward_model",
            ["reward.limit=48", "reward.limit_validation=24", "reward.certificate.min_accuracy=null"],
            "reward",
        ),
        ("dpo", ["offline.limit=32"], "offline"),
        ("rlvr_grpo", ["online.rounds=3"], "improve"),
        ("ppo", ["online.rounds=2", "online.prompts_per_round=8"], "improve"),
        (
            "rlvr_grpo",
            [
                "online.rounds=3",
                "online.fit.adapter={name: lora}",
                "online.prepare=[{name: scoring.logprobs}]",
                "online.fit.updates.policy=[{name: clip, old: sampled}, {name: kl, weight: 0.05}]",
            ],
            "improve",
        ),
    ],
)
def test_two_ranks_give_the_same_weights_as_one(
    recipe: str, overrides: list[str], stage: str, tiny_model: Path, fresh_home: Callable[[str], Path]
) -> None:
    homes = [fresh_home("alone"), fresh_home("ranks")]
    products = [
        make(pipeline(recipe, homes[0], overrides), stage),
        make(pipeline(recipe, homes[1], overrides, learner="deepspeed", ranks=2, zero_stage=3), stage),
    ]
    alone, together = (
        [json.loads(line)["metrics"] for line in (product / "metrics.jsonl").read_text().splitlines()]
        for product in products
    )
    assert len(alone) == len(together)
    for one, two in zip(alone, together, strict=True):
        for line in (one, two):
            line.pop("tokens_per_second", None)  # of the machine, not of the work
            line.pop("policy/preference.dpo/accuracy", None)  # signs of margins that begin at zero
        assert two == pytest.approx(one, abs=1e-3, rel=1e-3)


@needs_deepspeed
@pytest.mark.slow
def test_rank_error_is_the_stages_error(inputs: dict[str, Artifact], tmp_path: Path) -> None:
    asked = request(tmp_path / "work", inputs, learner="deepspeed", ranks=2)
    asked["options"] = {**asked["options"], "data": "gold"}  # a recipe that names it is refused
    with pytest.raises(ContractError, match="'gold'"):
        launch(asked, tmp_path / "log")


def test_failure_names_the_rank_and_the_reason(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("ratchet.tasks.process.ranks.REPORT_SECONDS", 0.0)

    def of(exitcode: int, machines: int = 1, last: int = 1, **errors: tuple[str, str]) -> RatchetError:
        """The error when rank `last` ended with `exitcode`, and of ranks r0, r1, ... these errors are
        known.
        """
        work = tmp_path / str(len(list(tmp_path.iterdir())))
        (work / "ranks").mkdir(parents=True)
        (work / "ranks" / ".0.error.123").write_text('{"host')  # a report that is being written
        job = Job({"does": "sft", "work": str(work)}, "a.log", 2 * machines, machines, "")
        report(job, last, "b.log", exitcode=exitcode)
        for rank, (kind, text) in errors.items():
            report(job, int(rank[1:]), "b.log" if rank == f"r{last}" else "a.log", kind=kind, text=text)
        return failure_of(job)

    echo, host = ("RuntimeError", "Connection closed by peer"), socket.gethostname()
    died = of(-9, r0=echo)
    assert (
        isinstance(died, StageError)
        and died.retryable
        and str(died).startswith("stage 'sft': rank 1 of 2 was killed by SIGKILL")
    )
    own = of(1, r0=echo, r1=("TrainingError", "the loss is nan"))
    assert type(own) is TrainingError and str(own) == "the loss is nan"
    assert "rank 1 of 2 ran out of memory" in str(of(1, r1=("MemoryError", "")))
    other = of(1, r1=("KeyError", "'policy'"))
    assert (
        not other.retryable
        and "rank 1 of 2 failed: KeyError: 'policy'" in str(other)
        and "b.log" in str(other)
    )
    assert "rank 1: exit code 3" in str(of(3))
    assert str(of(-9, 2, 3, r0=echo)).startswith(f"stage 'sft': rank 3 of 4 on {host} was killed by SIGKILL")
    assert "(log: b.log)" in str(of(-9, 2, 3, r0=echo))
    gone = of(1, 2, 0, r0=echo)
    assert (
        gone.retryable
        and f"rank 0 of 4 on {host} failed" in str(gone)
        and "another machine may be gone" in str(gone)
    )


FAILING = """
import sys, ratchet.components.training.ranks, ratchet.components.stages.run
from ratchet.tasks.process.ranks import Job, _rank
def execute(request):
    raise ValueError("refused hf_plantedplanted")
ratchet.components.training.ranks.join, ratchet.components.stages.run.execute = lambda: None, execute
import os
try:
    _rank(Job({"work": sys.argv[1]}, "", 2, 1, ""), sys.argv[1] + "/log", os.getppid())
except ValueError as error:  # what torch's agent would print
    print(error)
"""


def test_failure_report_of_a_rank_is_redacted(tmp_path: Path) -> None:
    env = {
        **os.environ,
        "HF_TOKEN": "hf_plantedplanted",
        "RANK": "0",
        "WORLD_SIZE": "2",
        "PYTHONPATH": str(Path(__file__).resolve().parents[3] / "infra" / "package"),
    }
    (tmp_path / "ranks").mkdir()
    done = subprocess.run(
        [sys.executable, "-c", FAILING, str(tmp_path)], env=env, capture_output=True, text=True
    )
    log, note = (tmp_path / "log").read_text(), (tmp_path / "ranks/0.error").read_text()
    assert (
        done.returncode == 1
        and "ValueError: refused ***" in log
        and json.loads(note)["text"] == "refused ***"
    )
    assert "hf_planted" not in log + note + done.stdout + done.stderr


def test_only_training_stages_use_several_ranks() -> None:
    sizes = dataclasses.asdict(Profile(learner="deepspeed", ranks=4))
    assert ranks_of({"options": {"fit": {}, "profile": sizes}}) == 4
    assert (
        ranks_of({"options": {"rollout": {}, "profile": sizes}})
        == ranks_of({"options": {"section": {}}})
        == 1
    )


@pytest.mark.parametrize(
    ("profile", "why"),
    [
        ({"ranks": 2}, "ranks: 2 with `learner: torch`"),
        ({"learner": "deepspeed", "ranks": 0}, "ranks: expected 1 or more, got 0"),
        ({"learner": "deepspeed", "ranks": 6, "machines": 4}, "ranks: 6 on `machines: 4`"),
        ({"machines": 0}, "machines: expected 1 or more, got 0"),
        ({"offload_optimizer": True}, "requires `learner: deepspeed`"),
        (
            {"learner": "deepspeed", "precision": "bfloat16", "zero_stage": 1},
            "precision: bfloat16 with `zero_stage: 1`",
        ),
        ({"learner": "deepspeed", "offload_optimizer": True, "zero_stage": 0}, "use 1, 2 or 3"),
        ({"learner": "deepspeed", "offload_parameters": True, "zero_stage": 2}, "only stage 3"),
    ],
)
def test_invalid_rank_profile_is_an_error(profile: dict[str, Any], why: str) -> None:
    with pytest.raises(RecipeError, match=rf"profile mine.*{why}"):
        conform(Profile, {"name": "mine", **profile}, "profile mine")


def test_profile_that_needs_deepspeed_without_it_is_an_error(tmp_path: Path) -> None:
    hidden = tmp_path / "deepspeed.py"
    hidden.write_text("raise ImportError('not here')")
    code = (
        "from ratchet.components.training.deepspeed import DeepSpeedLearner\nfrom "
        "ratchet.components.errors import RecipeError\n"
        "try:\n    DeepSpeedLearner('nowhere')\nexcept RecipeError as error:\n    print(error)"
    )
    root = Path(__file__).resolve().parents[3]
    done = subprocess.run(
        [sys.executable, "-c", code],
        cwd=root,
        env={**os.environ, "PYTHONPATH": f"{tmp_path}:{root / 'infra' / 'package'}"},
        capture_output=True,
        text=True,
    )
    assert (
        "`learner: deepspeed`: DeepSpeed cannot be imported (not here); run `pip install -e '.[scale]'`"
        in done.stdout
    )


def test_placement_is_not_part_of_the_key() -> None:
    recipe, profile = load("sft", profile="test")
    many = dataclasses.replace(profile, learner="deepspeed", launch="child")
    more = dataclasses.replace(
        many, ranks=8, machines=4, zero_stage=3, offload_optimizer=True, offload_parameters=True
    )
    one, other = plan(recipe, many), plan(recipe, more)
    assert {n: s.key for n, s in one.items()} == {n: s.key for n, s in other.items()}
    assert other["sft"].options["profile"]["ranks"] == 8


def test_single_process_owns_all_rows() -> None:
    assert ranks.count() == 1 and ranks.first() and ranks.gather(3) == [3] and ranks.once(lambda: 5) == 5
    assert ranks.share([3, 1, 2], float) == [0, 1, 2] and ranks.spread(
        [1, 2], lambda items: [i * 2 for i in items]
    ) == [2, 4]
