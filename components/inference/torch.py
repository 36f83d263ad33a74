"""PyTorch inference engine: continuous batching with a KV cache, and scoring, on one GPU or CPU."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, final

import torch

from ratchet.components.errors import ContractError
from ratchet.components.inference.decoding import Decoding, check_requests
from ratchet.components.models.device import inference_dtype, to_device
from ratchet.components.models.forward import model_outputs
from ratchet.components.models.load import load_model, load_tokenizer
from ratchet.components.models.reward import is_published
from ratchet.components.stages import progress
from ratchet.components.text.chat import encode, encode_whole
from ratchet.components.text.codec import Codec
from ratchet.components.text.contract import contract
from ratchet.components.training.packing import pack, row_lengths
from ratchet.components.types import Batch, Group, Request, Sample

if TYPE_CHECKING:
    from ratchet.components.text.tokenizer import Tokenizer

SCORE_TOKENS = 2048
"""Default micro-batch size of scoring, in tokens."""


@final
class TorchEngine(Codec):
    """Generates up to `rows` answers at a time; a prompt is prefilled once for all its samples. Scores about
    `tokens` tokens in one forward pass. On a GPU, weights are held in `precision`; on CPU in float32. Heads,
    softmax and log-probs are always float32.

    Sampled log-probs are those at temperature 1 (equal to the trainer's `logprobs`), whatever the sampling
    temperature. The random numbers of sample i depend only on (request.seed, i).
    """

    weights: str

    def __init__(
        self,
        path: Path,
        *,
        rows: int = 64,
        kind: Literal["policy", "policy_with_value", "reward"] = "policy",
        threads: int | None = None,
        precision: Literal["float32", "bfloat16"] = "float32",
        tokens: int = SCORE_TOKENS,
    ) -> None:
        if threads:
            torch.set_num_threads(threads)
        self.rows, self.kind, self.tokens = rows, kind, tokens
        self.dtype = inference_dtype(precision)
        self.load(path)

    def load(self, path: Path, weights: str = "") -> None:
        """Load the weights of a model directory; `weights`: their digest, if it is known. `ContractError` if
        its tokenizer cannot be used.
        """
        path = Path(path)
        self.model: Any = None  # free the old weights first: a GPU need not hold both
        self.model = to_device(load_model(path, self.kind, dtype=self.dtype)).requires_grad_(False)
        self._read_by(load_tokenizer(path))
        self.render = encode_whole if self.kind == "reward" and is_published(path) else encode
        self.weights = weights or weights_digest(path)

    @classmethod
    def following(cls, learner: Any, *, rows: int = 64, tokens: int = SCORE_TOKENS) -> TorchEngine:
        """An engine with the weights of a learner in memory, in float32; `follow` after each update."""
        engine = cls.__new__(cls)
        engine.rows, engine.tokens = rows, tokens
        engine.kind, engine.dtype, engine.render = learner.kind, torch.float32, encode
        engine.follow(learner)
        return engine

    def follow(self, learner: Any) -> None:
        """Use the learner's weights as they are now, as if they were saved and loaded: its own module, or a
        copy with the adapter merged.
        """
        self.model = learner.merged()
        self._read_by(learner.tokenizer)
        self.weights = tensors_digest(self.model)

    def _read_by(self, tokenizer: Tokenizer) -> None:
        """`ContractError` if the tokenizer cannot be used with the model."""
        self.tokenizer = tokenizer
        self.contract = contract(
            tokenizer,
            self.model.config,
            str(self.dtype).removeprefix("torch."),
            generates=self.kind != "reward",
        )

    def encode(self, group: Group) -> Group:
        """Add `inputs["tokens"]` and `mask` to trajectories without tokens."""
        return group.replace(
            [self.render(self.tokenizer, group.prompt, trajectory) for trajectory in group.trajectories]
        )

    @torch.inference_mode()
    def score(self, groups: Sequence[Group], outputs: frozenset[str]) -> list[Mapping[str, list[Any]]]:
        """Requested outputs per group, one value per trajectory: `logprobs`, `entropy`, `values` as lists
        (T), `scores` as floats.
        """
        groups = [self.encode(group) for group in groups]
        return score_in_batches(
            groups,
            lambda batch: model_outputs(self.model, self.kind, batch, outputs).by_name,
            outputs=outputs,
            tokens=self.tokens,
        )

    @torch.inference_mode()
    def generate(self, requests: Sequence[Request]) -> list[list[Sample]]:
        """`count` samples per request, in order. Continuous batching: finished rows are replaced by waiting
        requests as soon as they fit.
        """
        self._check(requests)
        if not requests:
            return []
        return self._decoding(requests).run()

    @torch.inference_mode()
    def stream(self, request: Request) -> Iterator[int]:
        """Token ids of one sample as they are generated, including the stop token; identical to `generate`'s
        first sample.
        """
        self._check([request])
        decoding, given = self._decoding([replace(request, count=1)]), 0
        while decoding.step():
            finished = decoding.done[0][0]
            tokens = finished.tokens if finished else decoding.live[0].tokens
            yield from tokens[given:]
            given = len(tokens)

    def _decoding(self, requests: Sequence[Request]) -> Decoding:
        return Decoding([self.model], requests, rows=self.rows, eos=self.contract.eos, decode=self.decode)

    def _check(self, requests: Sequence[Request]) -> None:
        if self.kind == "reward":
            raise ContractError("a reward model cannot generate; give the rollout a policy")
        check_requests(requests)


def score_in_batches(
    groups: Sequence[Group],
    compute: Callable[[Batch], Mapping[Any, torch.Tensor]],
    *,
    outputs: frozenset[str],
    tokens: int = SCORE_TOKENS,
) -> list[Mapping[str, list[Any]]]:
    """What an engine's `score` returns, from `compute`: the outputs (B,) or (B,T) of a packed batch of about
    `tokens` tokens.
    """
    found: list[Mapping[str, list[Any]]] = [{output: [] for output in outputs} for _ in groups]
    for batch in progress.counted(pack(groups, unit="row", tokens=tokens)):
        computed, lengths = compute(batch), row_lengths(batch)
        for output in outputs:
            values = computed[output].tolist()
            for row, group in enumerate(batch.group.tolist()):
                value = values[row]
                found[group][output].append(value[: lengths[row]] if isinstance(value, list) else value)
    return found


def weights_digest(path: Path) -> str:
    """SHA-256 over the names and contents of a directory's safetensors files and those of
    its heads (`.st`).
    """
    digest = hashlib.sha256()
    for file in sorted([*path.glob("*.safetensors"), *path.glob("*.st")]):
        digest.update(file.name.encode())
        with file.open("rb") as stream:
            digest.update(hashlib.file_digest(stream, "sha256").digest())
    return digest.hexdigest()


def tensors_digest(model: torch.nn.Module) -> str:
    """SHA-256 over the names and contents of a model's weights."""
    digest = hashlib.sha256()
    for name, tensor in sorted(model.state_dict().items()):
        digest.update(name.encode())
        digest.update(tensor.detach().cpu().contiguous().view(torch.uint8).numpy())
    return digest.hexdigest()
