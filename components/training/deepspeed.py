"""Data-parallel training backend: DeepSpeed ZeRO over the arithmetic of the torch learner.

ZeRO (arXiv 1910.02054) replicates all training state on each of N ranks (stage 0) or shards the optimizer
state (1), the gradients too (2), the weights too (3). ZeRO-Offload (arXiv 2101.06840) keeps optimizer state
or weights in host memory.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Literal, final

import torch
from torch import Tensor, nn

from ratchet.components.errors import ContractError, RecipeError, TrainingError
from ratchet.components.models.layers import language_model
from ratchet.components.models.load import load_model, load_tokenizer, save_model
from ratchet.components.models.lora import FOLDER, save_adapter
from ratchet.components.models.products import has_bfloat16
from ratchet.components.recipes.families import family_of
from ratchet.components.training import ranks
from ratchet.components.training.deepspeed_config import config, import_deepspeed, quiet
from ratchet.components.training.deepspeed_module import Rows
from ratchet.components.training.torch import Schedule, rate, without_dropout
from ratchet.components.types import Batch, Outputs, Read

MOMENTS = ("exp_avg", "exp_avg_sq")


@final
class DeepSpeedLearner:
    """A `Learner` over `ranks.count()` processes. Options and checkpoints are those of `TorchLearner`: a run
    may resume with another number of ranks, another ZeRO stage or the other learner.

    `backward` takes this rank's part of the loss. `__call__`, `backward`, `step`, `state` and `save` are
    collective.
    """

    def __init__(
        self,
        model_path: Path,
        *,
        kind: Literal["policy", "policy_with_value", "reward"] = "policy",
        adapter: Callable[[nn.Module], nn.Module] | None = None,
        learning_rate: float = 1e-5,
        betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-8,
        weight_decay: float = 0.0,
        max_grad_norm: float | None = 1.0,
        schedule: Schedule = "constant",
        warmup: float = 0,
        total: int = 0,
        gradient_checkpointing: bool = False,
        threads: int | None = None,
        zero_stage: int = 2,
        offload_optimizer: bool = False,
        offload_parameters: bool = False,
        precision: Literal["float32", "bfloat16"] = "float32",
    ) -> None:
        if found := family_of(model_path):
            raise ContractError(
                f"{model_path}: a model of the family {found['name']!r} trains with `learner: torch`, not "
                "with deepspeed"
            )
        deepspeed = import_deepspeed()
        if precision == "bfloat16" and not has_bfloat16():
            raise RecipeError(
                "profile `precision: bfloat16`: this machine only emulates bfloat16; set float32"
            )
        if threads:
            torch.set_num_threads(threads)
        ranks.join()
        self.kind, self.path, self.adapter, self.stage = kind, Path(model_path), adapter, zero_stage
        self.tokenizer = load_tokenizer(model_path)
        self.model, self.trained = self._load()
        self.copied: tuple[nn.Module, nn.Module] | None = None
        self.checkpointing = gradient_checkpointing
        if gradient_checkpointing:
            language_model(self.model).gradient_checkpointing_enable({"use_reentrant": False})
        named = {n: p for n, p in self.trained.named_parameters() if p.requires_grad}
        if not named:
            raise TrainingError("no trainable parameters: the adapter froze every parameter")
        decayed = {n: p for n, p in named.items() if p.dim() > 1}
        self.parameters = {
            **decayed,
            **{n: p for n, p in named.items() if p.dim() <= 1},
        }  # order of torch's optimizer state
        groups = [
            {"params": list(decayed.values()), "weight_decay": weight_decay},
            {"params": [p for n, p in named.items() if n not in decayed], "weight_decay": 0.0},
        ]
        self.sizes = [len(group["params"]) for group in groups]
        optimiser = torch.optim.AdamW(
            [g for g in groups if g["params"]], lr=learning_rate, betas=betas, eps=eps, fused=True
        )
        self.max_grad_norm = max_grad_norm
        if not zero_stage:
            optimiser.register_step_pre_hook(self._clip)
        with quiet():
            self.engine, *_ = deepspeed.initialize(
                model=Rows(self.model, self.trained, kind, zero_stage),
                optimizer=optimiser,
                config=config(
                    zero_stage=zero_stage,
                    offload_optimizer=offload_optimizer,
                    offload_parameters=offload_parameters,
                    precision=precision,
                    max_grad_norm=max_grad_norm,
                ),
            )
        self._make_moments()
        self.steps, self.norm = 0, 0.0
        self.schedule = {
            "peak": learning_rate,
            "schedule": schedule,
            "warmup": warmup,
            "total": total,
        }

    def _load(self) -> tuple[nn.Module, nn.Module]:
        model = load_model(self.path, self.kind)
        return model, without_dropout(self.adapter(model) if self.adapter else model)

    def _make_moments(self) -> None:
        """Create AdamW's moments now instead of at the first step: a checkpoint may be loaded before, and
        DeepSpeed 0.19 expects the moments of all parameter groups once the first group has stepped.
        """
        zero = self.engine.optimizer
        parts = {0: lambda: list(self.parameters.values()), 3: lambda: zero.fp32_partitioned_groups_flat}
        for part in parts.get(self.stage, lambda: zero.single_partition_of_fp32_groups)():
            self.engine.basic_optimizer.state[part] = {
                "step": torch.zeros((), device=part.device),
                **{key: torch.zeros_like(part, requires_grad=False) for key in MOMENTS},
            }
        if self.stage in (1, 2):
            zero._lazy_init_hp_params_optimizer_state()

    def __call__(self, batch: Batch, outputs: frozenset[str | Read]) -> Outputs:
        """Forward pass; see `ratchet.components.models.forward.model_outputs`. Outputs are float32 on the
        CPU.
        """
        # transformers checkpoints in training mode only; all dropout is 0
        self.model.train(self.checkpointing and torch.is_grad_enabled())
        return Outputs({name: values.float().cpu() for name, values in self.engine(batch, outputs).items()})

    def backward(self, loss: Tensor) -> None:
        """Accumulate the gradient of this rank's part of the loss. Scaled by the world size, since DeepSpeed
        averages over ranks.
        """
        if loss.requires_grad:
            self.engine.backward(loss * ranks.count(), scale_wrt_gas=False)

    def step(self, at: tuple[float, float] | None = None) -> dict[str, float]:
        """AdamW update with the gradients of all ranks; `at`: as of `Learner.step`. `TrainingError` if the
        gradient norm is not finite.
        """
        now = rate(*(at or (self.steps, 1.0)), **self.schedule)
        self._take(now)
        overflow = bool(getattr(self.engine.optimizer, "overflow", False))
        norm = (
            math.inf
            if overflow
            else self.norm
            if not self.stage
            else float(self.engine.get_global_grad_norm() or 0.0)
        )
        if not math.isfinite(norm):
            raise TrainingError(
                f"the gradient norm of update {self.steps + 1} is {norm}; the weights were not touched. "
                "Lower the learning rate or inspect the records of this step"
            )
        self.steps += 1
        return {"grad_norm": norm, "learning_rate": now}

    def _take(self, learning_rate: float) -> None:
        for group in self.engine.optimizer.param_groups:
            group["lr"] = learning_rate
        self.engine.step()

    def _clip(self, optimiser: torch.optim.Optimizer, *_: Any) -> None:
        """Stage 0: clip the all-reduced gradient before AdamW reads it."""
        limit = math.inf if self.max_grad_norm is None else self.max_grad_norm
        self.norm = float(nn.utils.clip_grad_norm_(list(self.parameters.values()), limit))
        if not math.isfinite(self.norm):
            optimiser.zero_grad(set_to_none=True)  # AdamW then skips every parameter; `step` raises

    def state(self) -> dict[str, Any]:
        """As `TorchLearner.state`, with full (unsharded) tensors on rank 0 and {} on the others."""
        learnt = bool(self.steps)
        weights: dict[str, Tensor] = {}
        moments: dict[int, dict[str, Tensor]] = {}
        for index, (name, parameter) in enumerate(self.parameters.items()):
            whole = {key: self._whole(parameter, key) for key in (None, *(MOMENTS if learnt else ()))}
            if ranks.first():
                weights[name] = whole[None]
                moments[index] = {
                    "step": torch.tensor(float(self.steps)),
                    **{key: whole[key] for key in MOMENTS if learnt},
                }
        if not ranks.first():
            return {}
        numbers, filled = list(range(len(self.parameters))), iter(self.engine.basic_optimizer.param_groups)
        groups, at = [], 0
        for size in self.sizes:  # TorchLearner keeps empty parameter groups, DeepSpeed drops them
            like = next(filled) if size else self.engine.basic_optimizer.defaults
            groups.append(
                {**{k: v for k, v in like.items() if k != "params"}, "params": numbers[at : at + size]}
            )
            at += size
        return {
            "weights": weights,
            "optimiser": {"state": moments if learnt else {}, "param_groups": groups},
            "steps": self.steps,
        }

    def restore(self, state: Mapping[str, Any]) -> None:
        """Load a `state` saved with any number of ranks. `ContractError` if its parameters are those of
        another adapter or model.
        """
        if set(state["weights"]) != set(self.parameters):
            odd = sorted(set(state["weights"]) ^ set(self.parameters))
            raise ContractError(
                f"checkpoint and learner train different parameters, e.g. {odd[0]!r}; use the adapter "
                "that the checkpoint was made with"
            )
        moments = state["optimiser"]["state"]
        for index, (name, parameter) in enumerate(self.parameters.items()):
            self._set(parameter, None, state["weights"][name])
            for key in MOMENTS:
                self._set(
                    parameter,
                    key,
                    moments[index][key] if moments else torch.zeros_like(state["weights"][name]),
                )
        for partition in self.engine.basic_optimizer.state.values():
            partition["step"].fill_(state["steps"])
        self.steps = state["steps"]

    def save(self, path: Path, *, precision: torch.dtype = torch.float32, each_machine: bool = False) -> None:
        """Save a Hugging Face model directory with tokenizer from rank 0, or from the first rank of each
        machine, which then keeps a copy of the model in host memory for the next time. The trained weights
        are copied into the initial model (adapters merged), so frozen weights are never gathered.
        """
        writes = ranks.first_of_machine() if each_machine else ranks.first()
        copied = (self.copied or self._load()) if writes else None
        into = dict(copied[1].named_parameters()) if copied else {}
        for name, parameter in self.parameters.items():
            whole = self._whole(parameter)
            if copied:
                with torch.no_grad():
                    into[name].copy_(whole)
        if copied:
            model, trained = copied
            self.copied = copied if each_machine else None
            if hasattr(trained, "merge_and_unload"):
                save_adapter(trained, Path(path) / FOLDER)
                kept: Any = copy.deepcopy(trained) if each_machine else trained
                model = kept.merge_and_unload()
            save_model(model, self.tokenizer, Path(path), precision)
        ranks.gather(None)  # barrier: the directory is complete before any rank reads it

    def _whole(self, parameter: nn.Parameter, moment: str | None = None) -> Tensor:
        """Full (unsharded) parameter or AdamW moment as a float32 CPU copy. Collective."""
        from deepspeed.utils import safe_get_full_fp32_param, safe_get_full_optimizer_state

        if not self.stage:
            found = self.engine.basic_optimizer.state[parameter][moment] if moment else parameter
        else:
            found = (
                safe_get_full_optimizer_state(parameter, moment)
                if moment
                else safe_get_full_fp32_param(parameter)
            )
        assert found is not None, "DeepSpeed does not manage this parameter"
        return found.detach().float().cpu().clone()

    def _set(self, parameter: nn.Parameter, moment: str | None, value: Tensor) -> None:
        """Set a parameter or moment from the full tensor; each rank keeps its shard."""
        from deepspeed import zero
        from deepspeed.utils import safe_set_full_fp32_param, safe_set_full_optimizer_state

        with torch.no_grad():
            if moment is None:
                with zero.GatheredParameters([parameter], modifier_rank=0, enabled=self.stage == 3):
                    parameter.copy_(value)
            if not self.stage:
                if moment:
                    self.engine.basic_optimizer.state[parameter][moment].copy_(value)
                return
            value = value.to(self.engine.device)
            if moment:
                safe_set_full_optimizer_state(parameter, value, moment)
            else:
                safe_set_full_fp32_param(parameter, value)
