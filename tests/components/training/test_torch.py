"""The torch learner: bit-identical resume, export, schedules, adapters, value heads."""

from __future__ import annotations

import math
import subprocess
import sys
import weakref
from pathlib import Path

import pytest
import torch

from ratchet.components.errors import TrainingError
from ratchet.components.inference.torch import TorchEngine
from ratchet.components.models.load import load_policy
from ratchet.components.models.lora import merge_adapter
from ratchet.components.models.tiny import train_tiny
from ratchet.components.pieces.adapters.lora import lora
from ratchet.components.pieces.adapters.steer import steer
from ratchet.components.pieces.adapters.top_layers import top_layers
from ratchet.components.training import torch as torch_learner
from ratchet.components.training.packing import pack
from ratchet.components.training.roles import Follower
from ratchet.components.training.torch import TorchLearner, rate
from ratchet.components.types import Batch, Group, Prompt, Trajectory

OUTPUTS = frozenset({"logprobs"})


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("tiny")
    train_tiny(path, steps=3, hidden=64, layers=2, batch=8)
    return path


def batch() -> Batch:
    rows = [[1, 20, 30, 40, 2], [1, 20, 30, 41, 42, 2], [1, 50, 2]]
    paths = [Trajectory((), {"tokens": r}, [False, False] + [True] * (len(r) - 2)) for r in rows]
    return pack(
        [Group(Prompt("a", ()), tuple(paths[:2])), Group(Prompt("b", ()), (paths[2],))], unit="row", tokens=99
    )[0]


def update(learner: TorchLearner) -> dict[str, float]:
    learner.backward(-learner(batch(), OUTPUTS).logprobs.sum())
    return learner.step()


@pytest.mark.parametrize(
    "adapter", [None, lora, lambda m: top_layers(m, count=1)], ids=["full", "lora", "top"]
)
def test_restore_resumes_bit_for_bit(tiny: Path, adapter) -> None:
    def make() -> TorchLearner:
        torch.manual_seed(0)
        return TorchLearner(tiny, adapter=adapter, learning_rate=1e-2, schedule="cosine", warmup=2, total=6)

    through, first, second = make(), make(), make()
    numbers = [update(through) for _ in range(4)]
    [update(first) for _ in range(2)]
    kept = first.state()
    update(first)  # must not reach into `kept`
    second.restore(kept)
    assert [update(second) for _ in range(2)] == numbers[2:]
    for name, parameter in through.parameters.items():
        assert torch.equal(parameter, second.parameters[name]), name


@pytest.mark.parametrize("adapter", [None, lora], ids=["full", "lora"])
def test_saved_directory_loads_as_the_trained_model(tiny: Path, tmp_path: Path, adapter) -> None:
    learner = TorchLearner(tiny, adapter=adapter, learning_rate=1e-2)
    for _ in range(3):
        update(learner)
    learner.save(tmp_path)
    before = learner(batch(), OUTPUTS).logprobs.detach()
    plain = load_policy(tmp_path, attention="sdpa")
    row = batch().inputs["tokens"][1]
    theirs = plain(row[None]).logits[0, :-1].log_softmax(-1)[range(len(row) - 1), row[1:]]
    torch.testing.assert_close(before[1, 2:6], theirs[1:], atol=1e-5, rtol=0)
    assert (tmp_path / "tokenizer.json").is_file() and not list(tmp_path.glob(".saving*"))
    if adapter:
        merge_adapter(tmp_path / "adapter", tiny, tmp_path / "merged")
        torch.testing.assert_close(
            load_policy(tmp_path / "merged", attention="sdpa")(row[None]).logits,
            plain(row[None]).logits,
            atol=1e-5,
            rtol=0,
        )
    update(learner)  # saving did not end training
    assert not torch.equal(before, learner(batch(), OUTPUTS).logprobs.detach())


def test_gradient_of_a_tied_embedding_equals_transformers(tiny: Path) -> None:
    """It is the sum of the input embedding's gradient (only the rows read) and the output layer's."""
    learner, plain = TorchLearner(tiny), load_policy(tiny, attention="sdpa")
    for _ in range(2):  # a second micro-batch adds to the first
        learner.backward(-learner(batch(), OUTPUTS).logprobs.sum())
    for row, mask in zip(batch().inputs["tokens"], batch().mask, strict=True):
        logprobs = plain(row[None]).logits[0, :-1].log_softmax(-1)[range(len(row) - 1), row[1:]]
        (-2 * logprobs[mask[1 : len(row)]].sum()).backward()
    for model in (learner.model, plain):
        assert model.get_output_embeddings().weight is model.get_input_embeddings().weight
    ours, theirs = (model.get_input_embeddings().weight.grad for model in (learner.model, plain))
    assert not ours.is_sparse
    torch.testing.assert_close(ours, theirs, atol=2e-5, rtol=1e-4)


def test_loss_without_logits_trains_the_embedding(tiny: Path) -> None:
    learner = TorchLearner(tiny, kind="policy_with_value", learning_rate=1e-2)
    torch.nn.init.ones_(learner.model.value_head.weight)
    embedding = learner.model.get_input_embeddings().weight
    before = embedding.detach().clone()
    learner.backward(learner(batch(), frozenset({"values"})).values.sum())
    learner.step()
    moved = (embedding != before).any(1).nonzero()[:, 0].tolist()
    assert set(moved) == {1, 20, 30, 40, 41, 42, 50}, "the tokens that precede a chosen one"


def test_only_adapter_parameters_are_trained(tiny: Path) -> None:
    learner = TorchLearner(tiny, adapter=lambda m: top_layers(m, count=1), learning_rate=1e-2)
    before = {n: p.clone() for n, p in learner.model.named_parameters()}
    update(learner)
    moved = {n for n, p in learner.model.named_parameters() if not torch.equal(p, before[n])}
    assert moved and all("layers.1." in n or n == "model.norm.weight" for n in moved)


def test_a_tied_follower_takes_the_weights_of_an_untied_policy(tiny: Path) -> None:
    """Under `steer` the policy's output layer is no longer its embedding; the follower's embedding stays."""
    learner = TorchLearner(tiny, adapter=steer, learning_rate=3e-2)
    for _ in range(3):
        update(learner)
    policy, reference = TorchEngine.following(learner), TorchEngine(tiny)
    follower = Follower(reference, lambda own, theirs: theirs)
    follower.follow(policy)
    rows = [Group(Prompt("a", ()), (Trajectory((), {"tokens": [1, 20, 30, 2]}, [False, False, True, True]),))]
    assert (
        reference.score(rows, OUTPUTS)
        == policy.score(rows, OUTPUTS)
        != TorchEngine(tiny).score(rows, OUTPUTS)
    )
    assert reference.weights == policy.weights
    again = Follower(TorchEngine(tiny), lambda own, theirs: theirs)
    again.restore(follower.state())
    assert again.engine.score(rows, OUTPUTS) == policy.score(rows, OUTPUTS)


def test_gradient_checkpointing_changes_nothing(tiny: Path) -> None:
    plain, checkpointed = TorchLearner(tiny), TorchLearner(tiny, gradient_checkpointing=True)
    assert update(plain)["grad_norm"] == pytest.approx(update(checkpointed)["grad_norm"], rel=1e-6)


def test_non_finite_gradient_stops_without_an_update(tiny: Path) -> None:
    learner = TorchLearner(tiny)
    before = {n: p.clone() for n, p in learner.parameters.items()}
    learner.backward(learner(batch(), OUTPUTS).logprobs.sum() * float("nan"))
    with pytest.raises(TrainingError, match="gradient norm"):
        learner.step()
    assert all(torch.equal(p, before[n]) for n, p in learner.parameters.items())


@pytest.mark.parametrize("limit", [None, 0.25])
def test_gradients_are_clipped_only_with_a_limit(
    tiny: Path, limit: float | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    learner, seen = TorchLearner(tiny, max_grad_norm=limit), []
    monkeypatch.setattr(
        learner.optimiser,
        "step",
        lambda: seen.append(
            math.sqrt(
                sum(float(p.grad.square().sum()) for p in learner.parameters.values() if p.grad is not None)
            )
        ),
    )
    learner.backward(-10 * learner(batch(), OUTPUTS).logprobs.sum())
    norm = learner.step()["grad_norm"]
    assert norm > 1 and seen == [pytest.approx(norm if limit is None else limit, rel=1e-3)]


def test_values_start_at_zero_learn_and_are_saved(tiny: Path, tmp_path: Path) -> None:
    outputs = frozenset({"values", "logprobs"})
    learner = TorchLearner(tiny, kind="policy_with_value", learning_rate=1e-2)
    assert not learner(batch(), outputs).values.any()
    for _ in range(30):
        out = learner(batch(), outputs)
        learner.backward((((out.values - 1) * batch().mask) ** 2).sum())
        learner.step()
    learned = learner(batch(), outputs).values.detach()
    assert (
        float(learned[batch().mask].mean()) == pytest.approx(1.0, abs=0.2)
        and not learned[~batch().mask].any()
    )
    learner.save(tmp_path)
    again = TorchLearner(tmp_path, kind="policy_with_value")
    torch.testing.assert_close(again(batch(), outputs).values.detach(), learned, atol=1e-6, rtol=0)


def test_moments_and_gradients_are_freed_after_training(tiny: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    returned: list[bool] = []
    monkeypatch.setattr(torch_learner, "return_free_memory", lambda: returned.append(True))
    learner = TorchLearner(tiny)
    update(learner)
    learner.backward(-learner(batch(), OUTPUTS).logprobs.sum())
    tensors = [
        weakref.ref(moment)
        for state in learner.optimiser.state.values()
        for moment in state.values()
        if moment.dim()
    ]
    tensors += [weakref.ref(p.grad) for p in learner.parameters.values() if p.grad is not None]
    assert len(tensors) == 3 * len(learner.parameters) and all(one() is not None for one in tensors)
    learner.release_optimiser()
    assert [one() for one in tensors] == [None] * len(tensors) and returned


def test_freed_memory_returns_to_the_system_after_training() -> None:
    """300 blocks of 1 MB, with one in use after them, as the C library would keep."""
    code = (
        "import torch; from pathlib import Path; from ratchet.components.models import device\n"
        "def resident(): return int(Path('/proc/self/statm').read_text().split()[1]) / 256\n"
        "torch.ones(6_000_000); before = resident()\n"
        "blocks = [torch.ones(250_000) for _ in range(300)]; last = torch.ones(250_000); del blocks\n"
        "kept = resident() - before; device.return_free_memory(); print(kept, resident() - before)"
    )
    root = Path(__file__).parents[3]
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=root, check=True)
    kept, left = map(float, done.stdout.split())
    assert kept > 250 and left < 50, "MB"


def test_learning_rate_schedule_by_hand() -> None:
    linear = [rate(s, peak=1.0, schedule="linear", warmup=2, total=6) for s in range(7)]
    assert linear == pytest.approx([0.5, 1.0, 1.0, 0.75, 0.5, 0.25, 0.0])
    cosine = [rate(s, peak=2.0, schedule="cosine", warmup=0, total=4) for s in (0, 2, 4)]
    assert cosine == pytest.approx([2.0, 1.0, 0.0])
    assert rate(99, peak=3.0, schedule="constant", warmup=4, total=0) == 3.0
