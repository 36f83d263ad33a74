"""On a real GPU (skipped without one; `make gpu` runs them): model types against transformers, the kernel of
packed rows against the loop, both learners against the CPU, sampling, bit-exact resume.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor
from transformers import AutoTokenizer

from ratchet.components.inference import decoding
from ratchet.components.inference.torch import TorchEngine
from ratchet.components.inference.verify import TESTED, logprob_difference
from ratchet.components.models import varlen_attention
from ratchet.components.models.decode_graph import DecodeGraphs
from ratchet.components.models.forward import model_outputs
from ratchet.components.models.load import load_policy, save_model
from ratchet.components.models.products import product_precision
from ratchet.components.models.tiny import train_tiny
from ratchet.components.stages.job import deterministic
from ratchet.components.training.packing import pack
from ratchet.components.training.torch import TorchLearner
from ratchet.components.types import Batch, Group, Prompt, Request, Trajectory
from tests.components.inference.test_verify import tiny

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
STEPS = 4


@pytest.fixture(autouse=True)
def as_a_stage() -> Iterator[None]:
    deterministic()
    yield
    torch.use_deterministic_algorithms(False)


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A small Llama-like model that has learnt a little."""
    out = tmp_path_factory.mktemp("tiny")
    train_tiny(out, steps=20, hidden=64, layers=2, batch=8)
    return out


@pytest.fixture(scope="module")
def tokenizer(path: Path) -> Any:
    return AutoTokenizer.from_pretrained(path)


def batch_of(vocabulary: int, *, seed: int = 0) -> Batch:
    """Groups of three answers to a prompt, prompts that begin alike, and rows that share nothing."""
    generator = torch.Generator().manual_seed(seed)

    def drawn(n: int) -> list[int]:
        return torch.randint(3, vocabulary, (n,), generator=generator).tolist()

    base, groups = drawn(20), []
    for number, prompt in enumerate([[*base, *drawn(4)], [*base, *drawn(9)], drawn(3), drawn(30)]):
        rows = [[*prompt, *drawn(n)] for n in (5, 12, 1)]
        paths = [Trajectory((), {"tokens": r}, [i >= len(prompt) for i in range(len(r))]) for r in rows]
        groups.append(Group(Prompt(str(number), ()), tuple(paths)))
    return pack(groups, unit="group", tokens=10_000)[0]


def logprobs_of(model: Any, batch: Batch) -> Tensor:
    return model_outputs(model, "policy", batch, frozenset({"logprobs"})).logprobs


@pytest.mark.parametrize("kind", sorted(TESTED))
def test_a_model_type_agrees_with_transformers(kind: str, tokenizer: Any) -> None:
    """Float32: the packed forward pass as on the CPU; it and decoding (but for experts in CUDA graphs) as
    transformers on the GPU.
    """
    model = tiny(kind, tokenizer)
    batch = batch_of(len(tokenizer))
    with torch.no_grad():
        expected = logprobs_of(model, batch)
        ours = logprobs_of(model.cuda(), batch).cpu()
    torch.testing.assert_close(ours, expected, atol=2e-4, rtol=0)
    assert logprob_difference(model, tokenizer) < 1e-3


@pytest.mark.parametrize("kind", ["llama", "qwen3", "mistral", "gemma2", "gpt_oss", "phi3"])
def test_the_kernel_equals_the_loop(kind: str, tokenizer: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """bfloat16 weights: log-probs and gradients by the kernel are as near to float32 as those of the loop.
    Gemma 2's caps and gpt-oss's sinks are not the kernel's.
    """
    batch, calls = batch_of(len(tokenizer)), []
    kernel, usual = varlen_attention.varlen_attn, varlen_attention.has_kernel
    monkeypatch.setattr(varlen_attention, "varlen_attn", lambda *a, **k: calls.append(1) or kernel(*a, **k))

    def computed(dtype: torch.dtype, kernel: bool) -> tuple[Tensor, Tensor]:
        monkeypatch.setattr(varlen_attention, "has_kernel", usual if kernel else lambda *_: False)
        model = tiny(kind, tokenizer).cuda().to(dtype)
        found = logprobs_of(model, batch)
        found.sum().backward()
        gradient = torch.cat([p.grad.float().flatten() for p in model.parameters() if p.grad is not None])
        return found.detach().float(), gradient

    exact = computed(torch.float32, False)
    loop, ours = computed(torch.bfloat16, False), computed(torch.bfloat16, True)
    assert bool(calls) == (kind not in ("gemma2", "gpt_oss"))
    for value, plain, true in zip(ours, loop, exact, strict=True):
        assert distance(value, true) < max(1.5 * distance(plain, true), 0.02)


def distance(value: Tensor, true: Tensor) -> float:
    """‖value − true‖ / ‖true‖"""
    return float((value - true).norm() / true.norm())


@pytest.mark.parametrize("precision", ["float32", "bfloat16"])
def test_training_equals_the_cpu_and_resumes_to_the_bit(
    precision: str, path: Path, tokenizer: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    batch = batch_of(len(tokenizer))

    def train(steps: int, state: Any = None) -> tuple[list[float], Any, dict[str, Tensor]]:
        learner = TorchLearner(path, learning_rate=1e-3, gradient_checkpointing=True)
        if state:
            learner.restore(state)
        losses = []
        for _ in range(steps):
            loss = -learner(batch, frozenset({"logprobs"})).logprobs.sum() / 100
            learner.backward(loss)
            losses += [loss.item(), learner.step()["grad_norm"]]
        return losses, learner.state(), {n: p.detach().cpu() for n, p in learner.parameters.items()}

    with product_precision(precision):
        losses, _, weights = train(STEPS)
        again, _, same = train(STEPS)
        half, state, _ = train(STEPS // 2)
        rest, _, resumed = train(STEPS // 2, state)
    assert losses == again == [*half, *rest]
    for name, weight in weights.items():
        assert torch.equal(weight, same[name]) and torch.equal(weight, resumed[name]), name
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    with product_precision("float32"):
        on_cpu, _, _ = train(STEPS)
    assert losses == pytest.approx(on_cpu, rel=2e-3 if precision == "float32" else 5e-2)


@pytest.mark.parametrize("precision", ["float32", "bfloat16"])
def test_answers_are_transformers_and_repeat(precision: Any, path: Path) -> None:
    """Greedy answers in float32 are those of `generate`; sampled log-probs are those that scoring finds;
    a second call draws the same tokens.
    """
    engine = TorchEngine(path, rows=6, precision=precision)
    prompts = [list(range(5, 5 + n)) for n in (12, 15, 3, 30)]
    with product_precision(precision):
        if precision == "float32":
            greedy = engine.generate([Request(p, max_tokens=8, temperature=0.0) for p in prompts])
            model = load_policy(path, attention="sdpa").cuda()
            for prompt, (sample,) in zip(prompts, greedy, strict=True):
                out = model.generate(
                    torch.tensor([prompt]).cuda(), max_new_tokens=8, do_sample=False, pad_token_id=0
                )
                assert out[0, len(prompt) :].tolist()[: len(sample.tokens)] == list(sample.tokens)
        requests = [Request(p, count=3, max_tokens=20, seed=i) for i, p in enumerate(prompts)]
        answers = engine.generate(requests)
        assert answers == engine.generate(requests)
        for request, samples in zip(requests, answers, strict=True):
            rows = [
                Trajectory(
                    (),
                    {"tokens": [*request.tokens, *s.tokens]},
                    [False] * len(request.tokens) + [True] * len(s.tokens),
                )
                for s in samples
            ]
            (scored,) = engine.score([Group(Prompt("p", ()), tuple(rows))], frozenset({"logprobs"}))
            for sample, row in zip(samples, scored["logprobs"], strict=True):
                found = row[len(request.tokens) :]
                assert found == pytest.approx(
                    list(sample.logprobs), abs=1e-3 if precision == "float32" else 0.1
                )


def test_answers_by_graphs_are_those_of_plain_steps(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """More answers than rows, so that graphs of several sizes are used."""
    engine, sizes = TorchEngine(path, rows=20), []
    monkeypatch.setattr(
        DecodeGraphs,
        "_capture",
        lambda self, *size, usual=DecodeGraphs._capture: sizes.append(size) or usual(self, *size),
    )
    requests = [
        Request(list(range(5, 9 + 5 * i)), count=1 + i % 3, max_tokens=[3, 70, 17][i % 3], seed=i)
        for i in range(20)
    ]
    ours = engine.generate(requests)
    assert len(set(sizes)) > 2
    monkeypatch.setattr(decoding, "has_fixed_steps", lambda _: False)
    for samples, others in zip(ours, engine.generate(requests), strict=True):
        for sample, other in zip(samples, others, strict=True):
            assert sample.tokens == other.tokens
            assert list(sample.logprobs) == pytest.approx(list(other.logprobs), abs=1e-3)


def test_answers_that_continue_the_cache_use_the_kernel(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    engine, calls = TorchEngine(path, rows=2, precision="bfloat16"), []
    kernel = varlen_attention.varlen_attn
    monkeypatch.setattr(varlen_attention, "varlen_attn", lambda *a, **k: calls.append(1) or kernel(*a, **k))
    base = list(range(5, 45))
    requests = [
        Request([*base, *tail], max_tokens=1, temperature=0.0)
        for tail in ([60], [60, 61], [70, 71, 72], [80])
    ]
    ours = [samples[0].logprobs[0] for samples in engine.generate(requests)]
    assert calls
    monkeypatch.setattr(varlen_attention, "has_kernel", lambda *_: False)
    engine.load(path)
    theirs = [samples[0].logprobs[0] for samples in engine.generate(requests)]
    assert ours == pytest.approx(theirs, abs=0.1)


ZERO = """
import json, sys, torch
from pathlib import Path
from ratchet.components.models.products import product_precision
from ratchet.components.training.torch import TorchLearner
from tests.gpu.test_gpu import batch_of, losses_of
path, stage, precision = Path(sys.argv[1]), sys.argv[2], sys.argv[3]
options = dict(learning_rate=1e-3, gradient_checkpointing=True)
if stage == "torch":
    learner = TorchLearner(path, **options)
else:
    from ratchet.components.training.deepspeed import DeepSpeedLearner
    learner = DeepSpeedLearner(path, zero_stage=int(stage), precision=precision, **options)
with product_precision(precision):
    losses = losses_of(learner, batch_of(len(learner.tokenizer)))
learner.save(Path(sys.argv[4]))
print("LOSSES", json.dumps(losses), torch.cuda.max_memory_reserved())
"""


def losses_of(learner: Any, batch: Batch) -> list[float]:
    losses = []
    for _ in range(STEPS):
        loss = -learner(batch, frozenset({"logprobs"})).logprobs.sum() / 100
        learner.backward(loss)
        losses += [float(loss), float(learner.step()["grad_norm"])]
    return losses


@pytest.mark.parametrize(
    ("stage", "precision"),
    [("0", "float32"), ("2", "float32"), ("3", "float32"), ("2", "bfloat16"), ("3", "bfloat16")],
)
def test_deepspeed_equals_the_torch_learner(stage: str, precision: str, path: Path, tmp_path: Path) -> None:
    pytest.importorskip("deepspeed")

    def trained(stage: str, precision: str, out: Path) -> list[float]:
        command = [sys.executable, "-c", ZERO, str(path), stage, precision, str(out)]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        assert not done.returncode, done.stderr[-3000:]
        (line,) = [line for line in done.stdout.splitlines() if line.startswith("LOSSES")]
        return json.loads(line.removeprefix("LOSSES").rpartition("]")[0] + "]")

    theirs = trained("torch", "float32", tmp_path / "torch")
    ours = trained(stage, precision, tmp_path / "zero")
    assert ours == pytest.approx(theirs, rel=1e-3 if precision == "float32" else 5e-2)
    batch = batch_of(len(AutoTokenizer.from_pretrained(path)))
    with torch.no_grad():
        first, second = (
            logprobs_of(load_policy(tmp_path / name).cuda(), batch) for name in ("torch", "zero")
        )
    assert float((first - second).abs().mean()) < (1e-3 if precision == "float32" else 0.1)


def test_a_saved_model_is_the_trained_one(path: Path, tokenizer: Any, tmp_path: Path) -> None:
    learner = TorchLearner(path, learning_rate=1e-3)
    batch = batch_of(len(tokenizer))
    losses_of(learner, batch)
    learner.save(tmp_path)
    with torch.no_grad():
        here, read = logprobs_of(learner.model, batch), logprobs_of(load_policy(tmp_path).cuda(), batch)
    assert torch.equal(here, read)
    save_model(learner.model, tokenizer, tmp_path / "again")
