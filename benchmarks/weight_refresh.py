"""`python -m benchmarks.weight_refresh --model FOLDER --python .venv-vllm/bin/python`: seconds from an update
of the weights to vLLM's first answer with them, in on-policy steps.

Two ways, on one running vLLM server: through files in memory and vLLM's weight transfer, and through a
directory on disk, which the server reloads, as with a server of another machine. The learner is DeepSpeed's
on one rank, or torch's.
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
import time
from pathlib import Path
from typing import Any

import torch

from ratchet.components.inference.live import live_engine
from ratchet.components.recipes.plain_values import plain
from ratchet.components.recipes.profile import Profile, Vllm
from ratchet.components.training.deepspeed import DeepSpeedLearner
from ratchet.components.training.torch import TorchLearner
from ratchet.components.types import Request

LEARNERS = {"deepspeed": DeepSpeedLearner, "torch": TorchLearner}
ONE = [Request((1, 2, 3), max_tokens=1, temperature=0.0)]


def seconds(learner: Any, profile: dict[str, Any], folder: Path, count: int) -> tuple[list[float], Any]:
    """Times of `count` refreshes after the first answer, and the engine."""
    engine, refresh = live_engine(profile, learner, folder, "policy")
    engine.generate(ONE)
    times = []
    for _ in range(count):
        with torch.no_grad():
            for weight in learner.trained.parameters():
                weight.mul_(1.0001)
        began = time.perf_counter()
        refresh()
        engine.sampler.generate(ONE)  # pyright: ignore[reportAttributeAccessIssue]
        times.append(time.perf_counter() - began)
    return times, engine


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", type=Path, required=True)
    parser.add_argument("--python", required=True, help="of an environment with vLLM")
    parser.add_argument("--learner", choices=sorted(LEARNERS), default="deepspeed")
    parser.add_argument("--dtype", choices=("float32", "bfloat16"), default="float32", help="vLLM's")
    parser.add_argument("--count", type=int, default=5)
    given = parser.parse_args()
    learner = LEARNERS[given.learner](given.model)
    options: dict[str, Any] = {"dtype": given.dtype, "max_model_len": 512, "cache_gb": 0.25, "eager": True}

    def profile(**place: Any) -> dict[str, Any]:
        return plain(Profile(engine="vllm", threads=2, vllm=Vllm(**options, **place)))

    with tempfile.TemporaryDirectory(dir=".") as folder:
        memory, engine = seconds(learner, profile(python=given.python), Path(folder) / "a", given.count)
        url = engine.sampler.backend.url
        disk, _ = seconds(learner, profile(server=url), Path(folder) / "b", given.count)
    for name, times in (("files in memory", memory), ("directory", disk)):
        print(f"{name}: {statistics.median(times):.2f} s [{min(times):.2f}, {max(times):.2f}]")


if __name__ == "__main__":
    main()
