"""PyTorch inference engine: continuous batching with a KV cache, and scoring, on one GPU or CPU."""

from __future__ import annotations

import hashlib
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal, final

import numpy
import torch
from torch import Tensor

from ratchet.components.errors import ContractError
from ratchet.components.inference.sampling import sample, unrounded
from ratchet.components.models.attention import Cache, DecodePlan, PrefillPlan
from ratchet.components.models.device import inference_dtype, to_device
from ratchet.components.models.forward import model_outputs
from ratchet.components.models.layers import backbone, hidden_states, output_head
from ratchet.components.models.load import load_model, load_tokenizer
from ratchet.components.models.products import mixed_precision, packed, product
from ratchet.components.models.reward import is_published
from ratchet.components.models.value import PolicyWithValue
from ratchet.components.stages import progress
from ratchet.components.text.chat import decode_answer, encode, encode_prompt, encode_whole
from ratchet.components.text.contract import contract
from ratchet.components.training.packing import pack
from ratchet.components.types import Group, Message, Request, Sample

SCORE_TOKENS = 2048
"""Micro-batch size of scoring, in tokens."""


@dataclass
class Row:
    """One answer being generated. `slot`: its prompt's slot in the KV cache."""

    request: int
    number: int
    slot: int
    uniforms: numpy.ndarray
    tokens: list[int] = field(default_factory=list)
    logprobs: list[float] = field(default_factory=list)


@final
class TorchEngine:
    """Generates up to `rows` answers at a time; a prompt is prefilled once for all its samples. On a GPU,
    weights are held in `precision`; on CPU in float32. Heads, softmax and log-probs are always float32.

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
    ) -> None:
        if threads:
            torch.set_num_threads(threads)
        self.rows, self.kind = rows, kind
        self.dtype = inference_dtype(precision)
        self.load(path)

    def load(self, path: Path) -> None:
        """Load the weights of a model directory. `ContractError` if its tokenizer cannot be used."""
        path = Path(path)
        self.model: Any = None  # free the old weights first: a GPU need not hold both
        self.model = to_device(load_model(path, self.kind, dtype=self.dtype)).requires_grad_(False)
        self._read_by(load_tokenizer(path))
        self.render = encode_whole if self.kind == "reward" and is_published(path) else encode
        self.weights = weights_digest(path)

    @classmethod
    def following(cls, learner: Any, *, rows: int = 64) -> TorchEngine:
        """An engine with the weights of a learner in memory, in float32; `follow` after each update."""
        engine = cls.__new__(cls)
        engine.rows, engine.kind, engine.dtype, engine.render = rows, learner.kind, torch.float32, encode
        engine.follow(learner)
        return engine

    def follow(self, learner: Any) -> None:
        """Use the learner's weights as they are now, as if they were saved and loaded: its own module, or a
        copy with the adapter merged.
        """
        self.model = learner.merged()
        self._read_by(learner.tokenizer)
        self.weights = tensors_digest(self.model)

    def _read_by(self, tokenizer: Any) -> None:
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

    def encode_prompt(self, messages: Sequence[Message]) -> list[int]:
        """Token ids of the messages with the generation prompt."""
        return encode_prompt(self.tokenizer, messages)

    def decode(self, tokens: Sequence[int]) -> str:
        """Text of an answer."""
        return decode_answer(self.tokenizer, tokens)

    @torch.inference_mode()
    def score(self, groups: Sequence[Group], outputs: frozenset[str]) -> list[Mapping[str, list[Any]]]:
        """Requested outputs per group, one value per trajectory: `logprobs`, `entropy`, `values` as lists
        (T), `scores` as floats.
        """
        groups = [self.encode(group) for group in groups]
        found: list[Mapping[str, list[Any]]] = [{output: [] for output in outputs} for _ in groups]
        for batch in progress.counted(pack(groups, unit="row", tokens=SCORE_TOKENS)):
            out = model_outputs(self.model, self.kind, batch, outputs)
            for output in outputs:
                values = getattr(out, output).tolist()
                for row, group in enumerate(batch.group.tolist()):
                    value = values[row]
                    found[group][output].append(
                        value[: len(batch.inputs["tokens"][row])] if isinstance(value, list) else value
                    )
        return found

    @torch.inference_mode()
    def generate(self, requests: Sequence[Request]) -> list[list[Sample]]:
        """`count` samples per request, in order. Continuous batching: finished rows are replaced by waiting
        requests as soon as they fit.
        """
        self._check(requests)
        if not requests:
            return []
        decoding = _Decoding(self, requests)
        with packed(backbone(decoding.language), decoding.capacity):
            return decoding.run()

    @torch.inference_mode()
    def stream(self, request: Request) -> Iterator[int]:
        """Token ids of one sample as they are generated, including the stop token; identical to `generate`'s
        first sample.
        """
        self._check([request])
        decoding, given = _Decoding(self, [replace(request, count=1)]), 0
        while decoding.step():
            finished = decoding.done[0][0]
            tokens = finished.tokens if finished else decoding.live[0].tokens
            yield from tokens[given:]
            given = len(tokens)

    def _check(self, requests: Sequence[Request]) -> None:
        if self.kind == "reward":
            raise ContractError("a reward model cannot generate; give the rollout a policy")
        for request in requests:
            if not len(request.tokens) or request.max_tokens < 1 or request.count < 1:
                raise ContractError(
                    f"a request needs tokens, max_tokens >= 1 and count >= 1; got {len(request.tokens)} "
                    "tokens, "
                    f"max_tokens {request.max_tokens} and count {request.count}"
                )


def weights_digest(path: Path) -> str:
    """SHA-256 over the names and contents of a directory's safetensors files."""
    digest = hashlib.sha256()
    for file in sorted(path.glob("*.safetensors")):
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


class _Decoding:
    """State of one `generate` call: waiting requests, prompt slots, and live rows 0..n-1 of the KV cache."""

    def __init__(self, engine: TorchEngine, requests: Sequence[Request]) -> None:
        self.language = engine.model.policy if isinstance(engine.model, PolicyWithValue) else engine.model
        head: Any = output_head(self.language)
        self.weight, self.bias = head.weight.float(), None if head.bias is None else head.bias.float()
        # In mixed precision the logits of plain sampling are rounded to bfloat16, the log-prob of the drawn
        # token is not. Greedy, top-k and top-p decoding would meet ties.
        plain = all(r.temperature > 0 and not r.top_k and r.top_p >= 1 for r in requests)
        half = plain and mixed_precision() and self.weight.device.type == "cpu"
        self.half = self.weight.bfloat16() if half else None
        self.requests = requests
        self.width = max(r.count for r in requests)
        self.capacity = max(engine.rows, self.width)
        slots = min(len(requests), self.capacity, 2 * -(-self.capacity // min(r.count for r in requests)))
        longest = max(len(r.tokens) for r in requests)
        self.cache = Cache(
            self.language,
            slots=slots,
            prompt=longest,
            rows=min(self.capacity, sum(r.count for r in requests)),
            answer=max(r.max_tokens for r in requests),
        )
        self.free = list(range(slots))[::-1]
        # Prompts that begin alike follow each other, so that what they share is in a slot; answers do not
        # depend on their neighbours.
        self.waiting = deque(sorted(range(len(requests)), key=lambda i: list(requests[i].tokens)))
        self.stops = [{*engine.contract.eos, *r.stop_tokens} for r in requests]
        self.live: list[Row] = []
        self.done: list[list[Sample | None]] = [[None] * r.count for r in requests]

    def run(self) -> list[list[Sample]]:
        while self.step():
            pass
        return [[s for s in samples if s is not None] for samples in self.done]

    def step(self) -> bool:
        """Admit waiting requests that fit and generate the next token of every live row. False when none is
        left.
        """
        if not self.waiting and not self.live:
            return False
        self._admit()
        if self.live:
            states = self._decode()
            self._take(self.live, states, self._logits(states))
            self._retire()
        return True

    def _admit(self) -> None:
        """Prefill as many waiting prompts as fit and sample the first token of their answers."""
        chosen: list[tuple[int, int]] = []
        prompts: list[Tensor] = []
        rows = len(self.live)
        while self.waiting and self.free and rows + self.requests[self.waiting[0]].count <= self.capacity:
            index = self.waiting.popleft()
            chosen.append((index, self.free.pop()))
            prompts.append(torch.tensor(list(self.requests[index].tokens), dtype=torch.long))
            rows += self.requests[index].count
        if not chosen:
            return
        plan = PrefillPlan(prompts, self.cache, [slot for _, slot in chosen])
        hidden = hidden_states(self.language, plan.tokens, plan.positions, plan)
        last = torch.stack([index[-1] for index in plan.index]).to(hidden.device)
        counts = torch.tensor([self.requests[i].count for i, _ in chosen], device=hidden.device)
        states = hidden[last]
        logits = self._logits(states).repeat_interleave(counts, 1)
        new = [
            Row(
                i,
                n,
                slot,
                numpy.random.default_rng([self.requests[i].seed, n]).random(self.requests[i].max_tokens),
            )
            for i, slot in chosen
            for n in range(self.requests[i].count)
        ]
        self._take(new, states.repeat_interleave(counts, 0), logits)
        self.live += new
        self._retire()

    def _decode(self) -> Tensor:
        """Decode step: last hidden states (R, H) of every live row."""
        slots = sorted({row.slot for row in self.live})
        order = {slot: i for i, slot in enumerate(slots)}
        prompt = {row.slot: len(self.requests[row.request].tokens) for row in self.live}
        lengths = torch.tensor([len(row.tokens) - 1 for row in self.live])
        plan = DecodePlan(
            self.cache,
            slots=slots,
            prompt_lengths=torch.tensor([prompt[slot] for slot in slots]),
            width=self.width,
            place=torch.tensor([order[row.slot] * self.width + row.number for row in self.live]),
            lengths=lengths,
        )
        positions = torch.tensor([prompt[row.slot] for row in self.live]) + lengths
        tokens = torch.tensor([[row.tokens[-1] for row in self.live]])
        return hidden_states(self.language, tokens, positions[None], plan)

    def _logits(self, hidden: Tensor) -> Tensor:
        """Logits (V, R) of hidden states (R, H). `weight @ hidden.T` is up to 1.7 times as fast on CPU as the
        transposed product, and in bfloat16 five times as fast again.
        """
        if self.half is not None:
            logits = product(self.half, hidden.bfloat16())
        else:
            logits = product(self.weight, hidden.float())
        return logits if self.bias is None else logits.add_(self.bias[:, None])  # pyright: ignore[reportIndexIssue]

    def _take(self, rows: Sequence[Row], states: Tensor, logits: Tensor) -> None:
        """Sample and append one token per row, from hidden states (R, H) and their logits (V, R)."""
        requests = [self.requests[row.request] for row in rows]
        tokens, logprobs = sample(
            logits,
            torch.tensor([row.uniforms[len(row.tokens)] for row in rows], dtype=torch.float64),
            torch.tensor([r.temperature for r in requests]),
            torch.tensor([r.top_k for r in requests]),
            torch.tensor([r.top_p for r in requests]),
        )
        if self.half is not None:
            exact = (states.bfloat16().float() * self.half[tokens].float()).sum(1)
            exact = exact if self.bias is None else exact + self.bias[tokens]
            logprobs = unrounded(logprobs, logits.gather(0, tokens[None])[0], exact)
        for row, token, logprob in zip(rows, tokens.tolist(), logprobs.tolist(), strict=True):
            row.tokens.append(token)
            row.logprobs.append(logprob)

    def _retire(self) -> None:
        """Remove finished rows; the last live row fills each hole, so live rows stay 0..n-1."""
        at = 0
        while at < len(self.live):
            row = self.live[at]
            ended = row.tokens[-1] in self.stops[row.request]
            if not ended and len(row.tokens) < self.requests[row.request].max_tokens:
                at += 1
                continue
            self.done[row.request][row.number] = Sample(
                tuple(row.tokens), tuple(row.logprobs), "end" if ended else "length"
            )
            progress.advance()
            last = self.live.pop()
            if last is not row:
                self.cache.move(len(self.live), at, len(last.tokens) - 1)
                self.live[at] = last
            if not any(other.slot == row.slot for other in self.live):
                self.free.append(row.slot)
