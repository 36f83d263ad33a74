"""The torch inference engine against transformers.generate and the learner, on a small random model."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from scipy.stats import chisquare

from ratchet.components.errors import ContractError
from ratchet.components.inference import decoding as inference
from ratchet.components.inference.sampling import sample, unrounded
from ratchet.components.inference.torch import TorchEngine
from ratchet.components.models import products
from ratchet.components.models.cached_attention import PrefillPlan
from ratchet.components.models.load import load_policy, load_tokenizer, new_reward, save_model
from ratchet.components.models.tiny import train_tiny
from ratchet.components.training.packing import pack
from ratchet.components.training.torch import TorchLearner
from ratchet.components.types import Group, Prompt, Request, Trajectory
from tests.sampled import sampled_groups


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("tiny")
    train_tiny(path, steps=12, hidden=64, layers=2, batch=16)
    return path


def prompts(engine: TorchEngine) -> list[list[int]]:
    texts = ["What is 3 + 4?", "hi", "tell me about the sea", "9 + 9 =", "do you like dogs?"]
    return [engine.encode_prompt(Prompt("", ({"role": "user", "content": text},))) for text in texts]


def test_greedy_tokens_equal_transformers(tiny: Path) -> None:
    engine, plain = TorchEngine(tiny, rows=3), load_policy(tiny, attention="sdpa")
    tokens = prompts(engine)
    answers = engine.generate([Request(t, count=2, max_tokens=20, temperature=0.0) for t in tokens])
    for ids, (first, second) in zip(tokens, answers, strict=True):
        theirs = plain.generate(torch.tensor([ids]), max_new_tokens=20, do_sample=False)[
            0, len(ids) :
        ].tolist()
        assert list(first.tokens) == theirs == list(second.tokens)
        assert first.stop == ("end" if theirs[-1] == engine.tokenizer.eos_token_id else "length")


@pytest.fixture
def mixed(bfloat16_products: None) -> Iterator[None]:
    with products.product_precision("bfloat16"):
        yield


@pytest.mark.parametrize("precision", ["float32", "bfloat16"])
def test_sampled_logprobs_equal_the_training_forward(
    tiny: Path, precision: str, request: pytest.FixtureRequest
) -> None:
    tolerance = 1e-4 if precision == "float32" else 2e-2
    if precision == "bfloat16":
        request.getfixturevalue("bfloat16_products")
    with products.product_precision(precision):
        engine, learner = TorchEngine(tiny, rows=8), TorchLearner(tiny)
        tokens = prompts(engine)
        requests = [
            Request(ids, count=4, max_tokens=16, temperature=0.7, seed=i) for i, ids in enumerate(tokens)
        ]
        groups = sampled_groups(tokens, engine.generate(requests))
        batch = pack(groups, unit="group", tokens=10_000)[0]
        with torch.no_grad():
            ours = learner(batch, frozenset({"logprobs"})).logprobs
        scored = engine.score(groups, frozenset({"logprobs", "entropy"}))
    torch.testing.assert_close(ours, batch["logprobs.sampled"], atol=tolerance, rtol=0)
    assert [len(x) for x in scored[0]["logprobs"]] == [len(t.mask) for t in groups[0].trajectories]
    assert scored[1]["logprobs"][2] == pytest.approx(groups[1].trajectories[2].logprobs, abs=tolerance)


def test_rounded_logits_sample_the_same_distribution(tiny: Path, mixed: None) -> None:
    """4,096 first tokens of one prompt against the probabilities of the training forward (chi-squared)."""
    engine, learner = TorchEngine(tiny, rows=4096), TorchLearner(tiny)
    prompt = prompts(engine)[0]
    (samples,) = engine.generate([Request(prompt, count=4096, max_tokens=1, temperature=1.0, seed=3)])
    drawn = Counter(sample.tokens[0] for sample in samples)
    common = [token for token, times in drawn.most_common() if times >= 40]
    rows = [Trajectory((), {"tokens": [*prompt, t]}, [False] * len(prompt) + [True]) for t in common]
    batch = pack([Group(Prompt("p", ()), tuple(rows))], unit="group", tokens=10_000)[0]
    with torch.no_grad():
        expected = 4096 * learner(batch, frozenset({"logprobs"})).logprobs[:, -1].exp()
    observed = torch.tensor([float(drawn[token]) for token in common])
    rest = torch.tensor([4096 - float(observed.sum())]), torch.tensor([4096 - float(expected.sum())])
    f_obs, f_exp = torch.cat([observed, rest[0]]), torch.cat([expected, rest[1]])
    assert len(common) >= 3 and chisquare(f_obs.numpy(), f_exp.numpy(), sum_check=False).pvalue > 1e-3


def test_greedy_answers_read_unrounded_logits(tiny: Path, mixed: None, monkeypatch) -> None:
    dtypes = []
    monkeypatch.setattr(
        inference, "sample", lambda logits, *rest: dtypes.append(logits.dtype) or sample(logits, *rest)
    )
    engine = TorchEngine(tiny, rows=3)
    engine.generate([Request(prompts(engine)[0], max_tokens=2, temperature=0.0)])
    assert set(dtypes) == {torch.float32}
    engine.generate([Request(prompts(engine)[0], max_tokens=2, temperature=0.7)])
    assert torch.bfloat16 in dtypes


def test_answers_are_independent_of_the_batch(tiny: Path) -> None:
    engine = TorchEngine(tiny, rows=5)
    requests = [Request(t, count=1 + i % 3, max_tokens=8 + i, seed=i) for i, t in enumerate(prompts(engine))]
    together = engine.generate(requests)
    alone = [engine.generate([r])[0] for r in requests]
    assert [[s.tokens for s in group] for group in together] == [[s.tokens for s in group] for group in alone]
    assert together == engine.generate(requests)
    assert [len(group) for group in together] == [r.count for r in requests]


def test_common_prefixes_are_prefilled_once_with_equal_answers(
    tiny: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine = TorchEngine(tiny, rows=2)
    begins = [
        engine.encode_prompt(Prompt("", ({"role": "user", "content": text},)))
        for text in ("tell me about the sea and the sky", "what do you like to do?")
    ]
    prompts = [begin + end for end in ([], [9, 8, 7], [9, 8, 7, 6], [5]) for begin in begins]
    requests = [
        Request(tokens, count=1 + i % 2, max_tokens=6, seed=i, temperature=0.7)
        for i, tokens in enumerate(prompts)
    ]
    alone = [engine.generate([r])[0] for r in requests]
    computed: list[int] = []
    forward = inference.hidden_states
    monkeypatch.setattr(
        inference,
        "hidden_states",
        lambda model, tokens, positions, plan, **more: (
            computed.append(tokens.shape[1] if isinstance(plan, PrefillPlan) else 0),
            forward(model, tokens, positions, plan, **more),
        )[1],
    )
    together = engine.generate(requests)
    assert [[s.tokens for s in group] for group in together] == [[s.tokens for s in group] for group in alone]
    for ours, theirs in zip(
        [s for group in together for s in group], [s for group in alone for s in group], strict=True
    ):
        assert ours.logprobs == pytest.approx(theirs.logprobs, abs=1e-4)
    assert sum(computed) <= sum(map(len, begins)) + 2 * (3 + 4 + 1) + len(prompts)


@pytest.mark.parametrize(("temperature", "max_tokens"), [(0.0, 1), (0.0, 2), (0.7, 20)])
def test_stream_yields_the_tokens_of_generate_one_by_one(
    tiny: Path, temperature: float, max_tokens: int
) -> None:
    engine = TorchEngine(tiny)
    for tokens in prompts(engine):
        request = Request(tokens, max_tokens=max_tokens, temperature=temperature, seed=3)
        stream = engine.stream(request)
        first = next(stream)
        assert (first, *stream) == engine.generate([request])[0][0].tokens


def test_load_replaces_the_engines_weights(tiny: Path, tmp_path: Path) -> None:
    engine, learner = TorchEngine(tiny), TorchLearner(tiny)
    before = engine.weights
    with torch.no_grad():
        learner.model.get_input_embeddings().weight.mul_(0.5)
    learner.save(tmp_path)
    engine.load(tmp_path)
    assert engine.weights != before
    group = Group(
        Prompt("p", ({"role": "user", "content": "hi"},)),
        (Trajectory(({"role": "assistant", "content": "Hello!"},)),),
    )
    with torch.no_grad():
        ours = (
            learner(pack([engine.encode(group)], unit="row", tokens=99)[0], frozenset({"logprobs"}))
            .logprobs[0]
            .tolist()
        )
    assert engine.score([group], frozenset({"logprobs"}))[0]["logprobs"][0] == pytest.approx(ours, abs=1e-6)


def test_reward_scores_equal_transformers(tiny: Path, tmp_path: Path) -> None:
    from transformers import AutoModelForSequenceClassification

    save_model(new_reward(tiny, layers=1, seed=3), load_tokenizer(tiny), tmp_path)
    engine = TorchEngine(tmp_path, kind="reward")
    plain = AutoModelForSequenceClassification.from_pretrained(tmp_path)
    assert plain.config.num_hidden_layers == 1
    group = engine.encode(
        Group(
            Prompt("p", ({"role": "user", "content": "hi"},)),
            tuple(
                Trajectory(({"role": "assistant", "content": text},))
                for text in ("Hello!", "Hello! How are you?")
            ),
        )
    )
    scores = engine.score([group], frozenset({"scores"}))[0]["scores"]
    for trajectory, score in zip(group.trajectories, scores, strict=True):
        theirs = plain(torch.tensor([trajectory.inputs["tokens"]])).logits.detach()
        assert float(theirs) == pytest.approx(score, abs=1e-5)


def test_sampling_uses_inverse_transform() -> None:
    torch.manual_seed(0)
    logits = torch.randn(1, 5000)  # more than one chunk of blocks, and a last block that is not full
    n = 4000
    u = (torch.arange(n, dtype=torch.float64) + 0.5) / n
    one = torch.ones(n)
    tokens, logprobs = sample(logits.repeat(n, 1).t().contiguous(), u, one, torch.zeros(n), one)
    counts = torch.bincount(tokens, minlength=5000) / n
    assert float((counts - logits.softmax(-1)[0]).abs().max()) < 1.1 / n
    torch.testing.assert_close(logprobs, logits.log_softmax(-1)[0][tokens], atol=1e-5, rtol=0)


def test_sampled_token_depends_only_on_the_rows_settings() -> None:
    torch.manual_seed(0)
    logits, u = torch.randn(3000, 5) * 3, torch.rand(5, dtype=torch.float64)
    settings = (
        torch.tensor([1.0, 0.0, 0.7, 0.7, 1.3]),
        torch.tensor([0, 0, 0, 5, 0]),
        torch.tensor([1.0, 1.0, 1.0, 1.0, 0.4]),
    )
    together, logprobs = sample(logits.clone(), u, *settings)
    for row in range(5):
        token, logprob = sample(
            logits[:, row : row + 1].clone(), u[row : row + 1], *(s[row : row + 1] for s in settings)
        )
        assert int(token) == int(together[row])
        torch.testing.assert_close(logprob[0], logprobs[row], atol=1e-5, rtol=0)
        torch.testing.assert_close(logprob[0], logits[:, row].log_softmax(0)[token[0]], atol=1e-5, rtol=0)
    assert int(together[1]) == int(logits[:, 1].argmax())


@pytest.mark.parametrize(("top_k", "top_p"), [(3, 1.0), (0, 0.5), (4, 0.7)])
def test_top_k_and_top_p_equal_transformers(top_k: int, top_p: float) -> None:
    from transformers import TopKLogitsWarper, TopPLogitsWarper

    torch.manual_seed(0)
    logits = torch.randn(1, 50) * 2
    kept = logits / 0.8
    if top_k:
        kept = TopKLogitsWarper(top_k)(None, kept)
    if top_p < 1:
        kept = TopPLogitsWarper(top_p)(None, kept)
    n = 2000
    u = (torch.arange(n, dtype=torch.float64) + 0.5) / n
    tokens, _ = sample(
        logits.repeat(n, 1).t().contiguous(),
        u,
        torch.full((n,), 0.8),
        torch.full((n,), top_k),
        torch.full((n,), top_p),
    )
    counts = torch.bincount(tokens, minlength=50) / n
    assert float((counts - kept.softmax(-1)[0]).abs().max()) < 2 / n


@pytest.mark.parametrize("scale", [1.0, 25.0])
def test_logprobs_of_rounded_logits_are_corrected(scale: float) -> None:
    """Logits of up to 80 have a bfloat16 rounding error of up to 0.25; one token has nearly all the mass."""
    torch.manual_seed(0)
    logits = torch.randn(512, 64) * scale
    rounded, exact = logits.bfloat16(), logits.log_softmax(0)
    tokens, logprobs = sample(
        rounded, torch.rand(64, dtype=torch.float64), torch.ones(64), torch.zeros(64), torch.ones(64)
    )
    row = torch.arange(64)
    found = unrounded(logprobs, rounded[tokens, row], logits[tokens, row])
    only = rounded.float().clone()
    only[tokens, row] = logits[tokens, row]
    torch.testing.assert_close(found, only.log_softmax(0)[tokens, row], atol=1e-5, rtol=0)
    assert (found - exact[tokens, row]).abs().mean() < 0.6 * (logprobs - exact[tokens, row]).abs().mean()


def test_answer_ends_with_the_token_that_completes_a_stop_string(tiny: Path) -> None:
    engine = TorchEngine(tiny, rows=4)
    requests = [Request(t, count=3, max_tokens=24, seed=i) for i, t in enumerate(prompts(engine))]
    free = [s for group in engine.generate(requests) for s in group]
    stop = "o"
    cut = [
        s for group in engine.generate([replace(r, stop_strings=(stop,)) for r in requests]) for s in group
    ]
    assert any(stop in engine.decode(s.tokens) for s in free)
    for whole, short in zip(free, cut, strict=True):
        assert whole.tokens[: len(short.tokens)] == short.tokens
        if stop in engine.decode(whole.tokens):
            assert short.stop == "end" and stop in engine.decode(short.tokens)
            assert stop not in engine.decode(short.tokens[:-1])
        else:
            assert short == whole
    with pytest.raises(ContractError, match="stop string"):
        engine.generate([replace(requests[0], stop_strings=("",))])


def test_top_logprobs_are_the_likeliest_next_tokens_of_every_step(tiny: Path) -> None:
    engine, plain = TorchEngine(tiny, rows=4), load_policy(tiny, attention="sdpa")
    start = prompts(engine)[0]
    ((sample,), (bare,)) = engine.generate(
        [Request(start, max_tokens=5, seed=1, top_logprobs=3), Request(start, max_tokens=5, seed=1)]
    )
    assert sample.tokens == bare.tokens and bare.top == () and len(sample.top) == len(sample.tokens)
    with torch.no_grad():
        truth = plain(torch.tensor([[*start, *sample.tokens]])).logits[0].log_softmax(-1)
    for step, best in zip(truth[len(start) - 1 : -1], sample.top, strict=True):
        values, tokens = step.topk(3)
        assert [t for t, _ in best] == tokens.tolist()
        assert [p for _, p in best] == pytest.approx(values.tolist(), abs=1e-4)
