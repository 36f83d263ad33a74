"""vLLM as an engine: the protocol of `components/inference/torch.py` over a vLLM in this process or behind a server.

What goes in and comes out is tokens and the model's own log-probs at temperature 1 (`logprobs_mode: raw_logprobs`, which vLLM
takes before temperature, top-k and top-p), as the built-in engine returns them. Written against vLLM 0.32.
"""

from __future__ import annotations

import contextlib
import importlib.util
import json
import os
import tempfile
import weakref
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol, final

from ratchet.components.errors import ContractError
from ratchet.components.inference.torch import weights_digest
from ratchet.components.models.load import load_tokenizer, trusted
from ratchet.components.models.reward import is_reward_model
from ratchet.components.stages.progress import advance
from ratchet.components.text.chat import decode_answer, encode, encode_prompt
from ratchet.components.text.contract import contract_of
from ratchet.components.types import Group, Message, Request, Sample

INSTALL = ("name an environment of its own that has it (`vllm.python`, see docs/vllm.md) or a server (`vllm.server`) in the "
           "profile, or use `engine: torch`")
"""What to do where vLLM is missing. pip does not resolve vLLM 0.32 together with our orchestrator (fastapi < 0.137 and >= 0.139)."""


def require_vllm() -> None:
    """`ContractError` where vLLM cannot be imported; looks without importing."""
    if importlib.util.find_spec("vllm") is None:
        raise ContractError(f"the profile says `engine: vllm`, and vllm is not installed here; {INSTALL}")


@dataclass(frozen=True)
class Answer:
    """What vLLM said to one row: its tokens, their log-probs, and those of the row itself (0 for its first token) if asked."""

    tokens: tuple[int, ...]
    logprobs: tuple[float, ...]
    given: tuple[float, ...] = ()


class Backend(Protocol):
    """Where a vLLM runs. `answer` answers with the weights that were loaded last, or raises."""

    def load(self, path: Path, weights: str) -> None: ...
    def answer(self, rows: Sequence[Sequence[int]], asked: Sequence[Mapping[str, Any]]) -> list[Answer]: ...
    def close(self) -> None: ...


@final
class VllmEngine:
    """Samples, and scores log-probs of given tokens. Heads of ours (rewards, values) and entropies are not vLLM's to compute.

    The randomness of sample i of a request is (request.seed, i) alone. vLLM's floating-point sums depend on what else is in
    the batch, so the same request may still end otherwise among other neighbours where two tokens are nearly as likely.
    """

    weights: str

    def __init__(self, path: Path, backend: Backend, *, untie: bool = True, scratch: str | None = None) -> None:
        self.backend, self.untie, self.scratch = backend, untie, scratch
        self.view: tempfile.TemporaryDirectory | None = None
        self.load(path)

    def load(self, path: Path) -> None:
        """Answer with the weights of this directory from now on, refreshed in place. `ContractError` for a reward model."""
        path = Path(path)
        if is_reward_model(path):
            raise ContractError(f"{path}: a reward model, and vLLM cannot compute its head; score it with the torch engine")
        self.tokenizer, self.contract = load_tokenizer(path), contract_of(path)
        self.weights = weights_digest(path)
        view = untied(path, self.scratch) if self.untie else None
        self.backend.load(Path(view.name) if view else path, self.weights)
        self.view = view  # the one before goes with this

    def encode(self, group: Group) -> Group:
        """As the built-in engine: tokens and masks for this model; trajectories that have tokens keep them."""
        return group.replace([encode(self.tokenizer, group.prompt, trajectory) for trajectory in group.trajectories])

    def encode_prompt(self, messages: Sequence[Message]) -> list[int]:
        """Token ids of the messages up to where the model speaks."""
        return encode_prompt(self.tokenizer, messages)

    def decode(self, tokens: Sequence[int]) -> str:
        """The text of an answer."""
        return decode_answer(self.tokenizer, tokens)

    def score(self, groups: Sequence[Group], asks: frozenset[str]) -> list[Mapping[str, list[Any]]]:
        """Per group: `logprobs` -> a list (T) a trajectory, 0 where nothing was chosen. Other asks are a `ContractError`."""
        if asks - {"logprobs"}:
            raise ContractError(f"vLLM gives log-probs of given tokens and no {', '.join(sorted(asks - {'logprobs'}))}; "
                                "score them with the torch engine")
        groups = [self.encode(group) for group in groups]
        paths = [t for group in groups for t in group.trajectories]
        asked = {"temperature": 0.0, "max_tokens": 1, "prompt_logprobs": 0, "detokenize": False}
        answers = iter(self.backend.answer([list(t.inputs["tokens"]) for t in paths], [asked] * len(paths)))
        return [{"logprobs": [[p if chosen else 0.0 for p, chosen in zip(next(answers).given, t.mask, strict=True)]
                              for t in group.trajectories]} for group in groups]

    def generate(self, requests: Sequence[Request]) -> list[list[Sample]]:
        """`count` samples a request, in order."""
        for request in requests:
            if not len(request.tokens) or request.max_tokens < 1 or request.count < 1:
                raise ContractError(f"a request needs tokens, max_tokens and count; got {len(request.tokens)}, "
                                    f"{request.max_tokens} and {request.count}")
        rows = [list(r.tokens) for r in requests for _ in range(r.count)]
        stops = [sorted({*self.contract.eos, *r.stop_tokens}) for r in requests]
        asked = [parameters(r, number, stop) for r, stop in zip(requests, stops, strict=True) for number in range(r.count)]
        answers = iter(self.backend.answer(rows, asked) if rows else ())
        return [[Sample(a.tokens, a.logprobs, "end" if a.tokens[-1] in stop else "length")
                 for a in (next(answers) for _ in range(r.count))] for r, stop in zip(requests, stops, strict=True)]

    def close(self) -> None:
        """Give the memory, or the server this engine started, back."""
        self.backend.close()


INDEX = "model.safetensors.index.json"


def untied(path: Path, scratch: str | None) -> tempfile.TemporaryDirectory | None:
    """A directory like `path` with its output layer written out, where a model shares it with its input embedding; else None.

    vLLM 0.32 refreshes a shared embedding as an input only: its CPU build goes on multiplying by the first one's packed copy, so
    every log-prob is of neither model (measured). Two layers that share nothing are both refreshed.
    """
    from safetensors import safe_open
    from safetensors.torch import save_file

    config = json.loads((path / "config.json").read_text())
    if not config.get("tie_word_embeddings"):
        return None
    view = tempfile.TemporaryDirectory(prefix="vllm-", dir=scratch)
    inside = Path(view.name)
    inside.chmod(0o755)  # the server may be another user
    places: dict[str, str] = {}
    shared = None
    for file in sorted(p for p in path.iterdir() if p.is_file() and p.name not in ("config.json", INDEX)):
        name = f"part-{file.name}" if file.suffix == ".safetensors" else file.name  # beside a `model.safetensors` no index is read
        (inside / name).symlink_to(file.resolve())
        if file.suffix == ".safetensors":
            with safe_open(file, "pt") as weights:
                places |= dict.fromkeys(weights.keys(), name)
                for key in weights.keys():  # noqa: SIM118  no mapping
                    if key.endswith("embed_tokens.weight"):
                        shared = weights.get_tensor(key)
    if shared is None:
        raise ContractError(f"{path}: its config ties the output layer to an input embedding, and none of its weights is `embed_tokens.weight`; "
                            "set `vllm.untie: false` in the profile, on a GPU")
    save_file({"lm_head.weight": shared}, inside / "part-lm_head.safetensors", metadata={"format": "pt"})
    (inside / "part-lm_head.safetensors").chmod(0o644)
    (inside / INDEX).write_text(json.dumps({"metadata": {}, "weight_map": {**places, "lm_head.weight": "part-lm_head.safetensors"}}))
    (inside / "config.json").write_text(json.dumps({**config, "tie_word_embeddings": False}))
    return view


def parameters(request: Request, number: int, stops: Sequence[int]) -> dict[str, Any]:
    """The fields of vLLM's SamplingParams for sample `number` of a request. Prompts are read once: its prefix cache sees to that."""
    import numpy

    seed = int(numpy.random.SeedSequence([request.seed, number]).generate_state(1)[0]) >> 1
    return {"temperature": request.temperature, "top_p": request.top_p, "top_k": request.top_k, "seed": seed, "logprobs": 0,
            "max_tokens": request.max_tokens, "stop_token_ids": list(stops), "detokenize": False,
            "min_p": 0.0, "repetition_penalty": 1.0}  # said, or a server would take the model's generation_config for them


def engine_arguments(options: Mapping[str, Any], rows: int) -> dict[str, Any]:
    """vLLM's engine arguments for `profile.vllm`, by the names both its Python and its command line use."""
    arguments = {"dtype": options["dtype"], "max_model_len": options["max_model_len"], "max_num_seqs": rows, "seed": 0,
                 "tensor_parallel_size": options["tensor_parallel"], "generation_config": "vllm", "logprobs_mode": "raw_logprobs",
                 "enforce_eager": options["eager"]}
    if options["cache_gb"] is not None:
        arguments["kv_cache_memory_bytes"] = int(options["cache_gb"] * 2**30)
        arguments["gpu_memory_utilization"] = 0.01  # the share that must be free at the start; a learner may hold most of the GPU by then
    return arguments


def shape(path: Path) -> dict[str, Any]:
    """What must not change when weights are refreshed in place: a model's config without who wrote it."""
    config = json.loads((path / "config.json").read_text())
    return {k: v for k, v in config.items() if k not in ("transformers_version", "_name_or_path", "dtype", "torch_dtype")}


def check_lengths(rows: Sequence[Sequence[int]], asked: Sequence[Mapping[str, Any]], limit: int) -> None:
    """vLLM would end an answer early at its limit and say nothing: `ContractError` before it is asked."""
    longest = max((len(row) + one["max_tokens"] for row, one in zip(rows, asked, strict=True)), default=0)
    if longest > limit:
        raise ContractError(f"a prompt and its answer may take {longest} tokens, and this vLLM holds {limit}; raise `vllm.max_model_len` "
                            "in the profile, or lower the rollout's max_tokens")


@final
class InProcess:
    """A vLLM inside this process: it dies with it, and nothing can be orphaned. Started at the first answer."""

    def __init__(self, options: Mapping[str, Any], *, rows: int) -> None:
        require_vllm()
        self.arguments = engine_arguments(options, rows)
        self.path: Path | None = None
        self.weights = self.held = ""
        self.shape: dict[str, Any] = {}
        self.llm: Any = None
        self.ending: weakref.finalize | None = None

    def load(self, path: Path, weights: str) -> None:
        """Take these weights from now on. They are read at the next answer, so loading twice costs once."""
        self.path, self.weights = path, weights

    def answer(self, rows: Sequence[Sequence[int]], asked: Sequence[Mapping[str, Any]]) -> list[Answer]:
        """One answer a row; `asked` are vLLM's SamplingParams."""
        check_lengths(rows, asked, self.arguments["max_model_len"])
        with _vllm_settings():
            self._refresh()
            from vllm import SamplingParams

            outputs = self.llm.generate([{"prompt_token_ids": list(row)} for row in rows],
                                        [SamplingParams(**one) for one in asked], use_tqdm=False)
        advance(len(rows))  # all at once: it gives none before the last
        return [_answer(output) for output in outputs]

    def close(self) -> None:
        """Shut the engine down and free its memory; the next answer starts another."""
        if self.ending is not None:
            self.llm, self.held = None, ""
            self.ending()
            self.ending = None

    def _refresh(self) -> None:
        assert self.path is not None
        if self.held == self.weights:
            return
        if self.llm is not None and self.shape != shape(self.path):
            self.close()
        if self.llm is None:
            from vllm import LLM

            self.llm = LLM(model=str(self.path), trust_remote_code=trusted(self.path), skip_tokenizer_init=True, disable_log_stats=True,
                           **self.arguments)
            self.ending = weakref.finalize(self, _end, self.llm.llm_engine)
            self.shape = shape(self.path)
        else:
            self.llm.collective_rpc("reload_weights", kwargs={"weights_path": str(self.path)})
            if not self.llm.reset_prefix_cache():
                raise ContractError("vLLM kept what it had computed with the earlier weights: requests are still running")
        self.held = self.weights


def _end(engine: Any) -> None:
    from vllm.distributed import cleanup_dist_env_and_memory

    engine.engine_core.shutdown()
    cleanup_dist_env_and_memory()


def _answer(output: Any) -> Answer:
    said = output.outputs[0]
    tokens = tuple(said.token_ids)
    sampled = tuple(float(at[token].logprob) for at, token in zip(said.logprobs or (), tokens, strict=False))
    given = [0.0 if at is None else float(at[token].logprob)
             for at, token in zip(output.prompt_logprobs or (), output.prompt_token_ids, strict=False)]
    return Answer(tokens, sampled, tuple(given))


@contextlib.contextmanager
def _vllm_settings() -> Iterator[None]:
    """The engine core in this process (no child to orphan) and our threads left alone; vLLM reads these when it is imported.
    Its kernels are not all deterministic ones in torch's sense: the stage's own setting is put back afterwards.
    """
    import torch

    for name, value in {"VLLM_ENABLE_V1_MULTIPROCESSING": "0", "VLLM_CPU_OMP_THREADS_BIND": "nobind", "VLLM_NO_USAGE_STATS": "1",
                        "VLLM_LOGGING_LEVEL": "WARNING"}.items():
        os.environ[name] = value
    deterministic = torch.are_deterministic_algorithms_enabled()
    torch.use_deterministic_algorithms(False)
    try:
        yield
    finally:
        torch.use_deterministic_algorithms(deterministic)
