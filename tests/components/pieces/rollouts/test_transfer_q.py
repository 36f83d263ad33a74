"""Transfer Q* on trees of two and three tokens, whose values are worked out by hand."""

from __future__ import annotations

import math
from types import SimpleNamespace

import pytest

from ratchet.components.piece import build
from ratchet.components.types import Context, Group, Prompt, Sample

END = 0
PROMPT = Prompt("p", ({"role": "user", "content": "go"},))


class Tree:
    """A model over tokens 0 (end), 1 and 2, given by P(token | tokens of the answer so far) as a table; what
    the table lacks ends. Roll-outs take the likeliest token at temperature 0, else tokens in the order
    `draws`.
    """

    contract = SimpleNamespace(eos=(END,))

    def __init__(self, table: dict[str, dict[int, float]], name: str = "tree", draws: str = "") -> None:
        self.table, self.weights, self.draws, self.requests = table, name, draws, []

    def encode_prompt(self, prompt):
        return [9]

    def decode(self, tokens):
        return "".join(map(str, (t for t in tokens if t)))

    def after(self, tokens):
        return self.table.get(self.decode(tokens[1:]), {END: 1.0})

    def generate(self, requests):
        self.requests += requests
        return [[self.one(request, i) for i in range(request.count)] for request in requests]

    def one(self, request, i):
        tokens, top = list(request.tokens), ()
        if request.top_logprobs:
            ranked = sorted(self.after(tokens).items(), key=lambda pair: -pair[1])[: request.top_logprobs]
            top = (tuple((token, math.log(p)) for token, p in ranked),)
            return Sample((ranked[0][0],), (math.log(ranked[0][1]),), "length", top)
        while len(tokens) < len(request.tokens) + request.max_tokens:
            p = self.after(tokens)
            tokens.append(max(p, key=p.__getitem__) if not request.temperature else int(self.draws[i]))
            if tokens[-1] == END:
                break
        return Sample(tuple(tokens[len(request.tokens) :]), (), "end")


BASE = Tree({"": {1: 0.6, 2: 0.4}, "1": {1: 0.3, 2: 0.7}, "2": {1: 0.4, 2: 0.6}}, "base")
ALIGNED = Tree({"": {1: 0.1, 2: 0.9}, "1": {1: 0.3, 2: 0.7}, "2": {1: 0.8, 2: 0.2}}, "aligned", "12121212")
VALUES = {"11": 0.0, "12": 0.2, "21": 1.0, "22": 0.1}


@pytest.fixture
def worth(monkeypatch: pytest.MonkeyPatch):
    """The reward `rewards.sentiment`, replaced by `VALUES` (0.5 for another text)."""
    import ratchet.components.pieces.rewards.sentiment as module

    def values(groups, ctx):
        return {"reward.sentiment": [[VALUES.get(t.text, 0.5) for t in g.trajectories] for g in groups]}

    monkeypatch.setattr(module, "sentiment", values)


def decoded(**options) -> Group:
    models = {"policy": BASE, "aligned": ALIGNED}
    rollout = build(
        "rollout", {"name": "transfer_q", "reward": {"name": "rewards.sentiment"}, "max_tokens": 3, **options}
    )
    (group,) = rollout([PROMPT], Context(models=models))
    return group


def test_candidates_are_valued_by_the_completions_of_the_aligned_model(worth) -> None:
    """Q(1) = r(12) = 0.2 and Q(2) = r(21) = 1, so pi(2) = 0.4 e^2 / (0.6 e^0.4 + 0.4 e^2) at alpha = 1/2;
    then pi(1 | 2) = 0.4 e^2 / (0.4 e^2 + 0.6 e^0.2), and the end is certain.
    """
    (answer,) = decoded(aligned="aligned", alpha=0.5, candidates=2).trajectories
    assert answer.text == "21" and answer.inputs["tokens"] == [9, 2, 1, END] and answer.stop == "end"
    first = 0.4 * math.exp(2) / (0.6 * math.exp(0.4) + 0.4 * math.exp(2))
    second = 0.4 * math.exp(2) / (0.4 * math.exp(2) + 0.6 * math.exp(0.2))
    assert answer.logprobs == pytest.approx([0.0, math.log(first), math.log(second), 0.0], abs=1e-12)
    assert answer.mask == [False, True, True, True] and answer.actor == "transfer_q"


def test_the_unaligned_models_completions_miss_the_optimum(worth) -> None:
    """Controlled decoding: the base model completes 2 to 22 (0.1) and 1 to 12 (0.2)."""
    (answer,) = decoded(aligned="policy", alpha=0.01, candidates=2).trajectories
    assert answer.text == "12"
    (answer,) = decoded(aligned="aligned", alpha=0.01, candidates=2).trajectories
    assert VALUES[answer.text] == max(VALUES.values())


def test_without_roll_outs_the_text_so_far_is_scored(worth) -> None:
    """Both first tokens are worth 1/2: the policy decides, then 12 over 11."""
    (answer,) = decoded(aligned="aligned", roll_outs=0, alpha=0.1, candidates=2).trajectories
    first = math.log(0.6)
    assert answer.text == "12" and (answer.logprobs or [])[1] == pytest.approx(first, abs=1e-12)


def test_a_value_is_the_mean_over_sampled_roll_outs(worth) -> None:
    """Completions of 1 and of 2 by 1 and by 2: Q = (0 + 0.2) / 2 and (1 + 0.1) / 2."""
    ALIGNED.requests.clear()
    (answer,) = decoded(
        aligned="aligned", roll_outs=2, roll_out_temperature=1.0, alpha=1.0, candidates=2, max_tokens=2
    ).trajectories
    one, two = 0.6 * math.exp(0.1), 0.4 * math.exp(0.55)
    assert answer.text[0] == ("1" if one > two else "2")
    assert (answer.logprobs or [])[1] == pytest.approx(math.log(max(one, two) / (one + two)), abs=1e-12)
    assert len({request.seed for request in ALIGNED.requests[:2]}) == 1, "the same random numbers for both"


def test_sampling_draws_from_the_reweighted_policy(worth) -> None:
    group = decoded(
        aligned="aligned", alpha=0.5, candidates=2, greedy=False, responses_per_prompt=400, max_tokens=1
    )
    share = sum(t.text == "2" for t in group.trajectories) / 400
    weights = 0.6 * math.exp(1.0), 0.4 * math.exp(1.0)  # nothing follows within one token: both are worth 1/2
    assert share == pytest.approx(weights[1] / sum(weights), abs=0.08)
    again = decoded(
        aligned="aligned", alpha=0.5, candidates=2, greedy=False, responses_per_prompt=400, max_tokens=1
    )
    assert [t.text for t in again.trajectories] == [t.text for t in group.trajectories]


def test_fewer_candidates_exclude_the_unlikely_tokens(worth) -> None:
    (answer,) = decoded(aligned="aligned", alpha=0.01, candidates=1).trajectories
    assert answer.text == "12", "the policy's own greedy answer"
