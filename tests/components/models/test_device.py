"""Engine and learner on a simulated GPU: bit-identical to the CPU, with all tensors on the right device."""

from __future__ import annotations

import copy
import json
import weakref
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn.attention import SDPBackend, sdpa_kernel

from ratchet.components.errors import ContractError
from ratchet.components.inference import choose, decoding
from ratchet.components.inference import torch as engines
from ratchet.components.inference.torch import TorchEngine
from ratchet.components.models import products
from ratchet.components.models.cached_attention import Cache
from ratchet.components.models.device import here, inference_dtype, to_device
from ratchet.components.models.forward import reward_states
from ratchet.components.models.load import load_model, load_tokenizer, new_reward, save_model
from ratchet.components.models.tiny import train_tiny
from ratchet.components.pieces.adapters.lora import lora
from ratchet.components.recipes.plain_values import plain
from ratchet.components.recipes.profile import Profile, Vllm
from ratchet.components.training.packing import pack
from ratchet.components.training.torch import TorchLearner
from ratchet.components.types import Group, Prompt, Request, Trajectory
from tests.pretend import DEVICE, There, pretended

SAID = ("What is 3 + 4?", "hi", "tell me about the sea", "9 + 9 =", "do you like dogs?")
OUTPUTS = {
    "policy": {"logprobs", "entropy"},
    "policy_with_value": {"logprobs", "entropy", "values"},
    "last": {"scores"},
    "mean": {"scores"},
}


@pytest.fixture(autouse=True)
def one_arithmetic(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Force the math implementation that torch has on every device."""
    monkeypatch.setattr(products, "onednn_is_faster", lambda: False)
    with sdpa_kernel(SDPBackend.MATH):
        yield


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """A model of each kind, with GELU activations: torch computes the gradient of SiLU differently on unknown
    devices.
    """
    paths = {kind: tmp_path_factory.mktemp(kind) for kind in OUTPUTS}
    policy = paths["policy"]
    train_tiny(policy, steps=3, hidden=64, layers=2, batch=8)
    config = policy / "config.json"
    config.write_text(json.dumps({**json.loads(config.read_text()), "hidden_act": "gelu"}))
    torch.manual_seed(0)
    by_kind = {
        "policy_with_value": load_model(policy, "policy_with_value"),
        "last": new_reward(policy),
        "mean": new_reward(policy, pool="mean"),
    }
    for kind, model in by_kind.items():
        head: Any = model.value_head if kind == "policy_with_value" else model.score
        nn.init.normal_(head.weight)
        save_model(model, load_tokenizer(policy), paths[kind])
    return paths


def engine_of(path: Path, kind: str, **options: Any) -> TorchEngine:
    return aligned(TorchEngine(path, rows=5, kind="reward" if kind in ("last", "mean") else kind, **options))


def aligned(owner: Any) -> Any:
    """Copy memory-mapped weights to memory allocated by torch: matmul rounding depends on alignment."""
    if not any(isinstance(p, There) for p in owner.model.parameters()):
        for parameter in owner.model.parameters():
            parameter.data = parameter.data.clone()
    return owner


def groups() -> list[Group]:
    return [
        Group(
            Prompt(answer, ({"role": "user", "content": answer},)),
            tuple(
                Trajectory(({"role": "assistant", "content": text},))
                for text in ("Hello!", "Hello! How are you?", "7")
            ),
        )
        for answer in SAID
    ]


@pytest.mark.parametrize("kind", list(OUTPUTS))
def test_scores_on_gpu_equal_cpu(models: dict[str, Path], kind: str) -> None:
    expected = engine_of(models[kind], kind).score(groups(), frozenset(OUTPUTS[kind]))
    with pretended():
        engine = engine_of(models[kind], kind)
        assert engine.score(groups(), frozenset(OUTPUTS[kind])) == expected
        assert all(isinstance(t, There) for t in (*engine.model.parameters(), *engine.model.buffers()))


def requests(engine: TorchEngine) -> list[Request]:
    settings = [(1.0, 0, 1.0), (0.0, 0, 1.0), (0.7, 0, 1.0), (0.7, 5, 1.0), (1.3, 0, 0.4)]
    return [
        Request(
            engine.encode_prompt(Prompt("", ({"role": "user", "content": answer},))),
            count=1 + (i == 4),
            max_tokens=[1, 9, 2, 9, 9][i],
            seed=i,
            temperature=temperature,
            top_k=top_k,
            top_p=top_p,
        )
        for i, (answer, (temperature, top_k, top_p)) in enumerate(zip(SAID, settings, strict=True))
    ]


@pytest.mark.parametrize("kind", ["policy", "policy_with_value"])
def test_answers_on_gpu_equal_cpu(
    models: dict[str, Path], kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """More answers than rows, of several lengths: prompts wait and freed rows are reused."""
    moved, listed = [], []
    monkeypatch.setattr(
        Cache, "move", lambda self, *places, move=Cache.move: moved.append(places) or move(self, *places)
    )
    monkeypatch.setattr(
        decoding,
        "DecodePlan",
        lambda *a, plan=decoding.DecodePlan, **k: listed.append(plan(*a, **k)) or listed[-1],
    )
    engine = engine_of(models[kind], kind)
    expected = engine.generate(requests(engine))
    with pretended():
        moved.clear(), listed.clear()
        assert engine_of(models[kind], kind).generate(requests(engine)) == expected
    assert moved and len({plan.count for plan in listed}) > 1


@pytest.mark.parametrize("adapter", [None, lora], ids=["full", "lora"])
@pytest.mark.parametrize("kind", ["policy_with_value", "last", "mean"])
def test_learner_on_gpu_trains_and_saves_as_on_cpu(
    models: dict[str, Path], tmp_path: Path, kind: str, adapter: Any
) -> None:
    outputs = frozenset(OUTPUTS[kind])
    encoded = [engine_of(models["policy"], "policy").encode(group) for group in groups()]
    batch = pack(encoded, unit="group", tokens=9999)[0]

    def learn(out: Path) -> Any:
        learner = aligned(
            TorchLearner(
                models[kind],
                kind="reward" if "scores" in outputs else kind,
                adapter=adapter,
                learning_rate=1e-2,
            )
        )
        losses = []

        def update() -> None:
            given = learner(batch, outputs).by_name
            assert all(type(values) is Tensor for values in given.values()), "losses are computed on the host"
            learner.backward(sum((values.square() - values).sum() for values in given.values()))
            losses.append(({output: values.tolist() for output, values in given.items()}, learner.step()))

        update(), update()
        state = learner.state()
        kept = copy.deepcopy(state)
        update()  # must not reach into `state`
        learner.save(out)
        learner.restore(state)
        update()
        assert losses[2] == losses[3]
        return losses, kept, state, {type(p.data) for p in learner.parameters.values()}

    losses, kept, state, _ = learn(tmp_path / "host")
    with pretended():
        there = learn(tmp_path / "there")
    assert there[0] == losses and there[3] == {There}
    flat = [torch.utils._pytree.tree_leaves(given) for given in (kept, state, *there[1:3])]
    assert all(
        type(value) is Tensor and torch.equal(value, first) if isinstance(first, Tensor) else value == first
        for given in flat[1:]
        for first, value in zip(flat[0], given, strict=True)
    )
    for file in (tmp_path / "host").rglob("*"):
        assert (
            file.is_dir()
            or file.read_bytes() == (tmp_path / "there" / file.relative_to(tmp_path / "host")).read_bytes()
        ), file.name


def test_cpu_checkpoint_resumes_on_gpu(models: dict[str, Path]) -> None:
    batch = pack(
        [engine_of(models["policy"], "policy").encode(group) for group in groups()], unit="group", tokens=9999
    )[0]

    def update(learner: TorchLearner) -> dict[str, float]:
        learner.backward(-learner(batch, frozenset({"logprobs"})).logprobs.sum())
        return learner.step()

    learner = aligned(TorchLearner(models["policy"], gradient_checkpointing=True))
    update(learner)
    state = learner.state()
    expected = update(learner)
    with pretended():
        there = TorchLearner(models["policy"])
        there.restore(state)
        assert update(there) == expected


@pytest.mark.parametrize("kind", list(OUTPUTS))
def test_half_precision_is_used_on_gpu_only_and_not_for_heads(models: dict[str, Path], kind: str) -> None:
    outputs = frozenset(OUTPUTS[kind])
    exact = engine_of(models[kind], kind, precision="bfloat16")
    assert {p.dtype for p in exact.model.parameters()} == {torch.float32}, "on the host"
    with pretended():
        engine = engine_of(models[kind], kind, precision="bfloat16")
        head = {"last": "score", "mean": "score", "policy_with_value": "value_head"}.get(kind, "no head")
        assert {p.dtype for n, p in engine.model.named_parameters() if not n.startswith(head)} == {
            torch.bfloat16
        }
        assert {p.dtype for n, p in engine.model.named_parameters() if n.startswith(head)} <= {torch.float32}
        scored = engine.score(groups(), outputs)
        if kind == "mean":
            batch = pack([engine.encode(group) for group in groups()], unit="group", tokens=9999)[0]
            assert reward_states(engine.model, batch).dtype == torch.float32
        if kind == "policy":
            answers = engine.generate(requests(engine))
            written = [
                Group(
                    Prompt("p", ()),
                    (
                        Trajectory(
                            (),
                            {"tokens": [*r.tokens, *s.tokens]},
                            [False] * len(r.tokens) + [True] * len(s.tokens),
                        ),
                    ),
                )
                for r, samples in zip(requests(engine), answers, strict=True)
                for s in samples
            ]
            sampled_logprobs = [
                row["logprobs"][0][-len(s.tokens) :]
                for row, s in zip(
                    engine.score(written, frozenset({"logprobs"})),
                    (s for samples in answers for s in samples),
                    strict=True,
                )
            ]
            for ours, sample in zip(
                sampled_logprobs, (s for samples in answers for s in samples), strict=True
            ):
                assert ours == pytest.approx(sample.logprobs, abs=0.05)
                assert any(p != float(torch.tensor(p).bfloat16()) for p in sample.logprobs), (
                    "the softmax was taken in half precision"
                )
    for row, other in zip(scored, exact.score(groups(), outputs), strict=True):
        for output in outputs:
            ours, theirs = (
                torch.tensor(torch.utils._pytree.tree_leaves(given[output])) for given in (row, other)
            )
            torch.testing.assert_close(ours, theirs, atol=0.25, rtol=0)
            assert not torch.equal(ours, theirs) and not torch.equal(ours, ours.bfloat16().float())


def test_scoring_models_use_the_profiles_precision(models: dict[str, Path]) -> None:
    profile = plain(
        Profile(
            threads=1,
            learner="deepspeed",
            precision="bfloat16",
            engine="vllm",
            vllm=Vllm(server="http://127.0.0.1:9"),
        )
    )
    with pretended():
        assert choose.engine_of(profile, models["mean"], "reward").dtype == torch.bfloat16
        assert choose.engine_of(profile, models["policy"]).model.dtype == torch.bfloat16
    assert choose.engine_of(profile, models["policy"]).model.dtype == torch.float32


def test_load_frees_the_old_weights_first(models: dict[str, Path], monkeypatch: pytest.MonkeyPatch) -> None:
    engine = TorchEngine(models["policy"])
    before, seen = weakref.ref(engine.model), []
    monkeypatch.setattr(engines, "load_model", lambda *a, **k: seen.append(before()) or load_model(*a, **k))
    engine.load(models["policy"])
    assert seen == [None]


def test_gpu_out_of_memory_is_one_sentence(monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: Any) -> None:
        raise torch.OutOfMemoryError("CUDA out of memory")

    monkeypatch.setattr(nn.Linear, "to", full)
    with pytest.raises(ContractError, match=r"Linear: .*0\.4 GB.*`vllm\.cache_gb`"):
        to_device(nn.Linear(10_000, 10_000, device="meta"))


def test_without_a_gpu_models_are_on_cpu_in_float32() -> None:
    if not torch.cuda.is_available():
        assert here() == torch.device("cpu") and inference_dtype("bfloat16") == torch.float32


def test_parameters_left_on_cpu_are_refused(models: dict[str, Path], monkeypatch: pytest.MonkeyPatch) -> None:
    """Proves that the simulation detects mistakes: each case is an error on a GPU, or a transfer within a
    pass.
    """
    with pretended():
        far, near = torch.arange(6.0, device=DEVICE).view(2, 3), torch.arange(3)
        for mistake in (
            lambda: far + near,
            lambda: far[:, near],
            lambda: torch.cat([far[0], near]),
            lambda: far.index_add_(1, near, far),
        ):
            with pytest.raises(RuntimeError, match="device"):
                mistake()
        assert (far * torch.tensor(2.0)).cpu().tolist() == [[0.0, 2.0, 4.0], [6.0, 8.0, 10.0]], (
            "a single number may lie anywhere"
        )
        engine = TorchEngine(models["policy"])
        monkeypatch.setattr(
            Cache,
            "__init__",
            lambda self, *a, init=Cache.__init__, **k: init(self, *a, **k) or setattr(self, "device", "cpu"),
        )
        with pytest.raises(RuntimeError, match="device"):
            engine.generate(requests(engine))
