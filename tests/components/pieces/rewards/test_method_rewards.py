"""Rewards of SPO, DPA, fine-grained RLHF and controlled sentiment."""

import math
import random

import pytest

from ratchet.components.errors import DataError
from ratchet.components.piece import build
from ratchet.components.pieces.advantages.gae import step_rewards
from ratchet.components.pieces.rewards.sentiment import score
from ratchet.components.pieces.rewards.win_rate import preference
from ratchet.components.types import Context, Group, Prompt, Trajectory
from tests.shipped import shipped_recipe


def group(columns, name="p", **meta):
    (number,) = {len(column) for column in columns.values()}
    return Group(Prompt(name, (), meta=meta), tuple(Trajectory(()) for _ in range(number)), columns)


def annotate(name, groups, **options):
    return build("annotate", {"name": f"rewards.{name}", **options})(groups, Context(seed=1, round=2))


def test_sentiment_is_the_sigmoid_of_distinct_words():
    assert score("So what?") == 0.5
    assert score("Yes, I like music a lot. I like it!") == pytest.approx(1 / (1 + math.exp(-3)))
    assert score("Why do you not like it?") == pytest.approx(1 / (1 + math.exp(1)))


def test_win_rate_compares_each_answer_with_the_others():
    found = annotate("win_rate", [group({"r": [3.0, 1.0, 2.0, 1.0]})], rewards=["r"])["reward.win_rate"][0]
    assert found == pytest.approx([1.0, 0.5 / 3, 2 / 3, 0.5 / 3])
    assert sum(found) == pytest.approx(2.0)


def test_win_rate_of_an_answer_without_an_opponent_is_skipped_not_zero():
    """Such as the one that is left of two, or all if no answer is by the actor `against`; an answer by that
    actor is no opponent of its own.
    """
    alone = annotate("win_rate", [group({"r": [3.0]})], rewards=["r"])
    assert alone["reward.win_rate"] == [[None]]
    assert alone["reward.win_rate.status"][0][0].startswith("skipped")
    own, other = Trajectory((), actor="policy"), Trajectory((), actor="mixture")
    mixed = Group(Prompt("p", ()), (own, other), {"r": [1.0, 2.0]})
    found = annotate("win_rate", [mixed], rewards=["r"], against="mixture")
    assert found["reward.win_rate"] == [[0.0, None]] and found["reward.win_rate.status"][0][0] == "ok"


def test_win_rate_of_three_judges_may_be_a_cycle():
    judges = {"x": [3.0, 2.0, 1.0], "y": [1.0, 3.0, 2.0], "z": [2.0, 1.0, 3.0]}
    assert annotate("win_rate", [group(judges)], rewards=list(judges))["reward.win_rate"][0] == [0.5] * 3
    a, b, c = zip(*judges.values(), strict=True)
    assert preference(a, b) == preference(b, c) == preference(c, a) == pytest.approx(2 / 3)
    assert preference(a, b) + preference(b, a) == pytest.approx(1.0)


def test_flipped_comparisons_are_a_share_and_keep_the_sum():
    groups = [group({"r": [1.0, 0.0]}, name=str(i)) for i in range(400)]
    found = annotate("win_rate", groups, rewards=["r"], flipped=0.25)["reward.win_rate"]
    assert all(sum(row) == 1.0 for row in found)
    assert sum(row[0] for row in found) / 400 == pytest.approx(0.75, abs=0.06)
    assert found == annotate("win_rate", groups, rewards=["r"], flipped=0.25)["reward.win_rate"]


def test_self_play_by_the_win_rate_finds_the_minimax_winner_of_an_intransitive_game():
    """Ten judges: A > B by 7, B > C by 7, C > A by 6, all > D. The minimax winner is (.4, .2, .4, 0); the
    best arm against uniform opponents, a Bradley-Terry fit's choice, is A, which C beats by 0.2.
    """
    orders = ["ABCD"] * 4 + ["BCAD"] * 3 + ["CABD"] * 3
    values = [{arm: float(-order.index(arm)) for arm in "ABCD"} for order in orders]
    rng, logits, total = random.Random(0), dict.fromkeys("ABCD", 0.0), dict.fromkeys("ABCD", 0.0)
    rounds, size = 600, 16
    for _ in range(rounds):
        top = max(logits.values())
        mass = {arm: math.exp(x - top) for arm, x in logits.items()}
        policy = {arm: x / sum(mass.values()) for arm, x in mass.items()}
        arms = rng.choices(list(policy), list(policy.values()), k=size)
        columns = {str(k): [judge[arm] for arm in arms] for k, judge in enumerate(values)}
        wins = annotate("win_rate", [group(columns)], rewards=list(columns))["reward.win_rate"][0]
        for arm in "ABCD":
            advantage = sum(
                (w - 0.5) * ((chosen == arm) - policy[arm]) for w, chosen in zip(wins, arms, strict=True)
            )
            logits[arm] += 0.5 * advantage / size
            total[arm] += policy[arm] / rounds

    def beaten(policy):
        """Largest win-minus-loss of an arm against the policy: its exploitability."""
        return max(
            sum(
                p * (2 * preference([v[b] for v in values], [v[a] for v in values]) - 1)
                for a, p in policy.items()
            )
            for b in "ABCD"
        )

    assert beaten({"A": 0.4, "B": 0.2, "C": 0.4}) == pytest.approx(0.0)
    assert beaten({"A": 1.0}) == pytest.approx(0.2)
    assert beaten(total) < 0.1


def test_direction_is_the_inner_product_with_the_prompts_vector():
    one = group({"r": [1.0, 0.0], "s": [0.0, 1.0]}, direction=[0.8, -0.6])
    found = annotate("direction", [one], rewards=["r", "s"])["reward.direction"][0]
    assert found == pytest.approx([0.8, -0.6])


NO = score("yes love no") - score("yes love")
"""Of the last word, which is less than 0."""


@pytest.mark.parametrize(
    ("segment", "expected"),
    [
        ("token", [0.0, 0.0, score("yes") - 0.5, score("yes love") - score("yes"), NO]),
        ("sentence", [0.0, 0.0, 0.0, score("yes love") - 0.5, NO]),
        ("answer", [0.0, 0.0, 0.0, 0.0, score("yes love no") - 0.5]),
    ],
)
def test_fine_grained_rewards_are_changes_of_the_score_and_sum_to_the_whole(segment, expected):
    words = {0: "hi", 1: "yes", 2: " love.", 3: " no"}

    class Engine:
        def decode(self, tokens):
            return "".join(words[t] for t in tokens)

    text = "yes love. no"
    row = Trajectory(
        ({"role": "assistant", "content": text},),
        {"tokens": [0, 0, 1, 2, 3]},
        [False, False, True, True, True],
    )
    made = build("annotate", {"name": "rewards.fine_grained", "segment": segment})(
        [Group(Prompt("p", ()), (row, row))], Context(models={"policy": Engine()})
    )["dense"][0]
    assert made == [pytest.approx(expected)] * 2
    assert sum(made[0]) == pytest.approx(score(text) - score(""))


@pytest.mark.parametrize("name", ["fine_grained", "text2grad", "fine_grained_at_end"])
def test_dense_rewards_and_those_of_their_control_have_one_sum(name):
    """The change of the score from the empty answer, 0.731 - 0.5. With a value head that begins at 0 and
    lambda 0.95, the constant 0.5 more in the control alone would be a reward for short answers.
    """

    class Engine:
        def decode(self, tokens):
            return "".join({1: "yes", 2: " no. ", 3: "love"}[t] for t in tokens)

    row = Trajectory(
        ({"role": "assistant", "content": "yes no. love"},),
        {"tokens": [9, 1, 2, 3]},
        [False, True, True, True],
    )
    made, context = Group(Prompt("p", ()), (row,)), Context(models={"policy": Engine()})
    *specs, gae = shipped_recipe(name)[0].online.annotate
    for spec in specs:
        if spec["name"].startswith("rewards."):
            written = build("annotate", spec)([made], context)
            made = made.extended({column: rows[0] for column, rows in written.items()})
    assert sum(step_rewards(made, gae["reward"])[0]) == pytest.approx(score("yes love no") - 0.5)


def test_fine_grained_rewards_of_texts_that_the_scorer_skips_or_fails():
    """Readability skips a text without letters, the empty one too: it counts as no change, from 0. A scorer
    of lengths sees the tokens of each text: 1/32 a token. A failed score is an error.
    """

    class Engine:
        def decode(self, tokens):
            return " ".join({1: "!", 2: "good"}[t] for t in tokens)

    row = Trajectory(
        ({"role": "assistant", "content": "! good !"},), {"tokens": [9, 1, 2, 1]}, [False, True, True, True]
    )

    def dense(scorer):
        spec = {"name": "rewards.fine_grained", "segment": "token", "scorer": scorer}
        context = Context(models={"policy": Engine()})
        return build("annotate", spec)([Group(Prompt("p", ()), (row, row))], context)["dense"]

    assert dense("rewards.simple.readability") == [[[0.0, 0.0, 1.0, 0.0]] * 2]  # grade("! good !") < 0
    assert dense("rewards.length") == [[pytest.approx([0.0, 1 / 32, 1 / 32, 1 / 32])] * 2]
    with pytest.raises(DataError, match=r"rewards\.exact_answer failed: ValueError"):
        dense("rewards.exact_answer")


def test_win_rate_against_an_actor_ignores_the_other_answers():
    own, other = Trajectory((), actor="policy"), Trajectory((), actor="mixture")
    mixed = Group(Prompt("p", ()), (own, own, other, other), {"r": [3.0, 1.0, 2.0, 1.0]})
    found = annotate("win_rate", [mixed], rewards=["r"], against="mixture")["reward.win_rate"][0]
    assert found == [1.0, 0.25, 1.0, 0.0]


def test_nash_md_converges_in_its_last_iterate_to_the_regularised_equilibrium_and_self_play_does_not():
    """Rock, paper, scissors; the reference prefers rock. Nash-MD's policy gradient with
    exact expectations: its fixed point is pi proportional to mu exp(P(y > pi') / tau), with the opponent pi'
    proportional to pi^(1 - b) mu^b (arXiv 2312.00886, section 7). Without both, the policy circles around
    the minimax winner, which is uniform.
    """
    judges = {"x": [3.0, 2.0, 1.0], "y": [1.0, 3.0, 2.0], "z": [2.0, 1.0, 3.0]}
    own, other = Trajectory((), actor="policy"), Trajectory((), actor="mixture")
    wins = []  # wins[b][a] = P(a > b)
    for b in range(3):
        columns = {name: [*scores, scores[b]] for name, scores in judges.items()}
        versus = Group(Prompt("p", ()), (own, own, own, other), columns)
        found = annotate("win_rate", [versus], rewards=list(columns), against="mixture")
        wins.append(found["reward.win_rate"][0][:3])
    assert [wins[1][0], wins[2][1], wins[0][2]] == pytest.approx([2 / 3] * 3) and wins[0][0] == 0.5

    mu = [0.8, 0.1, 0.1]

    def normal(mass):
        return [x / sum(mass) for x in mass]

    def opponent_of(policy, beta):
        return normal([p ** (1 - beta) * m**beta for p, m in zip(policy, mu, strict=True)])

    def learned(beta, tau, steps):
        logits, history = [math.log(m) for m in mu], []
        annotators = [
            build("annotate", {"name": "advantages.kl_in_reward.row", "reward": "r", "beta": tau}),
            build("annotate", {"name": "advantages.fixed", "reward": "regularised"}),
        ]
        for _ in range(steps):
            policy = normal([math.exp(x - max(logits)) for x in logits])
            against = opponent_of(policy, beta)
            rewards = [sum(q * wins[b][a] for b, q in enumerate(against)) for a in range(3)]
            answers = tuple(Trajectory((), {}, [True], [math.log(p)]) for p in policy)
            columns = {"r": rewards, "logprobs.reference": [[math.log(m)] for m in mu]}
            state = Group(Prompt("p", ()), answers, columns)
            for annotator in annotators:
                state = state.extended({k: v[0] for k, v in annotator([state], Context()).items()})
            gains = state.columns["advantages"]
            mean = sum(p * a for p, a in zip(policy, gains, strict=True))
            logits = [x + 2.0 * p * (a - mean) for x, p, a in zip(logits, policy, gains, strict=True)]
            history.append(policy)
        return history

    expected = mu
    for _ in range(4000):  # damped fixed-point iteration, independent of the pieces
        against = opponent_of(expected, 0.25)
        best = normal(
            [m * math.exp(sum(q * wins[b][a] for b, q in enumerate(against)) / 0.1) for a, m in enumerate(mu)]
        )
        expected = normal([p**0.98 * q**0.02 for p, q in zip(expected, best, strict=True)])
    assert learned(0.25, 0.1, 3000)[-1] == pytest.approx(expected, abs=1e-3)
    late = learned(0.0, 0.0, 3000)[1500:]
    assert min(max(abs(x - 1 / 3) for x in p) for p in late) > 0.1, "it does not reach the minimax winner"
