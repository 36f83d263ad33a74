"""Diversity, fluency, KL and answer rates against hand-computed numbers and exact sums."""

import math

import numpy as np
import pytest

from ratchet.components.errors import DataError
from ratchet.components.evaluation.answers import answer_rates
from ratchet.components.evaluation.bootstrap import counts, mean_interval
from ratchet.components.evaluation.diversity import cosine_spread, distinct_n, distinct_n_ratio, self_bleu
from ratchet.components.evaluation.fluency import perplexity, perplexity_ratio
from ratchet.components.evaluation.kl import sequence_kl
from ratchet.components.evaluation.results import proxy_over_gold


def test_distinct_by_hand():
    texts = ["the cat sat", "The cat ran"]
    assert distinct_n(texts, 1) == 4 / 6 and distinct_n(texts, 2) == 3 / 4
    assert distinct_n(["", "a"], 2) == 0


def test_self_bleu_by_hand_and_at_its_ends():
    assert self_bleu(["a b c d e"] * 3) == pytest.approx(1)
    assert self_bleu(["a b c d", "e f g h"]) == 0
    # "a b c x" against "a b c d": unigrams 3/4; smoothed bigrams (2+1)/(3+1), trigrams (1+1)/(2+1), 4-grams
    # (0+1)/(1+1)
    assert self_bleu(["a b c x", "a b c d"]) == pytest.approx((3 / 4 * 3 / 4 * 2 / 3 * 1 / 2) ** 0.25)
    # brevity: "a b" against "a b c d", exp(1 - 4/2); the other way the reference is shorter and nothing is
    # taken off
    short = (1.0 * 1.0 * 1.0 * 1.0) ** 0.25 * math.exp(-1)
    long = (2 / 4 * (1 + 1) / (3 + 1) * (0 + 1) / (2 + 1) * (0 + 1) / (1 + 1)) ** 0.25
    assert self_bleu(["a b", "a b c d"]) == pytest.approx((short + long) / 2)


def test_self_bleu_clips_by_the_other_answers_only():
    # "a a" has two a's; no other answer has more than one, so one of its two unigrams counts
    rows = ["a a", "a b", "a c"]
    first = (1 / 2 * 1 / 2) ** 0.5
    rest = (1 / 2 * 1 / 2) ** 0.5
    assert self_bleu(rows, n=2) == pytest.approx((first + 2 * rest) / 3)
    assert self_bleu([f"word{i} and more" for i in range(30)], limit=10, seed=1) == self_bleu(
        [f"word{i} and more" for i in range(30)], limit=10, seed=1
    )


def test_self_bleu_is_that_of_sacrebleu():
    """Mean over the answers, against the others, by sacrebleu 2.6.0, `BLEU(smooth_method="add-k",
    smooth_value=1, tokenize="none", force=True)`, and by nltk 3.10.4, `sentence_bleu` with
    `SmoothingFunction().method2`.
    """
    answers = [
        "the cat sat on the mat .",
        "the cat sat on a mat and looked at the dog .",
        "a dog sat on the mat .",
        "why did the cat sit there ?",
        "the the the cat",
        "it is a small red house with a cat on the mat .",
    ]
    assert self_bleu(answers) == pytest.approx(0.45654664053174, abs=1e-12)


def test_spread_is_the_mean_pairwise_cosine_distance():
    rows = np.random.default_rng(0).normal(size=(6, 4))
    unit = rows / np.linalg.norm(rows, axis=1, keepdims=True)
    slow = np.mean([1 - unit[i] @ unit[j] for i in range(6) for j in range(6) if i != j])
    assert cosine_spread(rows) == pytest.approx(slow)
    assert cosine_spread(np.ones((3, 2))) == pytest.approx(0) and cosine_spread(rows[:1]) == 0


def test_perplexity_of_a_uniform_model_is_its_vocabulary():
    rows = [[-math.log(50)] * 7, [-math.log(50)] * 2]
    assert perplexity(rows) == pytest.approx(50)
    assert perplexity([[-9.0, -1.0], [-3.0]], [[False, True], [True]]) == pytest.approx(math.exp(2))
    with pytest.raises(DataError, match="reply 1"):
        perplexity([[-1.0], [-1.0]], [[True], [False]])


def test_alignment_tax_is_weighted_by_tokens():
    ours, theirs = [[-2.0] * 3, [-1.0]], [[-1.0] * 3, [-1.0]]
    ratio = perplexity_ratio(ours, theirs)
    assert (
        ratio["mean"]
        == pytest.approx(math.exp(3 / 4))
        == pytest.approx(perplexity(ours) / perplexity(theirs))
    )
    assert ratio["low"] == pytest.approx(1) and ratio["high"] == pytest.approx(math.e)
    with pytest.raises(DataError, match="same tokens"):
        perplexity_ratio(ours, [[-1.0] * 2, [-1.0]])


def test_interval_of_few_replies_is_expanded():
    """Replies of one token: the logarithm of the ratio is a mean of 8 numbers."""
    costs = np.random.default_rng(0).normal(size=8)
    found = perplexity_ratio([[0.0]] * 8, [[cost] for cost in costs])
    mean = mean_interval(costs)
    assert (np.log(found["low"]), np.log(found["high"])) == pytest.approx(
        (mean["low"], mean["high"]), abs=0.06
    )
    plain = np.quantile(counts(8, 2000, 0) @ costs / 8, [0.025, 0.975])
    assert np.log(found["low"]) < plain[0] - 0.06 and np.log(found["high"]) > plain[1] + 0.06


def test_monte_carlo_kl_finds_the_exact_one():
    rng = np.random.default_rng(0)
    p, q = np.array([0.6, 0.3, 0.1]), np.array([0.2, 0.3, 0.5])
    exact = float((p * np.log(p / q)).sum())
    drawn = rng.choice(3, p=p, size=(4000, 5))
    ours, theirs = np.log(p)[drawn], np.log(q)[drawn]
    assert sequence_kl(ours, theirs) == pytest.approx(5 * exact, rel=0.05)


def test_kl_to_itself_is_zero_and_masked_tokens_do_not_count():
    row = [[-1.0, -2.0]]
    assert sequence_kl(row, row) == 0
    assert sequence_kl([[-1.0, -9.0]], [[-1.5, 0.0]], [[True, False]]) == 0.5
    with pytest.raises(DataError, match="answer 0"):
        sequence_kl([[1.0]], [[1.0, 2.0]])


def test_answer_rates_by_hand():
    texts = [
        "I like tea.",
        "",
        "As an AI language model I have no taste",
        "no " * 10,
        "I'm sorry, but I can't help with that.",
    ]
    rates = answer_rates(texts, ["end", "end", "length", "length", "error"])
    assert rates == {
        "ended": 0.4,
        "truncated": 0.4,
        "failed": 0.2,
        "empty": 0.2,
        "refusal_like": 0.4,
        "repetitive": 0.2,
        "personal_data": 0.0,
    }
    measured_rates = answer_rates(
        ["Write to jo@example.org", "Ask @jo_smith or call +44 20 7946 0018", "At 3 @ the park"], ["end"] * 3
    )
    assert measured_rates["personal_data"] == 2 / 3
    assert answer_rates(["I'm sorry you lost your dog"], ["end"])["refusal_like"] == 0
    with pytest.raises(DataError):
        answer_rates(["a"], [])


def test_proxy_over_gold_gap_by_hand():
    """Two reward models and the gold measure on two prompts, by hand; the base model's wins are another
    question.
    """
    won = {
        "win_rate": [0.5, 0.5],
        "win_rate_reward_model_1": [1.0, 0.5],
        "win_rate_reward_model_2": [1.0, 1.0],
        "win_rate_reward_model_1_base": [0.0, 0.0],
        "win_rate_safety": [0.0, 0.0],
    }
    gap = proxy_over_gold(won, ["reward_model_1", "reward_model_2"])
    assert gap is not None and gap["mean"] == ((1.0 - 0.5) + (0.75 - 0.5)) / 2 and gap["n"] == 2
    assert (
        proxy_over_gold({"win_rate": [1.0]}, ["reward_model"]) is None
        and proxy_over_gold({"win_rate_reward_model": [1.0]}, ["reward_model"]) is None
    )


def test_distinct_n_ratio_compares_as_much_text():
    once, often = ["a b c d"], ["a b c d"] * 10
    assert distinct_n(often, 2) == pytest.approx(0.1)  # more text looks less varied
    assert distinct_n_ratio(often, once, 2) == distinct_n_ratio(once, often, 2) == 1.0
    assert distinct_n_ratio(["a a a a"], ["a b c d e f"], 2) == pytest.approx(1 / 3)
    assert math.isnan(distinct_n_ratio([""], once, 2))
