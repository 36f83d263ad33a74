"""Variational preference learning: posterior and quadrature, readers, the users' groups, the measure."""

from __future__ import annotations

import math
from collections import Counter
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from scipy.integrate import quad
from scipy.stats import norm
from transformers import LlamaConfig, LlamaForCausalLM

from ratchet.components.data.generate import generate
from ratchet.components.data.parsing import parse
from ratchet.components.errors import ContractError, DataError
from ratchet.components.models.attention import register
from ratchet.components.models.forward import model_outputs
from ratchet.components.piece import build
from ratchet.components.pieces.measures.user_accuracy import latent_margins
from ratchet.components.pieces.objectives.variational_preference import expected_logsigmoid, posterior
from ratchet.components.training.objectives import parts
from ratchet.components.training.packing import pack
from ratchet.components.types import Batch, Context, Group, Outputs, Prompt, Read, Trajectory

SPEC = {"name": "variational_preference", "weight": 1.0, "reduce": "unit_mean", "label": "loss"}


def batch_of(group: list[int], context: list[float]) -> Batch:
    number = torch.tensor(group)
    return Batch(
        {},
        torch.ones(len(group), 2, dtype=torch.bool),
        {"context": torch.tensor(context, dtype=torch.float64)},
        number,
        number,
        tuple(map(str, group)),
    )


def column(*values: float) -> torch.Tensor:
    return torch.tensor(values, dtype=torch.float64)[:, None]


@pytest.mark.parametrize(("h", "log_variance"), [((0.4, -0.4, -0.1, 0.1), 0.0), ((0.8, 0.4, 0.3, 0.5), 0.5)])
def test_the_bound_of_one_user_is_that_worked_by_hand(h: tuple[float, ...], log_variance: float) -> None:
    """Context (1.5 against 0.75) and (0.5 against 0.25): mean 0.5; the log variance is the mean of h. Target:
    b 0.2 against 0, f 1 against -1, so that the margin is N(0.2 + 2 x 0.5, 4 e^s) with s the log variance.
    Divergence 0.5 (0.25 + e^s - 1 - s): 0.125, and 0.199361 for s = 0.5.
    """
    out = Outputs(
        {
            "shared": column(9, 9, 0.2, 0, 9, 9)[:, 0],
            "taste": column(5, 6, 1, -1, 7, 8),
            "evidence": column(1.5, 0.75, 3, 3, 0.5, 0.25),
            "spread": column(*h[:2], 9, 9, *h[2:]),
        }
    )
    batch, deviation = batch_of([0] * 6, [1, 1, 0, 0, 1, 1]), 2 * math.exp(log_variance / 2)
    terms = build("objective", {"name": "variational_preference", "latent": 1, "kl": 0.1})(out, batch)
    expected, _ = quad(lambda x: -math.log1p(math.exp(-x)) * norm.pdf(x, 1.2, deviation), -25, 25)
    divergence = {0.0: 0.125, 0.5: 0.1993606}[log_variance]
    assert terms.loss.tolist() == pytest.approx([-expected + 0.1 * divergence], abs=5e-4)
    assert terms.metrics["kl"].tolist() == pytest.approx([divergence])
    assert terms.metrics["accuracy"].tolist() == [1.0]


def test_a_user_without_context_has_the_prior_and_one_without_targets_only_a_divergence() -> None:
    out = Outputs(
        {
            "shared": column(0.3, 0, 1, 0)[:, 0],
            "taste": column(1, 1, 1, 0),
            "evidence": column(1, 0, 0.5, 0),
            "spread": column(0, 0, 0, 0),
        }
    )
    terms = build("objective", {"name": "variational_preference", "latent": 1, "kl": 0.5})(
        out, batch_of([0, 0, 1, 1], [0, 0, 1, 1])
    )
    assert terms.loss.tolist() == pytest.approx([math.log1p(math.exp(-0.3)), 0.5 * 0.125])


def test_a_target_is_no_evidence_on_its_user() -> None:
    drawn = torch.Generator().manual_seed(0)
    values = {
        name: 0.3 * torch.randn(6, 2, dtype=torch.float64, generator=drawn)
        for name in ("taste", "evidence", "spread")
    }
    out = Outputs({"shared": torch.zeros(6, dtype=torch.float64), **values})
    evidence = values["evidence"].requires_grad_()
    objective = build("objective", {"name": "variational_preference", "latent": 2})
    objective(out, batch_of([0] * 6, [1, 1, 0, 0, 1, 1])).loss.sum().backward()
    assert evidence.grad is not None
    assert (evidence.grad[2:4] == 0).all() and (evidence.grad[[0, 1, 4, 5]] != 0).any()


@pytest.mark.parametrize(("mean", "variance"), [(0.0, 0.0), (1.5, 0.5), (-3.0, 4.0)])
def test_the_quadrature_is_the_integral(mean: float, variance: float) -> None:
    found = expected_logsigmoid(torch.tensor(mean).double(), torch.tensor(variance).double())
    if variance == 0:
        assert float(found) == pytest.approx(-math.log(2), abs=1e-6)
    else:
        inner = lambda x: -math.log1p(math.exp(-x)) * norm.pdf(x, mean, math.sqrt(variance))  # noqa: E731
        assert float(found) == pytest.approx(quad(inner, -25, 25)[0], abs=2e-4)


def test_the_posterior_is_the_mean_over_pairs_within_its_bounds() -> None:
    mean, log_variance = posterior(
        torch.tensor([[0.2], [0.4], [3.0]]),
        torch.tensor([[1.0], [0.0], [-3.0]]),
        torch.tensor([0, 0, 2]),
        3,
    )
    assert mean.flatten().tolist() == pytest.approx([0.3, 0.0, 1.0])
    assert log_variance.flatten().tolist() == pytest.approx([0.5, 0.0, -1.0])


def llama(attention: str) -> torch.nn.Module:
    register()
    torch.manual_seed(0)
    sizes = dict(vocab_size=61, hidden_size=32, intermediate_size=48, num_hidden_layers=2)
    heads = dict(num_attention_heads=4, num_key_value_heads=2, tie_word_embeddings=True)
    config: Any = LlamaConfig(**sizes, **heads, attn_implementation=attention)  # pyright: ignore[reportCallIssue]
    return LlamaForCausalLM(config).eval()


def encoded(seed: int = 1) -> list[Group]:
    """Three pairs, the first two with one prompt."""
    drawn = torch.Generator().manual_seed(seed)

    def draw(n: int) -> list[int]:
        return torch.randint(1, 61, (n,), generator=drawn).tolist()

    prompt, groups = draw(6), []
    for i, start in enumerate((prompt, prompt, draw(4))):
        rows = [([*start, *draw(n)], [False] * len(start) + [True] * n) for n in (3, 5)]
        groups.append(Group(Prompt(str(i), ()), tuple(Trajectory((), {"tokens": t}, m) for t, m in rows)))
    return groups


def test_readers_are_coordinates_of_the_answers_mean_state() -> None:
    ours, plain = llama("ratchet"), llama("eager")
    (part,) = parts([{**SPEC, "latent": 3}])
    (batch,) = pack(encoded(), unit="group", tokens=1000)
    found = model_outputs(ours, "policy", batch, part.requests).by_name
    read = {one.name: values for one, values in found.items() if isinstance(one, Read)}
    for b, tokens in enumerate(batch.inputs["tokens"]):
        with torch.no_grad():
            states = plain.model(input_ids=tokens[None]).last_hidden_state[0]  # pyright: ignore[reportCallIssue]
        mean = states[batch.mask[b, : len(tokens)]].mean(0)
        ends = {"taste": (1, 4), "evidence": (4, 7), "spread": (7, 10)}
        torch.testing.assert_close(read["shared"][b], mean[0], atol=1e-5, rtol=0)
        for name, (start, stop) in ends.items():
            torch.testing.assert_close(read[name][b], mean[start:stop], atol=1e-5, rtol=0)
    (wide,) = parts([{**SPEC, "latent": 11}])
    with pytest.raises(ContractError):
        model_outputs(ours, "policy", batch, wide.requests)


def test_the_measure_scores_as_the_objective_learns() -> None:
    """A group of two context pairs and one target: the accuracy that training logs at the posterior's mean
    has the sign of the measure's margin, which is also worked from the readers.
    """
    model, groups = llama("ratchet"), encoded()
    engine = SimpleNamespace(model=model, encode=lambda group: group)
    (part,) = parts([{**SPEC, "latent": 3}])
    user = Group(
        groups[0].prompt, tuple(t for g in groups for t in g.trajectories), {"context": [1.0] * 4 + [0.0] * 2}
    )
    (batch,) = pack([user], unit="group", tokens=1000)
    out = model_outputs(model, "policy", batch, part.requests)
    accuracy = float(part(out, batch).metrics["accuracy"])
    (margin,) = latent_margins(engine, [groups[2]], [groups[:2]], 3)
    read = {one.name: v for one, v in out.by_name.items() if isinstance(one, Read)}
    mean, _ = posterior(
        read["evidence"][[0, 2]] - read["evidence"][[1, 3]], torch.zeros(2, 3), torch.zeros(2).long(), 1
    )
    expected = (
        read["shared"][4].detach() - read["shared"][5] + (read["taste"][4] - read["taste"][5]) @ mean[0]
    )
    assert margin == pytest.approx(float(expected), abs=1e-5) and (margin > 0) == (accuracy == 1.0)
    (alone,) = latent_margins(engine, [groups[2]], [[]], 3)
    assert alone == pytest.approx(float(read["shared"][4] - read["shared"][5]), abs=1e-5)


def labelled(number: int, user: str | None, tokens: bool = True) -> Group:
    meta = {} if user is None else {"user": user}
    inputs: dict[str, Any] = {"tokens": [number, 1]} if tokens else {}
    rows = tuple(Trajectory((), inputs, [False, True] if tokens else ()) for _ in range(2))
    return Group(Prompt(f"p{number}", (), meta=meta), rows, {"margin": [1.0, 1.0]})


def test_a_users_pairs_become_one_group_with_their_own_tokens() -> None:
    pairs = [labelled(i, "ab"[i % 2]) for i in range(10)] + [labelled(10, "c")]
    ctx, select = Context(), build("select", {"name": "by_user", "context": 3, "draws": 2})
    groups = select(pairs, ctx)
    assert [g.prompt.id for g in groups] == ["a/0", "a/1", "b/0", "b/1"]
    assert ctx.counts == Counter({"users with too few pairs": 1})
    for group, parity in zip(groups, (0, 0, 1, 1), strict=True):
        numbers = [t.inputs["tokens"][0] for t in group.trajectories]
        assert numbers[0::2] == numbers[1::2] and sorted(numbers[0::2]) == list(range(parity, 10, 2))
        assert group.columns == {"context": [1.0] * 6 + [0.0] * 4}
    assert [g.trajectories for g in select(pairs, Context())] == [g.trajectories for g in groups]
    assert groups[0].trajectories != groups[1].trajectories, "a draw has its own context"
    for bad in (labelled(0, None), labelled(0, "a", tokens=False)):
        with pytest.raises(DataError):
            select([bad], Context())


class Scores:
    """A reward model that likes one text."""

    kind, weights = "reward", "scores"

    def __init__(self, liked: str) -> None:
        self.liked = liked

    def encode(self, group: Group) -> Group:
        return group

    def score(self, groups: list[Group], outputs: frozenset[str]) -> list[dict[str, list[float]]]:
        return [{"scores": [float(t.text == self.liked) for t in g.trajectories]} for g in groups]


def asked(user: str, chosen: str, rejected: str) -> Group:
    prompt = Prompt(user + chosen, (), meta={"user": user, "chosen": chosen, "rejected": rejected})
    return Group(prompt, (Trajectory(()), Trajectory(())))


def test_a_reward_for_all_is_wrong_for_one_of_two_users() -> None:
    rows = [asked("a", "warm", "dry"), asked("b", "dry", "warm"), asked("b", "cold", "rude")]
    ctx = Context({"reward_model": Scores("warm")})
    assert build("measure", {"name": "user_accuracy"})(rows, ctx) == [[1.0] * 2, [0.0] * 2, [0.5] * 2]
    with pytest.raises(DataError):
        build("measure", {"name": "user_accuracy"})([Group(Prompt("p", ()), ())], ctx)


def test_an_exchanged_context_is_that_of_the_next_other_user(monkeypatch: pytest.MonkeyPatch) -> None:
    import ratchet.components.pieces.measures.user_accuracy as measure

    used: list[int] = []

    def margins(
        groups: list[Group], ctx: Context, model: str, latent: int, contexts: list[int]
    ) -> list[float]:
        used[:] = contexts
        return [0.0] * len(groups)

    monkeypatch.setattr(measure, "margins", margins)
    measure.exchanged([asked(user, "x", "y") for user in "aabbc"], Context())
    assert used == [2, 2, 4, 4, 0]
    measure.user_accuracy([asked(user, "x", "y") for user in "aab"], Context())
    assert used == [0, 1, 2]


def test_the_camps_contradict_each_other_on_the_pairs_that_divide_them(tmp_path: Path) -> None:
    from ratchet.components.pieces.testbeds.two_camps import DRY, WARM

    kept = parse(generate("two_camps?size=600&seed=3&noise=0.0", tmp_path), columns={"split": "split"}).kept

    def kind(text: str) -> str:
        found = [
            name
            for name, texts in (("warm", WARM), ("dry", DRY))
            for t in texts
            if text.startswith(t.partition("{}")[0]) and text.endswith(t.partition("{}")[2])
        ]
        return found[0] if found else "rude"

    train = [r for r in kept if r.published == "train"]
    seen = Counter(
        (r.meta["camp"], kind(r.messages[-1]["content"]), kind(r.rejected[-1]["content"])) for r in train
    )
    divided = {(0, "warm", "dry"), (1, "dry", "warm")}
    assert set(seen) == divided | {(camp, k, "rude") for camp in (0, 1) for k in ("warm", "dry")}
    assert sum(seen[one] for one in divided) == pytest.approx(300, abs=50)
    users = {r.meta["user"]: r.meta["camp"] for r in train}
    assert len(users) == 50 and sum(users.values()) == 25
    test = [r for r in kept if r.published == "test"]
    prompts = {
        split: {r.messages[0]["content"] for r in kept if r.published == split} for split in ("train", "test")
    }
    assert len(prompts["test"]) == len(test) == 96 and not prompts["train"] & prompts["test"]
    assert all(len(r.meta["context"]) == 6 and r.meta["user"] not in users for r in test)


def test_the_share_of_wrong_labels(tmp_path: Path) -> None:
    from ratchet.components.data.tiny_language import RUDE

    clean, noisy = (
        parse(generate(f"two_camps?size=1000&seed=3&noise={noise}&divided=0.0", tmp_path)).kept
        for noise in (0.0, 0.2)
    )
    wrong = [sum(r.messages[-1]["content"] in RUDE for r in kept[:1000]) for kept in (clean, noisy)]
    assert wrong[0] == 0 and wrong[1] == pytest.approx(200, abs=40)
    assert not any(r.meta["chosen"] in RUDE for r in noisy if "chosen" in r.meta)
