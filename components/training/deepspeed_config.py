"""Configuration of DeepSpeed, and its start without output."""

from __future__ import annotations

import contextlib
import logging
import os
from collections.abc import Iterator
from typing import Any, Literal

import torch

from ratchet.components.errors import RecipeError

BFLOAT16 = {
    "bf16": {"enabled": True, "check_grad_overflow": True},
    "data_types": {"grad_accum_dtype": "fp32"},
}


def config(
    *,
    zero_stage: int = 2,
    offload_optimizer: bool = False,
    offload_parameters: bool = False,
    precision: Literal["float32", "bfloat16"] = "float32",
    max_grad_norm: float | None = None,
) -> dict[str, Any]:
    """The DeepSpeed configuration. Losses are already divided by global counts and `step` marks the
    accumulation boundary, so batch size and accumulation are 1. At stage 0 the learner clips gradients
    itself.
    """
    zero: dict[str, Any] = {"stage": zero_stage, "overlap_comm": False, "contiguous_gradients": True}
    if zero_stage == 3:
        zero["stage3_param_persistence_threshold"] = 10_000  # keep vectors replicated, shard matrices
    if offload_optimizer:
        zero["offload_optimizer"] = {"device": "cpu", "pin_memory": torch.cuda.is_available()}
    if offload_parameters:
        zero["offload_param"] = {"device": "cpu", "pin_memory": torch.cuda.is_available()}
    return {
        "train_micro_batch_size_per_gpu": 1,
        "gradient_accumulation_steps": 1,
        "managed_gradient_accumulation": False,
        "gradient_clipping": (max_grad_norm or 0.0) if zero_stage else 0.0,
        **(BFLOAT16 if precision == "bfloat16" else {}),
        "zero_optimization": zero,
        "zero_allow_untested_optimizer": True,  # torch.optim.AdamW, as in TorchLearner
        "zero_force_ds_cpu_optimizer": False,  # also when offloaded: identical arithmetic, nothing to compile
        "wall_clock_breakdown": False,
    }


def import_deepspeed() -> Any:
    """Import DeepSpeed, or raise a `RecipeError`."""
    if not torch.cuda.is_available():
        os.environ.setdefault(
            "DS_ACCELERATOR", "cpu"
        )  # read at import; DeepSpeed looks for a CUDA toolkit otherwise
    os.environ.setdefault("LOCAL_RANK", "0")  # set by torchrun; DeepSpeed needs it in a single process too
    try:
        with quiet():
            import deepspeed
    except ImportError as error:
        raise RecipeError(
            f"profile `learner: deepspeed`: DeepSpeed cannot be imported ({error}); "
            "run `pip install -e '.[scale]'` in the checkout, or set `learner: torch`"
        ) from error
    # would be compiled at first use, for minutes; gloo is used instead
    deepspeed.ops.__compatible_ops__["deepspeed_shm_comm"] = False
    return deepspeed


@contextlib.contextmanager
def quiet() -> Iterator[None]:
    """Suppress DeepSpeed's INFO output (hundreds of lines of configuration)."""
    logger = logging.getLogger("DeepSpeed")
    before = logger.level
    logger.setLevel(logging.WARNING)
    try:
        yield
    finally:
        logger.setLevel(before or logging.WARNING)
