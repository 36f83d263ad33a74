"""The training tasks with TRL's trainers: float32 weights, no dropout; `bf16: true` in mixed precision, and
gradient checkpointing in some settings.

Token ids and step order are given, so every step has the same inputs. A step is timed from the end of the
previous one, including data loading. Its loss is the sum of TRL's micro-batch losses.
"""

from __future__ import annotations

import tempfile
import time
from itertools import pairwise
from typing import Any

import torch
from datasets import Dataset
from torch.utils.data import SequentialSampler
from transformers import (
    AutoModelForCausalLM,
    AutoModelForSequenceClassification,
    AutoTokenizer,
    TrainerCallback,
)
from trl import (
    DPOConfig,
    DPOTrainer,
    GRPOConfig,
    GRPOTrainer,
    RewardConfig,
    RewardTrainer,
    SFTConfig,
    SFTTrainer,
)
from trl.data_utils import pack_dataset

from benchmarks.child import WARM_UP, Clock, device, finish, main
from benchmarks.peer_transformers import mean_logprobs

CHECKPOINTING = "+checkpointing"
"""The end of a setting in which activations are computed again, as ours are."""


class Watch(TrainerCallback):
    """Callback that records step times and micro-batch losses."""

    def __init__(self) -> None:
        self.ends: list[float] = []
        self.losses: list[float] = []
        self.open = 0.0

    def on_train_begin(self, args: Any, state: Any, control: Any, **rest: Any) -> None:
        finish()
        self.ends.append(time.perf_counter())

    def on_step_end(self, args: Any, state: Any, control: Any, **rest: Any) -> None:
        finish()
        self.ends.append(time.perf_counter())
        self.losses.append(self.open)
        self.open = 0.0


def watched(trainer: type) -> type:
    """The trainer with recorded losses and a fixed row order."""

    class Watched(trainer):
        watch: Watch

        def training_step(self, *args: Any, **rest: Any) -> Any:
            loss = super().training_step(*args, **rest)
            self.watch.open += float(loss)
            return loss

    return Watched


def in_order(trainer: type) -> type:
    class InOrder(watched(trainer)):
        def _get_train_sampler(self, *args: Any, **rest: Any) -> Any:
            return SequentialSampler(self.train_dataset)

    return InOrder


def options(inputs: dict[str, Any], steps: int, setting: str, **more: Any) -> dict[str, Any]:
    return {
        "output_dir": tempfile.mkdtemp(),
        "max_steps": steps,
        "learning_rate": inputs["learning_rate"],
        "adam_beta1": inputs["betas"][0],
        "adam_beta2": inputs["betas"][1],
        "adam_epsilon": inputs["eps"],
        "weight_decay": inputs["weight_decay"],
        "max_grad_norm": inputs["max_grad_norm"],
        "optim": "adamw_torch_fused",
        "lr_scheduler_type": "constant",
        "warmup_steps": 0,
        "per_device_train_batch_size": inputs["batch"],
        "bf16": inputs["precision"] == "bfloat16",
        "fp16": False,
        "use_cpu": device() == "cpu",
        "gradient_checkpointing": setting.endswith(CHECKPOINTING),
        "logging_steps": 1,
        "save_strategy": "no",
        "report_to": "none",
        "disable_tqdm": True,
        "dataloader_num_workers": 0,
        "dataloader_pin_memory": False,
        **more,
    }


def policy(inputs: dict[str, Any]) -> Any:
    return AutoModelForCausalLM.from_pretrained(
        inputs["model"], dtype=torch.float32, attn_implementation="sdpa"
    )


def run(trainer: Any, tokens: list[int], check: Any, before: float = 0.0) -> dict[str, Any]:
    """Train; `before`: seconds spent beforehand on all steps together."""
    trainer.watch = Watch()
    trainer.add_callback(trainer.watch)
    trainer.train()
    ends = trainer.watch.ends
    seconds = [b - a + before / len(tokens) for a, b in pairwise(ends)]
    norms = [line["grad_norm"] for line in trainer.state.log_history if "grad_norm" in line]
    return {
        "seconds": seconds[WARM_UP:],
        "tokens": tokens[WARM_UP:],
        "checks": {"loss": trainer.watch.losses, "grad_norm": norms, "after": check(trainer.model.eval())},
    }


def sft(inputs: dict[str, Any], setting: str) -> dict[str, Any]:
    """`padded`; `padding_free`: the rows of a step flattened by the collator; `packed`: by TRL's packing
    beforehand.
    """
    steps = inputs["sft"]
    rows = [
        [
            {
                "input_ids": r["tokens"],
                "labels": [t if m else -100 for t, m in zip(r["tokens"], r["mask"], strict=True)],
            }
            for r in step
        ]
        for step in steps
    ]
    more: dict[str, Any] = {"max_length": None, "dataset_kwargs": {"skip_prepare_dataset": True}}
    if setting == "packed":
        packed = [
            pack_dataset(Dataset.from_list(step), sum(len(r["input_ids"]) for r in step), "bfd")
            for step in rows
        ]
        data = Dataset.from_list([row for step in packed for row in step])
        more |= {
            "packing": True,
            "per_device_train_batch_size": 1,
            "max_length": max(len(r["input_ids"]) for r in data),
        }
    else:
        data = Dataset.from_list([row for step in rows for row in step])
        more |= {"padding_free": setting.startswith("padding_free")}
    trainer = in_order(SFTTrainer)(
        model=policy(inputs),
        args=SFTConfig(**options(inputs, len(steps), setting, **more)),
        train_dataset=data,
        processing_class=AutoTokenizer.from_pretrained(inputs["model"]),
    )
    return run(
        trainer,
        [sum(len(r["tokens"]) for r in step) for step in steps],
        lambda m: mean_logprobs(m, inputs["probe"], inputs["pad"]),
    )


def reward(inputs: dict[str, Any], setting: str) -> dict[str, Any]:
    steps = inputs["pairs"]
    data = Dataset.from_list(
        [
            {"chosen_ids": p["prompt"] + p["chosen"], "rejected_ids": p["prompt"] + p["rejected"]}
            for s in steps
            for p in s
        ]
    )
    model = AutoModelForSequenceClassification.from_pretrained(
        inputs["reward_model"], dtype=torch.float32, attn_implementation="sdpa"
    )
    trainer = in_order(RewardTrainer)(
        model=model,
        args=RewardConfig(**options(inputs, len(steps), setting, max_length=None)),
        train_dataset=data,
        processing_class=AutoTokenizer.from_pretrained(inputs["reward_model"]),
    )

    def scores(model: Any) -> list[float]:
        with torch.no_grad():
            return [
                float(
                    model(
                        input_ids=torch.tensor([row["tokens"]], device=model.device), use_cache=False
                    ).logits[0, 0]
                )
                for row in inputs["probe"]
            ]

    return run(trainer, pair_tokens(inputs), scores)


def dpo(inputs: dict[str, Any], setting: str) -> dict[str, Any]:
    """`in_step`: the reference runs in every step; `precomputed`: before training, its time spread evenly
    over the steps.
    """
    steps, clock = inputs["pairs"], Clock()

    class Given(in_order(DPOTrainer)):
        """Dataset of tokenised pairs."""

        def _prepare_dataset(self, dataset: Any, *args: Any, **rest: Any) -> Any:
            return dataset

        def _precompute_ref_logps(self, *args: Any, **rest: Any) -> Any:
            with clock:
                return super()._precompute_ref_logps(*args, **rest)

    data = Dataset.from_list(
        [{f"{k}_ids": p[k] for k in ("prompt", "chosen", "rejected")} for s in steps for p in s]
    )
    more = {"beta": inputs["beta"], "max_length": None, "precompute_ref_log_probs": setting == "precomputed"}
    trainer = Given(
        model=policy(inputs),
        args=DPOConfig(**options(inputs, len(steps), setting, **more)),
        train_dataset=data,
        processing_class=AutoTokenizer.from_pretrained(inputs["model"]),
    )
    return run(
        trainer,
        pair_tokens(inputs),
        lambda m: mean_logprobs(m, inputs["probe"], inputs["pad"]),
        sum(clock.seconds),
    )


def pair_tokens(inputs: dict[str, Any]) -> list[int]:
    return [
        sum(2 * len(p["prompt"]) + len(p["chosen"]) + len(p["rejected"]) for p in step)
        for step in inputs["pairs"]
    ]


def grpo(inputs: dict[str, Any], setting: str) -> dict[str, Any]:
    """A GRPO step without generation: completions and rewards are given. `setting` is the micro-batch size;
    the step is all completions. Generation and update alternate one to one, so TRL uses the policy's own
    log-probs as the old ones.
    """
    steps, count = inputs["groups"], inputs["completions"]
    groups = [group for step in steps for group in step]

    def given(prompts: list[str], trainer: Any) -> dict[str, Any]:
        chosen = [(groups[int(p)], n % count) for n, p in enumerate(prompts)]
        return {
            "prompt_ids": [g["prompt"] for g, _ in chosen],
            "completion_ids": [g["completions"][n] for g, n in chosen],
            "logprobs": None,
        }

    def reward(prompts: list[str], **rest: Any) -> list[float]:
        return [
            groups[int(p)]["rewards"][n % count] for n, p in enumerate(prompts)
        ]  # not by text, since siblings may be equal

    size = int(setting.removesuffix(CHECKPOINTING))
    more = {
        "per_device_train_batch_size": size,
        "gradient_accumulation_steps": len(steps[0]) * count // size,
        "num_generations": count,
        "max_completion_length": inputs["max_tokens"],
        "loss_type": "grpo",
        "beta": 0.0,
        "shuffle_dataset": False,
    }
    trainer = watched(GRPOTrainer)(
        model=policy(inputs),
        args=GRPOConfig(**options(inputs, len(steps), setting, **more)),
        reward_funcs=reward,
        rollout_func=given,
        train_dataset=Dataset.from_list([{"prompt": str(i)} for i in range(len(groups))]),
        processing_class=AutoTokenizer.from_pretrained(inputs["model"]),
    )
    tokens = [sum(len(g["prompt"]) + len(c) for g in step for c in g["completions"]) for step in steps]
    return run(trainer, tokens, lambda m: mean_logprobs(m, inputs["probe"], inputs["pad"]))


WORKS = {"sft": sft, "reward": reward, "dpo": dpo, "grpo": grpo}

if __name__ == "__main__":
    main(WORKS, ("torch", "transformers", "trl"))
