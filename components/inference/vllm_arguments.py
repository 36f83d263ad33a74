"""Arguments of vLLM's engine and of its sampling."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from ratchet.components.errors import ContractError
from ratchet.components.inference.vllm_weights import EXTENSION, TRANSFER, WORKER
from ratchet.components.models.load import trusted
from ratchet.components.types import Request


def parameters(request: Request, number: int, stops: Sequence[int]) -> dict[str, Any]:
    """SamplingParams for sample `number` of a request. Samples of one prompt share its prefill through vLLM's
    prefix cache.
    """
    import numpy

    seed = int(numpy.random.SeedSequence([request.seed, number]).generate_state(1)[0]) >> 1
    return {
        "temperature": request.temperature,
        "top_p": request.top_p,
        "top_k": request.top_k,
        "seed": seed,
        "logprobs": request.top_logprobs,
        "max_tokens": request.max_tokens,
        "stop_token_ids": list(stops),
        "detokenize": False,
        "min_p": 0.0,
        "repetition_penalty": 1.0,
    }  # explicit, or a server would use the model's generation_config


def engine_arguments(options: Mapping[str, Any], rows: int) -> dict[str, Any]:
    """vLLM's engine arguments for `profile.vllm`, by the names that its Python API and command line share."""
    arguments = {
        "dtype": options["dtype"],
        "max_model_len": options["max_model_len"],
        "max_num_seqs": rows,
        "seed": 0,
        "tensor_parallel_size": options["tensor_parallel"],
        "generation_config": "vllm",
        "logprobs_mode": "raw_logprobs",
        "enforce_eager": options["eager"],
    }
    if options["cache_gb"] is not None:
        arguments["kv_cache_memory_bytes"] = int(options["cache_gb"] * 2**30)
        # share that must be free at start; a trainer may already hold most of the GPU
        arguments["gpu_memory_utilization"] = 0.01
    return arguments


def server_command(options: Mapping[str, Any], rows: int, model: Path, port: int) -> list[str]:
    """Command of a server of this machine, in the environment whose python is `options["python"]`."""
    arguments = [
        f"--{name.replace('_', '-')}" if value is True else f"--{name.replace('_', '-')}={value}"
        for name, value in engine_arguments(options, rows).items()
        if value is not False
    ]
    return [
        options["python"],
        "-m",
        "vllm.entrypoints.openai.api_server",
        f"--model={model}",
        "--served-model-name=policy",
        "--host=127.0.0.1",
        f"--port={port}",
        "--enable-scale-out",
        "--disable-log-stats",
        "--disable-uvicorn-access-log",
        f"--worker-extension-cls={EXTENSION}",
        f"--weight-transfer-config={json.dumps(TRANSFER)}",
        *arguments,
        *(["--trust-remote-code"] if trusted(model) else []),
    ]


def server_environment() -> dict[str, str]:
    """Environment variables of that server: those of this process, but for its modules."""
    return {
        **os.environ,
        "VLLM_SERVER_DEV_MODE": "1",
        "VLLM_NO_USAGE_STATS": "1",
        "HF_HUB_OFFLINE": "1",
        "VLLM_CPU_OMP_THREADS_BIND": "nobind",
        "VLLM_LOGGING_LEVEL": os.environ.get("VLLM_LOGGING_LEVEL", "WARNING"),
        "PYTHONPATH": str(WORKER),
    }


def check_lengths(rows: Sequence[Sequence[int]], params: Sequence[Mapping[str, Any]], limit: int) -> None:
    """`ContractError` if a prompt and its answer may exceed vLLM's context length, where vLLM would truncate
    silently.
    """
    longest = max((len(row) + one["max_tokens"] for row, one in zip(rows, params, strict=True)), default=0)
    if longest > limit:
        raise ContractError(
            f"a prompt and its answer may have {longest} tokens, but `vllm.max_model_len` is {limit}; "
            "raise it in the profile "
            "or lower the rollout's max_tokens"
        )
