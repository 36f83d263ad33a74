"""Mixtures of models against the distribution computed by hand from the models' logits."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from ratchet.components.errors import ContractError
from ratchet.components.inference.mixed import MixedEngine
from ratchet.components.inference.torch import TorchEngine
from ratchet.components.models.load import load_policy, load_tokenizer, save_model
from ratchet.components.models.tiny import train_tiny
from ratchet.components.piece import build
from ratchet.components.types import Context, Group, Prompt, Request, Trajectory

NAMES = ("a", "b", "c")


@pytest.fixture(scope="module")
def engines(tmp_path_factory: pytest.TempPathFactory) -> dict[str, TorchEngine]:
    """Three models with one tokenizer: a trained one and two distorted ones."""
    path = tmp_path_factory.mktemp("a")
    train_tiny(path, steps=12, hidden=64, layers=2, batch=16)
    paths = {"a": path}
    for seed, name in enumerate(NAMES[1:]):
        model = load_policy(path)
        with torch.no_grad():
            torch.manual_seed(seed)
            for weight in model.parameters():
                weight.add_(0.1 * torch.randn_like(weight))
        paths[name] = tmp_path_factory.mktemp(name)
        save_model(model, load_tokenizer(path), paths[name])
    return {name: TorchEngine(p, rows=4) for name, p in paths.items()}


def prompts(engine: TorchEngine) -> list[list[int]]:
    return [
        engine.encode_prompt(Prompt("", ({"role": "user", "content": text},)))
        for text in ("What is 3 + 4?", "hi", "do you like dogs?")
    ]


def by_hand(engines: dict[str, TorchEngine], weights: dict[str, float], tokens: list[int]) -> torch.Tensor:
    """Log-probs (T, V) of the mixture after each token, by transformers' own attention."""
    total = torch.zeros(())
    for name, weight in weights.items():
        engine = engines[name]
        model = load_policy(Path(engine.model.config._name_or_path), attention="sdpa")
        model.load_state_dict(engine.model.state_dict())
        with torch.no_grad():
            total = total + weight * model(torch.tensor([tokens])).logits[0].log_softmax(-1)
    return total.log_softmax(-1)


@pytest.mark.parametrize(
    "weights", [{"a": 0.7, "b": 0.3}, {"a": 1.0, "b": 0.5, "c": -0.5}], ids=["nash_md", "emulated"]
)
def test_generate_and_score_equal_the_distribution_by_hand(engines, weights) -> None:
    mixture = MixedEngine(engines, weights)
    tokens = prompts(engines["a"])
    requests = [Request(t, count=3, max_tokens=6, seed=i, top_logprobs=4) for i, t in enumerate(tokens)]
    groups = []
    for start, samples in zip(tokens, mixture.generate(requests), strict=True):
        rows = []
        for sample in samples:
            whole = [*start, *sample.tokens]
            truth = by_hand(engines, weights, whole)[len(start) - 1 : -1]
            chosen = truth.gather(1, torch.tensor(sample.tokens)[:, None])[:, 0]
            assert sample.logprobs == pytest.approx(chosen.tolist(), abs=2e-4)
            for step, best in zip(truth, sample.top, strict=True):
                assert [p for _, p in best] == pytest.approx(step.topk(4).values.tolist(), abs=2e-4)
            mask = [False] * len(start) + [True] * len(sample.tokens)
            rows.append(Trajectory((), {"tokens": whole}, mask, [0.0] * len(start) + list(sample.logprobs)))
        groups.append(Group(Prompt("p", ()), tuple(rows)))
    for group, scored in zip(groups, mixture.score(groups, frozenset({"logprobs", "entropy"})), strict=True):
        for t, row, entropy in zip(group.trajectories, scored["logprobs"], scored["entropy"], strict=True):
            assert row == pytest.approx(t.logprobs, abs=2e-4)
            truth = by_hand(engines, weights, t.inputs["tokens"])
            expected = [
                float(-(p.exp() * p).sum()) if chosen else 0.0
                for p, chosen in zip(truth.roll(1, 0), t.mask, strict=True)
            ]
            assert entropy == pytest.approx(expected, abs=1e-3)


def test_greedy_token_is_the_mode_of_the_mixture(engines) -> None:
    weights = {"a": 0.5, "b": 0.5}
    (start, *_) = prompts(engines["a"])
    ((sample,),) = MixedEngine(engines, weights).generate([Request(start, max_tokens=5, temperature=0.0)])
    truth = by_hand(engines, weights, [*start, *sample.tokens])[len(start) - 1 : -1]
    assert list(sample.tokens) == truth.argmax(-1).tolist()


def test_weights_one_and_zero_are_the_single_engine(engines) -> None:
    requests = [Request(t, count=2, max_tokens=12, seed=i) for i, t in enumerate(prompts(engines["a"]))]
    assert MixedEngine(engines, {"a": 1.0, "b": 0.0}).generate(requests) == engines["a"].generate(requests)


def test_a_fine_tuning_that_changed_nothing_emulates_the_base_model(engines) -> None:
    """log p_large + log p_small - log p_small: the ratio cancels at every token."""
    same = {"large": engines["a"], "tuned": engines["b"], "small": engines["b"]}
    mixture = MixedEngine(same, {"large": 1.0, "tuned": 1.0, "small": -1.0})
    requests = [Request(t, count=2, max_tokens=8, seed=i) for i, t in enumerate(prompts(engines["a"]))]
    for mixed, alone in zip(mixture.generate(requests), engines["a"].generate(requests), strict=True):
        for one, other in zip(mixed, alone, strict=True):
            assert one.tokens == other.tokens and one.logprobs == pytest.approx(other.logprobs, abs=1e-4)


def test_nucleus_restricts_the_mixture_to_the_likeliest_tokens_of_one_model(engines) -> None:
    mixture = MixedEngine(engines, {"b": 1.0}, nucleus=("a", 0.5))
    (start, *_) = prompts(engines["a"])
    samples = mixture.generate([Request(start, count=40, max_tokens=1, seed=3)])[0]
    a, b = (by_hand(engines, {name: 1.0}, start)[-1] for name in "ab")
    ranked, where = a.exp().sort(descending=True)
    inside = where[: int((ranked.cumsum(0) - ranked < 0.5).sum())].tolist()
    assert {s.tokens[0] for s in samples} <= set(inside) and len(inside) < len(a) / 2
    free = torch.full_like(b, -torch.inf)
    free[inside] = b[inside]
    for sample in samples:
        assert sample.logprobs[0] == pytest.approx(float(free.log_softmax(0)[sample.tokens[0]]), abs=2e-4)


def test_models_that_do_not_generate_or_share_a_tokenizer_are_refused(engines, tmp_path: Path) -> None:
    with pytest.raises(ContractError, match="engine: torch"):
        MixedEngine({"a": engines["a"], "b": object()}, {"a": 0.5, "b": 0.5})
    with pytest.raises(ContractError, match="weight other than 0"):
        MixedEngine(engines, {"a": 0.0})
    train_tiny(tmp_path, steps=1, hidden=32, layers=1, batch=4, seed=9)
    with pytest.raises(ContractError, match="share tokenizer"):
        MixedEngine({"a": engines["a"], "b": TorchEngine(tmp_path)}, {"a": 0.5, "b": 0.5})


def test_rollout_mixed_is_the_policys_sample_for_weight_one(engines) -> None:
    asked = [Prompt("p", ({"role": "user", "content": "hi"},))]
    ctx = Context(models={"policy": engines["a"], "reference": engines["b"]}, seed=4)
    options = {"responses_per_prompt": 3, "max_tokens": 6}
    (own,) = build("rollout", {"name": "sample", **options})(asked, ctx)
    (same,) = build("rollout", {"name": "mixed", "weights": {"policy": 1.0}, **options})(asked, ctx)
    (other,) = build("rollout", {"name": "mixed", "weights": {"policy": 0.5, "reference": 0.5}, **options})(
        asked, ctx
    )
    assert [t.inputs for t in own.trajectories] == [t.inputs for t in same.trajectories]
    assert {t.actor for t in other.trajectories} == {"mixture"}
    assert other.trajectories[0].weights not in (engines["a"].weights, engines["b"].weights)


def test_rollout_mixed_gives_the_policys_own_answers_before_its_opponents(engines) -> None:
    prompt = Prompt("p", ({"role": "user", "content": "hi"},))
    ctx = Context(models={"policy": engines["a"], "reference": engines["b"]}, seed=4)
    options = {"responses_per_prompt": 4, "max_tokens": 6}
    weights = {"policy": 0.5, "reference": 0.5}
    (group,) = build("rollout", {"name": "mixed", "weights": weights, "own": 0.5, **options})([prompt], ctx)
    (own,) = build("rollout", {"name": "sample", **options, "responses_per_prompt": 2})([prompt], ctx)
    assert [t.actor for t in group.trajectories] == ["policy", "policy", "mixture", "mixture"]
    assert group.trajectories[:2] == own.trajectories
    mixture = MixedEngine(ctx.models, weights)
    scored = mixture.score([group], frozenset({"logprobs"}))[0]["logprobs"]
    for t, row in zip(group.trajectories[2:], scored[2:], strict=True):
        assert t.weights == mixture.weights and row == pytest.approx(list(t.logprobs or ()), abs=2e-4)
    (game,) = build("rollout", {"name": "mixed", "weights": {"policy": 1.0}, "own": 0.5, **options})(
        [prompt], ctx
    )
    texts = [t.text for t in game.trajectories]
    assert texts[:2] != texts[2:], "the opponent's random numbers must be its own"


def test_rollout_mixed_samples_within_the_nucleus_of_the_first_model(engines) -> None:
    prompt = Prompt("p", ({"role": "user", "content": "hi"},))
    ctx = Context(models={"policy": engines["a"], "reference": engines["b"]}, seed=4)
    (group,) = build(
        "rollout",
        {
            "name": "mixed",
            "weights": {"reference": 1.0, "policy": 0.0},
            "nucleus": 1e-6,
            "responses_per_prompt": 3,
            "max_tokens": 5,
        },
    )([prompt], ctx)
    ((greedy,),) = engines["b"].generate(
        [Request(engines["b"].encode_prompt(prompt), max_tokens=5, temperature=0.0)]
    )
    start = len(engines["b"].encode_prompt(prompt))
    assert {tuple(t.inputs["tokens"][start:]) for t in group.trajectories} == {greedy.tokens}
