"""vLLM inference engine, in this process or behind a server, with the same protocol as
`components/inference/torch.py`.

Prompts and answers are exchanged as token ids. Log-probs are the model's at temperature 1 without truncation
(`logprobs_mode: raw_logprobs`), as in the torch engine. Written for vLLM 0.32.
"""

from __future__ import annotations

import contextlib
import importlib.util
import os
import tempfile
import weakref
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol, final

from ratchet.components.errors import ContractError
from ratchet.components.inference.decoding import check_requests
from ratchet.components.inference.torch import weights_digest
from ratchet.components.inference.vllm_arguments import check_lengths, engine_arguments, parameters
from ratchet.components.inference.vllm_weights import EXTENSION, TRANSFER, WORKER, fits, shape, untied, update
from ratchet.components.models.images import takes_images
from ratchet.components.models.load import load_tokenizer, trusted
from ratchet.components.models.reward import is_reward_model
from ratchet.components.stages.progress import advance
from ratchet.components.text.chat import ends_with
from ratchet.components.text.codec import Codec
from ratchet.components.text.contract import contract_of
from ratchet.components.types import Group, Request, Sample

if TYPE_CHECKING:
    from vllm import LLMEngine

INSTALL = (
    "set `vllm.python` (a separate environment with vLLM, see docs/vllm.md) or `vllm.server` in the "
    "profile, or use `engine: torch`"
)
"""Advice when vLLM is missing. pip cannot install vLLM 0.32 (fastapi < 0.137) together with the orchestrator
(fastapi >= 0.139).
"""


def require_vllm() -> None:
    """`ContractError` if vLLM is not installed; checks without importing it."""
    if importlib.util.find_spec("vllm") is None:
        raise ContractError(f"profile `engine: vllm`: vllm is not installed here; {INSTALL}")


@dataclass(frozen=True)
class Answer:
    """vLLM's output for one row: tokens, their log-probs, and if requested the prompt's log-probs (0 for its
    first token) and the likeliest tokens of every step.
    """

    tokens: tuple[int, ...]
    logprobs: tuple[float, ...]
    given: tuple[float, ...] = ()
    top: tuple[tuple[tuple[int, float], ...], ...] = ()


class Backend(Protocol):
    """Interface to a vLLM instance. `answer` generates with the weights loaded last.

    `takes`: whether vLLM takes the weights of a directory in place, from its files. Otherwise `load` gets a
    directory that vLLM can start with.
    """

    def takes(self, path: Path) -> bool: ...
    def load(self, path: Path, weights: str) -> None: ...
    def answer(self, rows: Sequence[Sequence[int]], params: Sequence[Mapping[str, Any]]) -> list[Answer]: ...
    def close(self) -> None: ...


@final
class VllmEngine(Codec):
    """Generates, and scores log-probs of given tokens. Rewards, values and entropies need the torch engine.

    The seed of sample i of a request depends only on (request.seed, i). vLLM's floating-point sums depend on
    the batch composition, so the same request may diverge between batches where two tokens are nearly equally
    likely.
    """

    weights: str

    def __init__(
        self, path: Path, backend: Backend, *, untie: bool = True, scratch: str | None = None
    ) -> None:
        self.backend, self.untie, self.scratch = backend, untie, scratch
        self.view: tempfile.TemporaryDirectory | None = None
        self.load(path)

    def load(self, path: Path, weights: str = "") -> None:
        """Load the weights of a model directory, in place; `weights`: their digest, if it is known.
        `ContractError` for a reward model.
        """
        path = Path(path)
        if is_reward_model(path):
            raise ContractError(
                f"{path}: vLLM cannot compute the head of a reward model; score it with the torch engine"
            )
        if takes_images(path):
            raise ContractError(f"{path}: a vision-language model is sampled with `profile.engine: torch`")
        self.tokenizer, self.contract = load_tokenizer(path), contract_of(path)
        self.weights = weights or weights_digest(path)
        if self.backend.takes(path):
            return self.backend.load(path, self.weights)
        view = untied(path, self.scratch) if self.untie else None
        self.backend.load(Path(view.name) if view else path, self.weights)
        self.view = view  # drops the previous temporary directory

    def score(self, groups: Sequence[Group], outputs: frozenset[str]) -> list[Mapping[str, list[Any]]]:
        """Per group, `logprobs`: one list (T) per trajectory, 0 where the loss mask is False. Other outputs
        are a `ContractError`.
        """
        if outputs - {"logprobs"}:
            raise ContractError(
                f"vLLM scores log-probs only, not {', '.join(sorted(outputs - {'logprobs'}))}; "
                "score them with the torch engine"
            )
        groups = [self.encode(group) for group in groups]
        paths = [t for group in groups for t in group.trajectories]
        params = {"temperature": 0.0, "max_tokens": 1, "prompt_logprobs": 0, "detokenize": False}
        answers = iter(self.backend.answer([list(t.inputs["tokens"]) for t in paths], [params] * len(paths)))
        return [
            {
                "logprobs": [
                    [p if chosen else 0.0 for p, chosen in zip(next(answers).given, t.mask, strict=True)]
                    for t in group.trajectories
                ]
            }
            for group in groups
        ]

    def generate(self, requests: Sequence[Request]) -> list[list[Sample]]:
        """`count` samples per request, in order."""
        check_requests(requests)
        rows = [list(r.tokens) for r in requests for _ in range(r.count)]
        stops = [sorted({*self.contract.eos, *r.stop_tokens}) for r in requests]
        params = [
            parameters(r, number, stop)
            for r, stop in zip(requests, stops, strict=True)
            for number in range(r.count)
        ]
        answers = iter(self.backend.answer(rows, params) if rows else ())
        return [
            [self._sample(next(answers), r, stop) for _ in range(r.count)]
            for r, stop in zip(requests, stops, strict=True)
        ]

    def _sample(self, answer: Answer, request: Request, stop: Sequence[int]) -> Sample:
        """The answer up to the token that completes a stop string. vLLM has no tokenizer here, so it
        generates past it; the tokens before are the same.
        """
        end, ended = len(answer.tokens), answer.tokens[-1] in stop
        for i in range(1, end + 1) if request.stop_strings else ():
            if ends_with(answer.tokens[:i], request.stop_strings, self.decode):
                end, ended = i, True
                break
        return Sample(
            answer.tokens[:end], answer.logprobs[:end], "end" if ended else "length", answer.top[:end]
        )

    def close(self) -> None:
        """Free the memory, or stop the server that this engine started."""
        self.backend.close()


@final
class InProcess:
    """vLLM inside this process, started at the first request; it cannot be orphaned."""

    def __init__(self, options: Mapping[str, Any], *, rows: int) -> None:
        require_vllm()
        self.arguments = engine_arguments(options, rows)
        self.model = self.path = Path()
        self.weights = self.loaded = ""
        self.shape: dict[str, Any] = {}
        self.llm: Any = None
        self.ending: weakref.finalize | None = None

    def takes(self, path: Path) -> bool:
        return self.llm is not None and fits(self.shape, path)

    def load(self, path: Path, weights: str) -> None:
        """Set the weights for the next `answer`, which loads them; loading twice costs once."""
        if not self.takes(path):
            self.close()
            self.model = path
        self.path, self.weights = path, weights

    def answer(self, rows: Sequence[Sequence[int]], params: Sequence[Mapping[str, Any]]) -> list[Answer]:
        """One answer per row; `params` are vLLM's SamplingParams."""
        check_lengths(rows, params, self.arguments["max_model_len"])
        with _vllm_settings():
            self._refresh()
            from vllm import SamplingParams  # pyright: ignore[reportAttributeAccessIssue]

            outputs = self.llm.generate(
                [{"prompt_token_ids": list(row)} for row in rows],
                [SamplingParams(**one) for one in params],
                use_tqdm=False,
            )
        advance(len(rows))  # vLLM returns all answers at once
        return [
            _answer(output, one.get("logprobs") or 0) for output, one in zip(outputs, params, strict=True)
        ]

    def close(self) -> None:
        """Shut the engine down and free its memory; the next `answer` starts another."""
        if self.ending is not None:
            self.llm, self.loaded = None, ""
            self.ending()
            self.ending = None

    def _refresh(self) -> None:
        self.llm = self.llm or self._start()
        if self.loaded == self.weights:
            return
        self.llm.start_weight_update()
        self.llm.update_weights({"update_info": update(self.path)})
        self.llm.finish_weight_update(self.weights)
        if not self.llm.reset_prefix_cache():
            raise ContractError(
                "vLLM could not reset its prefix cache after a weight update: requests are still running"
            )
        self.loaded = self.weights

    def _start(self) -> Any:
        from vllm import LLM  # pyright: ignore[reportAttributeAccessIssue]

        llm = LLM(
            model=str(self.model),
            trust_remote_code=trusted(self.model),
            skip_tokenizer_init=True,
            disable_log_stats=True,
            worker_extension_cls=f"ratchet.components.inference.{WORKER.name}.{EXTENSION}",
            weight_transfer_config=TRANSFER,
            **self.arguments,
        )
        self.ending = weakref.finalize(self, _end, llm.llm_engine)
        self.shape = shape(self.model)
        self.loaded = self.weights if self.model == self.path else ""
        return llm


def _end(engine: LLMEngine) -> None:
    from vllm.distributed import cleanup_dist_env_and_memory

    engine.engine_core.shutdown()
    cleanup_dist_env_and_memory()


def _answer(output: Any, likeliest: int) -> Answer:
    completion = output.outputs[0]
    tokens = tuple(completion.token_ids)
    sampled = tuple(
        float(at[token].logprob) for at, token in zip(completion.logprobs or (), tokens, strict=False)
    )
    given = [
        0.0 if at is None else float(at[token].logprob)
        for at, token in zip(output.prompt_logprobs or (), output.prompt_token_ids, strict=False)
    ]
    top = tuple(_best(at, likeliest) for at in completion.logprobs or ())
    return Answer(tokens, sampled, tuple(given), top)


def _best(at: Mapping[int, Any], count: int) -> tuple[tuple[int, float], ...]:
    """The `count` likeliest tokens of a step with their log-probs, without the sampled one if it is not one
    of them: vLLM returns it in addition.
    """
    ranked = sorted((one.rank, token, float(one.logprob)) for token, one in at.items())
    return tuple((token, logprob) for _, token, logprob in ranked[:count])


@contextlib.contextmanager
def _vllm_settings() -> Iterator[None]:
    """Environment variables that vLLM reads at import: engine core in this process (no child to orphan),
    threads not pinned. Deterministic algorithms are switched off inside, since vLLM's kernels do not support
    them, and restored afterwards.
    """
    import torch

    for name, value in {
        "VLLM_ENABLE_V1_MULTIPROCESSING": "0",
        "VLLM_CPU_OMP_THREADS_BIND": "nobind",
        "VLLM_NO_USAGE_STATS": "1",
        "VLLM_LOGGING_LEVEL": "WARNING",
    }.items():
        os.environ[name] = value
    deterministic = torch.are_deterministic_algorithms_enabled()
    torch.use_deterministic_algorithms(False)
    try:
        yield
    finally:
        torch.use_deterministic_algorithms(deterministic)
