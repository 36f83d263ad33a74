"""DeepSpeed on two gloo ranks against one process: the same losses, gradients and weights, and checkpoints
that either reads.

This file is also what torchrun starts: every rank works through the jobs and the first one writes what it
saw.
"""

from __future__ import annotations

import json
import os
import random
import shutil
import subprocess
import sys
from collections.abc import Mapping, Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

from ratchet.components.errors import ContractError, RecipeError
from ratchet.components.models.load import load_model, load_tokenizer, new_reward, save_model
from ratchet.components.models.lora import AdapterDisabledReference
from ratchet.components.models.tiny import train_tiny
from ratchet.components.piece import build
from ratchet.components.recipes.defaults import objective_with_defaults
from ratchet.components.training.objectives import parts
from ratchet.components.training.packing import pack
from ratchet.components.training.torch import TorchLearner
from ratchet.components.training.trainer import fit
from ratchet.components.types import Group, Prompt, Trajectory

pytestmark = pytest.mark.skipif(find_spec("deepspeed") is None, reason="DeepSpeed is not installed")

TOLERANCE = 2e-5
"""Of losses, gradient norms and weights (float32, sums in another order); after a few updates of 1e-3."""

OBJECTIVES = {
    "sft": [{"name": "likelihood"}],
    "dpo": [{"name": "preference.dpo", "beta": 0.5}],
    "grpo": [{"name": "clip", "old": "sampled", "reduce": "row_mean"}],
    "reward": [{"name": "ranking.bradley_terry"}],
    "kto": [{"name": "kto", "beta": 0.5, "desirable": 1.5}],
    "ppo": [{"name": "clip", "old": "sampled"}, {"name": "value", "weight": 0.5}],
}
KINDS = {"reward": "reward", "ppo": "policy_with_value"}
ROWS = {"sft": 1, "dpo": 2, "grpo": 4, "reward": 2, "kto": 2, "ppo": 2}
LORA = {"name": "lora", "rank": 4, "alpha": 8.0}


def groups(objective: str) -> list[Group]:
    """Seven groups of random rows of unequal length, some with a long common prefix: no split over two ranks
    is even.
    """
    dice, groups = random.Random(0), []
    for number in range(7):
        prompt = [1, *(dice.randrange(3, 200) for _ in range(dice.randint(2, 9)))]
        rows = [[dice.randrange(3, 200) for _ in range(dice.randint(1, 12))] for _ in range(ROWS[objective])]
        paths = tuple(
            Trajectory(
                (),
                {"tokens": [*prompt, *row]},
                [False] * len(prompt) + [True] * len(row),
                logprobs=[0.0] * len(prompt) + [-5.0 - dice.random()] * len(row),
            )
            for row in rows
        )
        steps = [[0.0] * len(prompt) + [-5.0 - dice.random() for _ in row] for row in rows]
        groups.append(
            Group(
                Prompt(str(number), ()),
                paths,
                {
                    "logprobs.reference": steps,
                    "advantages": [dice.gauss(0, 1) for _ in rows],
                    "returns": [[1.0] * len(step) for step in steps],
                    "values.old": [[0.1] * len(step) for step in steps],
                    **(
                        {
                            "label": [float(number % 3 == 0), None],
                            "trained": [True, False],  # the second row is the mismatched answer
                            "logprobs.reference": [[x - 3.0 if x else x for x in step] for step in steps],
                        }
                        if objective == "kto"
                        else {}
                    ),
                },
            )
        )
    return groups


def learner_of(job: Mapping[str, Any], where: str) -> Any:
    from ratchet.components.training.deepspeed import DeepSpeedLearner

    adapter = build("adapter", job["adapter"]) if job.get("adapter") else None
    options = {
        "kind": KINDS.get(job["objective"], "policy"),
        "adapter": adapter,
        "learning_rate": 1e-3,
        "weight_decay": 0.1,
        "max_grad_norm": 0.5,
        "schedule": "linear",
        "warmup": 1,
        "total": 8,
        **job.get("options", {}),
    }
    if where == "torch":
        return TorchLearner(Path(job["model"]), **options)
    return DeepSpeedLearner(Path(job["model"]), **options, **job.get("zero", {}))


def work(job: Mapping[str, Any], where: str) -> dict[str, Any]:
    """Train with `fit`, from the checkpoint in `folder` when one is there; losses and norms by step, the
    export in `folder`/export.
    """
    learner, folder = learner_of(job, where), Path(job["folder"])
    updates = {"policy": parts([objective_with_defaults(spec, "") for spec in OBJECTIVES[job["objective"]]])}
    options = {
        "batch": 4,
        "epochs": 4,
        "max_steps": job.get("steps", 3),
        "validate_every": 0,
        "patience": 0,
        "save_every": job.get("save_every", 0),
    }
    fit(
        {"policy": learner},
        updates,
        groups(job["objective"]),
        options,
        tokens=job.get("tokens", 24),
        seed=5,
        progress=folder,
        metrics=folder / "metrics.jsonl",
        validation=groups(job["objective"])[:3],
    )
    learner.save(folder / "export")
    for _ in range(2 if where != "torch" else 0):  # the second time into the copy that the first one kept
        learner.save(folder / "live", each_machine=True)
        same = [(folder / at / "model.safetensors").read_bytes() for at in ("live", "export")]
        assert same[0] == same[1]
    lines = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    return {"steps": [line["step"] for line in lines], "metrics": [line["metrics"] for line in lines]}


def on_ranks(count: int, jobs: Sequence[Mapping[str, Any]], folder: Path) -> list[dict[str, Any]]:
    """The jobs' results from `count` ranks under torchrun."""
    (folder / "jobs.json").write_text(json.dumps(list(jobs)))
    root = Path(__file__).resolve().parents[3]
    done = subprocess.run(
        [
            sys.executable,
            "-m",
            "torch.distributed.run",
            "--standalone",
            f"--nproc-per-node={count}",
            __file__,
            str(folder),
        ],
        cwd=root,
        env={**os.environ, "PYTHONPATH": str(root / "infra" / "package"), "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-6000:]
    return json.loads((folder / "results.json").read_text())


def main(folder: Path) -> None:
    import torch

    from ratchet.components.training import ranks

    torch.set_num_threads(1)
    ranks.join()
    results = [work(job, "deepspeed") for job in json.loads((folder / "jobs.json").read_text())]
    if ranks.first():
        (folder / "results.json").write_text(json.dumps(results))


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    policy, reward = tmp_path_factory.mktemp("policy"), tmp_path_factory.mktemp("reward_model")
    train_tiny(policy, steps=3, hidden=64, layers=2, batch=8)
    save_model(new_reward(policy), load_tokenizer(policy), reward)
    return {"policy": str(policy), "reward": str(reward)}


def job(models: Mapping[str, str], folder: Path, objective: str = "sft", **more: Any) -> dict[str, Any]:
    folder.mkdir(parents=True, exist_ok=True)
    return {
        "model": models["reward" if objective == "reward" else "policy"],
        "folder": str(folder),
        "objective": objective,
        **more,
    }


def alike(ours: Mapping[str, Any], theirs: Mapping[str, Any]) -> None:
    assert ours["steps"] == theirs["steps"]
    for mine, other in zip(ours["metrics"], theirs["metrics"], strict=True):
        assert set(mine) == set(other)
        for name in set(mine) - {"tokens_per_second"}:
            assert mine[name] == pytest.approx(other[name], abs=TOLERANCE, rel=TOLERANCE), name


def same_weights(one: Path, other: Path, kind: str = "policy") -> None:
    import torch

    theirs = load_model(other / "export", kind).state_dict()
    for name, value in load_model(one / "export", kind).state_dict().items():
        torch.testing.assert_close(
            value, theirs[name], atol=5 * TOLERANCE, rtol=0, msg=lambda text, name=name: f"{name}: {text}"
        )


def compare(
    models: Mapping[str, str],
    folder: Path,
    wanted: Mapping[str, Mapping[str, Any]],
    together: Sequence[Mapping[str, Any]],
) -> None:
    """Each job in one process with the torch learner against `together`: its results on two ranks."""
    for (name, more), result in zip(wanted.items(), together, strict=True):
        alike(result, work(job(models, folder / "alone" / name, **more), "torch"))
        same_weights(folder / "ranks" / name, folder / "alone" / name, KINDS.get(more["objective"], "policy"))


def jobs_of(
    models: Mapping[str, str], folder: Path, wanted: Mapping[str, Mapping[str, Any]]
) -> list[dict[str, Any]]:
    return [job(models, folder / "ranks" / name, **more) for name, more in wanted.items()]


EQUAL = {
    "sft": {"objective": "sft", "zero": {"zero_stage": 0}},
    "dpo": {"objective": "dpo", "zero": {"zero_stage": 1}},
    "grpo": {"objective": "grpo", "zero": {"zero_stage": 2}},
    "reward": {"objective": "reward", "zero": {"zero_stage": 3}},
    "kto": {"objective": "kto", "zero": {"zero_stage": 2}},
    "sharded": {
        "objective": "sft",
        "zero": {"zero_stage": 3},
        "options": {"gradient_checkpointing": True},
    },
    "offload": {"objective": "sft", "zero": {"zero_stage": 2, "offload_optimizer": True}},
    "lora": {"objective": "dpo", "zero": {"zero_stage": 3}, "adapter": LORA},
}


@pytest.fixture(scope="module")
def two_ranks(
    models: dict[str, str], tmp_path_factory: pytest.TempPathFactory
) -> tuple[Path, list[dict[str, Any]]]:
    """Folder and results of one start of two ranks, which takes as long as all of its jobs: those of `EQUAL`,
    three steps with a checkpoint at each ZeRO stage, and the rest of five steps from a checkpoint of torch.
    """
    folder = tmp_path_factory.mktemp("two_ranks")
    jobs = jobs_of(models, folder, EQUAL)
    for stage in range(4):
        zero = {"zero_stage": stage}
        jobs.append(job(models, folder / f"to_one_{stage}", steps=3, save_every=2, zero=zero))
    work(job(models, folder / "to_two_0", steps=3, save_every=2), "torch")
    for stage in range(4):
        if stage:
            shutil.copytree(folder / "to_two_0", folder / f"to_two_{stage}")
        jobs.append(job(models, folder / f"to_two_{stage}", steps=5, zero={"zero_stage": stage}))
    return folder, on_ranks(2, jobs, folder)


def test_two_ranks_equal_one_process(
    models: dict[str, str], two_ranks: tuple[Path, list[dict[str, Any]]]
) -> None:
    folder, results = two_ranks
    compare(models, folder, EQUAL, results[: len(EQUAL)])


@pytest.mark.slow
@pytest.mark.parametrize("stage", range(4))
def test_every_objective_at_every_stage(models: dict[str, str], tmp_path: Path, stage: int) -> None:
    zero = {"zero_stage": stage}
    wanted = {name: {"objective": name, "zero": zero} for name in OBJECTIVES}
    wanted |= {f"lora_{name}": {"objective": name, "zero": zero, "adapter": LORA} for name in OBJECTIVES}
    wanted |= {
        f"{word}_lora": {"objective": "dpo", "zero": zero, "adapter": {**LORA, word: True}}
        for word in ("dora", "rslora")
    }
    wanted["top"] = {"objective": "sft", "zero": zero, "adapter": {"name": "top_layers", "count": 1}}
    wanted["checkpointing"] = {
        "objective": "sft",
        "zero": zero,
        "options": {"gradient_checkpointing": True, "schedule": "cosine"},
    }
    wanted["one_batch"] = {"objective": "sft", "zero": zero, "tokens": 4096}
    if stage:
        wanted["offload"] = {"objective": "dpo", "zero": {**zero, "offload_optimizer": True}}
    if stage == 3:
        wanted["offload_all"] = {
            "objective": "dpo",
            "zero": {**zero, "offload_optimizer": True, "offload_parameters": True},
        }
    compare(models, tmp_path, wanted, on_ranks(2, jobs_of(models, tmp_path, wanted), tmp_path))


def test_a_checkpoint_is_read_by_any_number_of_ranks(
    models: dict[str, str], two_ranks: tuple[Path, list[dict[str, Any]]], tmp_path: Path
) -> None:
    folder, results = two_ranks
    whole = work(job(models, tmp_path / "whole", steps=5), "torch")
    for stage, result in enumerate(results[-4:]):
        assert (folder / f"to_one_{stage}" / "checkpoint-2" / "tensors.safetensors").is_file()
        alike(result, whole)
        same_weights(folder / f"to_two_{stage}", tmp_path / "whole")
        alike(work(job(models, folder / f"to_one_{stage}", steps=5), "torch"), whole)
        same_weights(folder / f"to_one_{stage}", tmp_path / "whole")


@pytest.mark.parametrize("stage", [0, 2, 3])
def test_parameters_that_an_adapter_adds_are_trained_as_by_torch(
    models: dict[str, str], tmp_path: Path, stage: int
) -> None:
    options = {"adapter": {"name": "steer", "rank": 2, "scale": 1.0, "seed": 0}}
    zero = {"zero_stage": stage}
    theirs = work(job(models, tmp_path / "b", steps=4, **options), "torch")
    alike(work(job(models, tmp_path / "a", steps=4, zero=zero, **options), "deepspeed"), theirs)
    same_weights(tmp_path / "a", tmp_path / "b")


def test_one_rank_equals_the_torch_learner(models: dict[str, str], tmp_path: Path) -> None:
    alike(
        work(job(models, tmp_path / "a", "dpo", zero={"zero_stage": 2}), "deepspeed"),
        work(job(models, tmp_path / "b", "dpo"), "torch"),
    )
    same_weights(tmp_path / "a", tmp_path / "b")
    learner = learner_of(job(models, tmp_path), "deepspeed")
    with pytest.raises(ContractError, match="parameters"):
        learner.restore(learner_of(job(models, tmp_path, adapter=LORA), "torch").state())


@pytest.mark.parametrize("stage", [0, 2, 3])
def test_non_finite_gradient_stops_without_an_update(
    models: dict[str, str], tmp_path: Path, stage: int
) -> None:
    import torch

    from ratchet.components.errors import TrainingError

    learner = learner_of(job(models, tmp_path, zero={"zero_stage": stage}), "deepspeed")
    before = learner.state()["weights"]
    learner.backward(
        learner(pack(groups("sft"), unit="row", tokens=999)[0], frozenset({"logprobs"})).logprobs.sum()
        * float("inf")
    )
    with pytest.raises(TrainingError, match="update 1"):
        learner.step()
    assert all(torch.equal(value, before[name]) for name, value in learner.state()["weights"].items())


@pytest.mark.parametrize("where", ["torch", "deepspeed"])
def test_reference_is_the_model_with_the_adapter_disabled(
    models: dict[str, str], tmp_path: Path, where: str
) -> None:
    from ratchet.components.inference.torch import TorchEngine

    learner, rows = (
        learner_of(job(models, tmp_path, adapter=LORA, zero={"zero_stage": 3}), where),
        groups("grpo"),
    )
    ask = frozenset({"logprobs"})
    initial = TorchEngine(Path(models["policy"])).score(rows, ask)
    for _ in range(2):
        learner.backward(-learner(pack(rows, unit="row", tokens=9999)[0], ask).logprobs.sum())
        learner.step()
    switched_off = AdapterDisabledReference(learner, 40, "", lambda: None).score(rows, ask)
    learner.save(tmp_path / "moved")
    moved = TorchEngine(tmp_path / "moved").score(rows, ask)
    for one, other, far in zip(switched_off, initial, moved, strict=True):
        for mine, theirs, away in zip(one["logprobs"], other["logprobs"], far["logprobs"], strict=True):
            assert mine == pytest.approx(theirs, abs=1e-5) and mine != pytest.approx(away, abs=1e-3)


@pytest.mark.parametrize("where", ["torch", "deepspeed"])
def test_gradient_checkpointing_of_a_mean_pooled_reward_model_changes_nothing(
    models: dict[str, str], tmp_path: Path, where: str
) -> None:
    save_model(new_reward(Path(models["policy"]), pool="mean"), load_tokenizer(models["policy"]), tmp_path)
    norms = []
    for checkpointing in (False, True):
        options = {"gradient_checkpointing": checkpointing}
        learner = learner_of({"model": tmp_path, "objective": "reward", "options": options}, where)
        scores = learner(pack(groups("reward"), unit="pair", tokens=9999)[0], frozenset({"scores"})).scores
        learner.backward((scores[1::2] - scores[::2]).sum())
        norms.append(learner.step()["grad_norm"])
    assert norms[0] > 0 and norms[1] == pytest.approx(norms[0], rel=1e-5)


@pytest.mark.parametrize("where", ["torch", "deepspeed"])
def test_no_forward_pass_has_dropout(models: dict[str, str], tmp_path: Path, where: str) -> None:
    """OPT computes dropout by a number of its decoder, not by a module."""
    import torch
    from transformers import OPTConfig, OPTForCausalLM

    tokenizer = load_tokenizer(models["policy"])
    sizes = dict(vocab_size=len(tokenizer), pad_token_id=tokenizer.pad_token_id, num_hidden_layers=2)
    sizes |= dict(hidden_size=32, word_embed_proj_dim=32, ffn_dim=32, num_attention_heads=2)
    config = OPTConfig(**sizes)
    save_model(OPTForCausalLM(config), tokenizer, tmp_path)
    assert config.dropout == 0.1
    options = {"gradient_checkpointing": True}
    learner = learner_of({"model": tmp_path, "objective": "sft", "options": options}, where)
    batch, ask = pack(groups("sft"), unit="row", tokens=9999)[0], frozenset({"logprobs"})
    passes = [learner(batch, ask).logprobs.detach() for _ in range(2)]
    with torch.no_grad():
        passes.append(learner(batch, ask).logprobs)
    for other in passes[1:]:
        torch.testing.assert_close(other, passes[0], atol=1e-5, rtol=0)


def test_bfloat16_needs_hardware_support(models: dict[str, str], tmp_path: Path) -> None:
    from ratchet.components.models.products import has_bfloat16

    if has_bfloat16():
        pytest.skip("this machine has it")
    with pytest.raises(RecipeError, match=r"precision: bfloat16.*float32"):
        learner_of(job(models, tmp_path, zero={"precision": "bfloat16"}), "deepspeed")


if __name__ == "__main__":
    main(Path(sys.argv[1]))


@pytest.mark.slow
@pytest.mark.parametrize("stage", range(4))
def test_deepspeed_knows_every_key_of_the_configuration(stage: int) -> None:
    from deepspeed.runtime.zero.config import DeepSpeedZeroConfig

    from ratchet.components.training.deepspeed_config import config

    settings = config(zero_stage=stage, precision="bfloat16" if stage > 1 else "float32", max_grad_norm=1.0)
    assert (
        int(DeepSpeedZeroConfig(**settings["zero_optimization"]).stage) == stage
    )  # an unknown key is an error
    assert "auto" not in json.dumps(settings), "`auto` is of one integration, DeepSpeed itself refuses it"
