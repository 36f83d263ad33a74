"""Single-process training backend (one GPU or CPU): model, AdamW, forward/backward/step."""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Literal, final

import torch
from torch import Tensor, nn

from ratchet.components.errors import ContractError, TrainingError
from ratchet.components.models.device import here, return_free_memory, to_device
from ratchet.components.models.families import is_family
from ratchet.components.models.forward import model_outputs
from ratchet.components.models.layers import language_model
from ratchet.components.models.load import load_model, load_tokenizer, save_model
from ratchet.components.models.lora import FOLDER, save_adapter
from ratchet.components.types import Batch, Outputs, Read

Schedule = Literal["constant", "linear", "cosine"]


def rate(
    at: float, share: float = 1.0, *, peak: float, schedule: Schedule, warmup: float, total: int
) -> float:
    """Learning rate of the update that begins `at` and takes `share` units of a schedule over `total` units
    (updates or rounds): linear warmup to `peak` over `warmup` units, then constant, or decay to 0 at `total`.
    """
    if at < warmup:
        return min(peak * (at + share) / warmup, peak)
    if schedule == "constant" or total <= warmup:
        return peak
    done = min((at - warmup) / (total - warmup), 1.0)
    return peak * (1 - done if schedule == "linear" else (1 + math.cos(math.pi * done)) / 2)


def without_dropout(model: nn.Module) -> nn.Module:
    """The model with all dropout set to 0, that of an adapter too."""
    for module in model.modules():
        if isinstance(module, nn.Dropout):
            module.p = 0.0
        for name, value in [*vars(module).items()]:  # probabilities that a module applies itself
            if isinstance(value, float) and ("dropout" in name or "layerdrop" in name):
                setattr(module, name, 0.0)
    return model


@final
class TorchLearner:
    """Trains a model with AdamW in float32. `adapter` selects the trained parameters (default: all).

    Dropout is disabled, so on-policy importance ratios are exactly 1 and a resumed run is bit-identical.
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
    ) -> None:
        if threads:
            torch.set_num_threads(threads)
        if schedule not in ("constant", "linear", "cosine"):
            raise ContractError(f"learning-rate schedule {schedule!r}; expected constant, linear or cosine")
        self.kind = kind
        self.tokenizer = load_tokenizer(model_path)
        self.model = load_model(Path(model_path), kind)
        language = language_model(self.model)
        tied = (
            kind != "reward"
            and not is_family(self.model)
            and language.get_output_embeddings().weight is language.get_input_embeddings().weight
        )
        if tied and here().type == "cpu":
            # a sparse gradient adds a batch's rows to the head's gradient, without a second V x H buffer;
            # a GPU takes longer to sort the rows than to add the buffer
            language.get_input_embeddings().sparse = True
        self.checkpointing = gradient_checkpointing and not is_family(self.model)
        if self.checkpointing:
            language.gradient_checkpointing_enable({"use_reentrant": False})
        # peft adapts the model in place, so `model` stays the forward entry; `trained` is merged on export.
        self.trained = to_device(without_dropout(adapter(self.model) if adapter else self.model))
        self.parameters = {n: p for n, p in self.trained.named_parameters() if p.requires_grad}
        if not self.parameters:
            raise TrainingError("no trainable parameters: the adapter froze every parameter")
        head: Any = language.get_output_embeddings().weight if tied else None
        self.head = head if tied and head.requires_grad else None
        if (
            self.head is not None
        ):  # the largest gradient keeps its memory: making it anew took a sixth of an SFT step
            self.head.main_grad = torch.zeros_like(self.head)
        decayed = [p for p in self.parameters.values() if p.dim() > 1]
        plain = [p for p in self.parameters.values() if p.dim() <= 1]
        self.optimiser = torch.optim.AdamW(
            [{"params": decayed, "weight_decay": weight_decay}, {"params": plain, "weight_decay": 0.0}],
            lr=learning_rate,
            betas=betas,
            eps=eps,
            fused=True,
        )
        self.max_grad_norm = max_grad_norm
        self.steps = 0
        self.schedule = {
            "peak": learning_rate,
            "schedule": schedule,
            "warmup": warmup,
            "total": total,
        }

    def __call__(self, batch: Batch, outputs: frozenset[str | Read]) -> Outputs:
        """Forward pass; see `ratchet.components.models.forward.model_outputs`. Outputs are on the CPU, with a
        graph if gradients are enabled.
        """
        # transformers checkpoints in training mode only; all dropout is 0. An engine may share the model.
        self.model.train(self.checkpointing and torch.is_grad_enabled())
        found = model_outputs(self.model, self.kind, batch, outputs).by_name
        self.model.eval()
        return Outputs({name: values.cpu() for name, values in found.items()})

    def backward(self, loss: Tensor) -> None:
        """Accumulate the gradient of `loss`. No-op for a loss without a graph (all rows masked)."""
        if loss.requires_grad:
            if self.head is not None and self.head.grad is None:
                self.head.grad = self.head.main_grad.zero_()
            loss.backward()

    def step(self, at: tuple[float, float] | None = None) -> dict[str, float]:
        """AdamW update with the accumulated gradient, then zero it; `at`: as of `Learner.step`.
        `TrainingError` if the gradient norm is not finite.
        """
        with_grad = [p for p in self.parameters.values() if p.grad is not None]
        for parameter in with_grad:
            if (
                parameter.grad is not None and parameter.grad.is_sparse
            ):  # tied embedding, and no loss used the output layer
                parameter.grad = parameter.grad.to_dense()
        limit = math.inf if self.max_grad_norm is None else self.max_grad_norm
        norm = float(nn.utils.clip_grad_norm_(with_grad, limit)) if with_grad else 0.0
        if not math.isfinite(norm):
            self.optimiser.zero_grad(set_to_none=True)
            raise TrainingError(
                f"the gradient norm of update {self.steps + 1} is {norm}; the weights were not touched. "
                "Lower the learning rate or inspect the records of this step"
            )
        now = rate(*(at or (self.steps, 1.0)), **self.schedule)
        for group in self.optimiser.param_groups:
            group["lr"] = now
        self.optimiser.step()
        self.optimiser.zero_grad(set_to_none=True)
        self.steps += 1
        return {"grad_norm": norm, "learning_rate": now}

    def state(self) -> dict[str, Any]:
        """Trained weights, optimizer state and step count, as CPU copies, sufficient for a bit-exact
        resume.
        """
        optimiser = self.optimiser.state_dict()
        return {
            "weights": {name: p.detach().to("cpu", copy=True) for name, p in self.parameters.items()},
            "optimiser": {
                "state": {
                    i: {key: value.to("cpu", copy=True) for key, value in kept.items()}
                    for i, kept in optimiser["state"].items()
                },
                "param_groups": copy.deepcopy(optimiser["param_groups"]),
            },
            "steps": self.steps,
        }

    def release_optimiser(self) -> None:
        """Frees AdamW's moments and the gradients, twice to three times the memory of the weights, once
        training is over.
        """
        self.optimiser.zero_grad(set_to_none=True)
        self.optimiser.state.clear()
        if self.head is not None:
            del self.head.main_grad
            self.head = None
        return_free_memory()

    def restore(self, state: Mapping[str, Any]) -> None:
        """Load a `state`. `ContractError` if its parameters are those of another adapter or model."""
        if set(state["weights"]) != set(self.parameters):
            odd = sorted(set(state["weights"]) ^ set(self.parameters))
            raise ContractError(
                f"checkpoint and learner train different parameters, e.g. {odd[0]!r}; use the adapter "
                "that the checkpoint was made with"
            )
        with torch.no_grad():
            for name, parameter in self.parameters.items():
                parameter.copy_(state["weights"][name])
        self.optimiser.load_state_dict(copy.deepcopy(state["optimiser"]))
        self.optimiser.zero_grad(set_to_none=True)
        self.steps = state["steps"]

    def save(self, path: Path, *, precision: torch.dtype = torch.float32, each_machine: bool = False) -> None:
        """Save a Hugging Face model directory with tokenizer. An adapter is saved in a subfolder and merged
        into a copy; training can continue.
        """
        if hasattr(self.trained, "merge_and_unload"):
            save_adapter(self.trained, Path(path) / FOLDER)
        save_model(self.merged(), self.tokenizer, Path(path), precision)

    def merged(self) -> nn.Module:
        """The model that `save` writes: the trained module itself, or a copy with the adapter merged."""
        if hasattr(self.trained, "merge_and_unload"):
            return copy.deepcopy(self.trained).merge_and_unload()  # pyright: ignore[reportCallIssue]
        return self.model
