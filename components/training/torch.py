"""The learner on one GPU or on the host: a model, AdamW, and rows in, outputs out."""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Literal, final

import torch
from torch import Tensor, nn

from ratchet.components.errors import ContractError, TrainingError
from ratchet.components.models.device import placed
from ratchet.components.models.forward import outputs
from ratchet.components.models.load import load_model, load_tokenizer, save_model
from ratchet.components.models.lora import FOLDER, save_adapter
from ratchet.components.models.value import PolicyWithValue
from ratchet.components.types import Batch, Outputs

Schedule = Literal["constant", "linear", "cosine"]


def rate(step: int, *, peak: float, schedule: Schedule, warmup: int, total: int) -> float:
    """The learning rate of update `step` (from 0): up to `peak` over `warmup` updates, then constant or down to 0 at `total`."""
    if step < warmup:
        return peak * (step + 1) / warmup
    if schedule == "constant" or total <= warmup:
        return peak
    done = min((step - warmup) / (total - warmup), 1.0)
    return peak * (1 - done if schedule == "linear" else (1 + math.cos(math.pi * done)) / 2)


@final
class TorchLearner:
    """Owns parameters and optimiser in float32. `adapter` chooses what learns; everything learns without one.

    Dropout is off, so that on-policy ratios are 1 and a resumed run repeats itself bit for bit.
    """

    def __init__(
        self, model_path: Path, *, kind: Literal["policy", "policy_with_value", "reward"] = "policy",
        adapter: Callable[[nn.Module], nn.Module] | None = None, learning_rate: float = 1e-5,
        betas: tuple[float, float] = (0.9, 0.999), eps: float = 1e-8, weight_decay: float = 0.0,
        max_grad_norm: float | None = 1.0, schedule: Schedule = "constant", warmup_steps: int = 0, total_steps: int = 0,
        gradient_checkpointing: bool = False, threads: int | None = None,
    ) -> None:
        if threads:
            torch.set_num_threads(threads)
        if schedule not in ("constant", "linear", "cosine"):
            raise ContractError(f"learning-rate schedule {schedule!r}; expected constant, linear or cosine")
        self.kind = kind
        self.tokenizer = load_tokenizer(model_path)
        self.model = load_model(Path(model_path), kind)
        for module in self.model.modules():
            if isinstance(module, nn.Dropout):
                module.p = 0.0
            if hasattr(module, "attention_dropout"):
                module.attention_dropout = 0.0
        language: Any = self.model.policy if isinstance(self.model, PolicyWithValue) else self.model
        if kind != "reward" and language.get_output_embeddings().weight is language.get_input_embeddings().weight:
            # The few rows of a batch go into the gradient that the output layer has left, not through another as large as the vocabulary.
            language.get_input_embeddings().sparse = True
        if gradient_checkpointing:
            language.gradient_checkpointing_enable({"use_reentrant": False})
            self.model.train()  # transformers checkpoints only in training mode; all dropout is 0
        # peft adapts the model in place, so `model` stays the way in; `trained` is what merges on export.
        self.trained = placed(adapter(self.model) if adapter else self.model)
        self.parameters = {n: p for n, p in self.trained.named_parameters() if p.requires_grad}
        if not self.parameters:
            raise TrainingError("the adapter left nothing to learn: every parameter is frozen")
        decayed = [p for p in self.parameters.values() if p.dim() > 1]
        plain = [p for p in self.parameters.values() if p.dim() <= 1]
        self.optimiser = torch.optim.AdamW(
            [{"params": decayed, "weight_decay": weight_decay}, {"params": plain, "weight_decay": 0.0}],
            lr=learning_rate, betas=betas, eps=eps, fused=True,
        )
        self.max_grad_norm = max_grad_norm
        self.steps = 0
        self.schedule = {"peak": learning_rate, "schedule": schedule, "warmup": warmup_steps, "total": total_steps}

    def __call__(self, batch: Batch, asks: frozenset[str]) -> Outputs:
        """See `ratchet.components.models.forward.outputs`. Builds a graph where gradients are enabled. What comes back lies on the host,
        whatever computed it."""
        return Outputs({name: values.cpu() for name, values in outputs(self.model, self.kind, batch, asks).values_by_ask.items()})

    def backward(self, loss: Tensor) -> None:
        """Adds the gradient of `loss`. A loss no trained parameter has a part in (all rows masked) adds nothing."""
        if loss.requires_grad:
            loss.backward()

    def step(self) -> dict[str, float]:
        """One AdamW update with the gradient gathered so far; a norm that is not finite is a `TrainingError`."""
        with_grad = [p for p in self.parameters.values() if p.grad is not None]
        for parameter in with_grad:
            if parameter.grad is not None and parameter.grad.is_sparse:  # of an embedding whose output layer no loss has asked
                parameter.grad = parameter.grad.to_dense()
        limit = math.inf if self.max_grad_norm is None else self.max_grad_norm
        norm = float(nn.utils.clip_grad_norm_(with_grad, limit)) if with_grad else 0.0
        if not math.isfinite(norm):
            self.optimiser.zero_grad(set_to_none=True)
            raise TrainingError(f"the gradient norm of update {self.steps + 1} is {norm}; the weights were not touched. "
                                "Lower the learning rate or look at the records of this step")
        now = rate(self.steps, **self.schedule)
        for group in self.optimiser.param_groups:
            group["lr"] = now
        self.optimiser.step()
        self.optimiser.zero_grad(set_to_none=True)
        self.steps += 1
        return {"grad_norm": norm, "learning_rate": now}

    def state(self) -> dict[str, Any]:
        """Trained weights, optimiser and step: what `restore` needs to go on bit for bit. Copies on the host; nothing is shared."""
        optimiser = self.optimiser.state_dict()
        return {
            "weights": {name: p.detach().to("cpu", copy=True) for name, p in self.parameters.items()},
            "optimiser": {"state": {i: {key: value.to("cpu", copy=True) for key, value in kept.items()} for i, kept in optimiser["state"].items()},
                          "param_groups": copy.deepcopy(optimiser["param_groups"])},
            "steps": self.steps,
        }

    def restore(self, state: Mapping[str, Any]) -> None:
        """Goes back to a `state`. Parameters of another adapter or model are a `ContractError`."""
        if set(state["weights"]) != set(self.parameters):
            odd = sorted(set(state["weights"]) ^ set(self.parameters))
            raise ContractError(f"the checkpoint trains other parameters than this learner, e.g. {odd[0]!r}; use the adapter it was made with")
        with torch.no_grad():
            for name, parameter in self.parameters.items():
                parameter.copy_(state["weights"][name])
        self.optimiser.load_state_dict(copy.deepcopy(state["optimiser"]))
        self.optimiser.zero_grad(set_to_none=True)
        self.steps = state["steps"]

    def save(self, path: Path) -> None:
        """A plain model directory with its tokenizer. Adapters are saved beside it and merged into a copy; training can go on."""
        model: nn.Module = self.model
        if hasattr(self.trained, "merge_and_unload"):
            save_adapter(self.trained, Path(path) / FOLDER)
            model = copy.deepcopy(self.trained).merge_and_unload()
        save_model(model, self.tokenizer, Path(path))
