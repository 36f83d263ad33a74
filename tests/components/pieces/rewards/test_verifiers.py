"""Verifiers: gold answers get 1, corrupted ones 0; a broken reward is failed, not 0."""

import dataclasses

import pytest

from ratchet.components.piece import build, each
from ratchet.components.types import Context, Group, Message, Prompt, Trajectory


def reply(text, **kw):
    return Trajectory((Message(role="assistant", content=text),), **kw)


def score(name, prompt, *texts, **options):
    written = build("annotate", {"name": name, **options})(
        [Group(prompt, tuple(map(reply, texts)))], Context()
    )
    (column,) = [n for n in written if not n.endswith(".status")]
    return written[column][0], written[f"{column}.status"][0]


@pytest.mark.parametrize(
    ("answer", "good", "bad"),
    [
        ("-4", "4 - 1 - 7 = -4", "4 - 1 - 7 = 4"),
        ("1000", "That makes 1,000.", "That makes 1,001."),
        ("1/2", r"So \boxed{\frac{1}{2}} no: \boxed{0.5}", r"\boxed{0.25}"),
        ("4", "The range is 3-4", "The range is 4-3"),
        ("2", "Options are 1,2", "Options are 2,12"),
        ("-4", "x=-4", "x=4"),
        ("6", "On 2024-05-06", "On 2024-06-05"),
        ("1234567.5", "It costs $1,234,567.50.", "It costs $1,234,567.05."),
        ("Paris", r"It is \boxed{paris}", r"It is \boxed{Rome}"),
        ("x^{2}", r"\boxed{x^{2}}", r"\boxed{x^{3}}"),
        ("-5", "It is −5.", "It is 5."),
        ("−5", "It is -5.", "It is 5."),
        ("5", "It is 5.", "It is −5."),
        ("1−x", r"\boxed{1-x}", r"\boxed{1+x}"),
        ("1000", r"\boxed{1e3}", r"\boxed{1e4}"),
        ("12", r"\boxed{12}", r"\boxed{1,2}"),
        ("1,2", r"\boxed{1,2}", r"\boxed{12}"),
        ("1200", r"\boxed{1,200.0}", r"\boxed{12,00}"),
        ("3 km", r"It is \boxed{3 km}", r"It is \boxed{4 km}"),
    ],
)
def test_exact_answer(answer, good, bad):
    assert score("rewards.exact_answer", Prompt("p", (), answer=answer), good, bad, "") == (
        [1.0, 0.0, 0.0],
        ["ok"] * 3,
    )


def test_exact_answer_does_not_expand_a_huge_exponent():
    """10^(10^8) as a fraction takes 40 MB and minutes."""
    texts = (r"\boxed{1e100000000}", r"\boxed{1E-1_0000_0000}")
    assert score("rewards.exact_answer", Prompt("p", (), answer="5"), *texts)[0] == [0.0, 0.0]


def test_cosine_has_the_sign_of_its_verifier_and_fails_with_it():
    """At 1 of 4 tokens: 0.5 + 0.5 (1 + cos(pi / 4)) / 2 = 0.926777."""
    group = Group(Prompt("p", (), answer="3/4"), tuple(reply(t, mask=[True]) for t in ("75/100", "0.7")))
    for verifier in ("rewards.exact_answer", "rewards.math_verify"):
        cosine = build("annotate", {"name": "rewards.length.cosine", "maximum": 4, "verifier": verifier})
        assert cosine([group], Context())["reward.cosine"] == [pytest.approx([0.926777, -0.926777])]
        failed = cosine([dataclasses.replace(group, prompt=Prompt("p", ()))], Context())
        assert failed["reward.cosine"] == [[None, None]]
        assert failed["reward.cosine.status"][0][0].startswith("failed: ValueError")


def test_reasoning_gym_on_its_own_answers():
    import reasoning_gym

    for task in ("chain_sum", "leg_counting"):
        for entry in reasoning_gym.create_dataset(task, size=5, seed=3):
            prompt = Prompt(
                "p",
                ({"role": "user", "content": entry["question"]},),
                entry["answer"],
                meta={"metadata": entry["metadata"]},
            )
            wrong = str(int(entry["answer"]) + 1)
            values, status = score(
                "rewards.reasoning_gym", prompt, f"It is {entry['answer']}", f"It is {wrong}"
            )
            assert status == ["ok", "ok"]
            assert values[0] == 1.0
            assert values[1] < 0.1


@pytest.mark.parametrize(
    "task",
    [
        "chain_sum",
        "simple_equations",
        "word_sorting",
        "letter_counting",
        "binary_matrix",
        "mini_sudoku",
    ],
)
def test_reasoning_gym_gives_the_answers_of_every_kind_of_task_full_reward(task):
    """Words and grids are not reduced to their last number; a boxed answer is taken out of its text."""
    import reasoning_gym

    for entry in reasoning_gym.create_dataset(task, size=3, seed=3):
        prompt = Prompt(
            "p",
            ({"role": "user", "content": entry["question"]},),
            entry["answer"],
            meta={"metadata": entry["metadata"]},
        )
        boxed = f"In 3 steps: \\boxed{{{entry['answer']}}} of 7"
        values, status = score("rewards.reasoning_gym", prompt, entry["answer"], boxed)
        assert (values, status) == ([1.0, 1.0], ["ok", "ok"])


def test_format():
    values, _ = score("rewards.format", Prompt("p", ()), " <think>a\nb</think> <answer>4</answer>\n", "4")
    assert values == [1.0, 0.0]


def test_failed_reward_is_not_zero():
    values, status = score("rewards.exact_answer", Prompt("p", ()), "4")
    assert values == [None]
    assert status[0].startswith("failed: ValueError")

    @each
    def broken(prompt, trajectory):
        raise RuntimeError("no network")

    assert broken([Group(Prompt("p", ()), (reply("x"),))], Context()) == {
        "reward.broken": [[None]],
        "reward.broken.status": [["failed: RuntimeError: no network"]],
    }


class Scorer:
    """Scores the length of the text it rendered itself; refuses tokens it did not make."""

    weights = "j"

    def __init__(self, factor=1.0):
        self.factor = factor

    def encode(self, group):
        assert all(not t.inputs for t in group.trajectories), "the policy's tokens reached the reward model"
        return group.replace(
            [dataclasses.replace(t, inputs={"tokens": list(range(len(t.text)))}) for t in group.trajectories]
        )

    def score(self, groups, outputs):
        assert outputs == {"scores"}
        return [{"scores": [self.factor * len(t.inputs["tokens"]) for t in g.trajectories]} for g in groups]


def test_reward_model_uses_its_own_template_and_skips_empty_answers():
    group = Group(Prompt("p", ()), (reply("abc", inputs={"tokens": [9] * 50}), reply("  "), reply("a")))
    written = build("annotate", {"name": "rewards.reward_model"})(
        [group], Context(models={"reward_model": Scorer()})
    )
    assert written["reward.reward_model"] == [[3.0, None, 1.0]]
    assert written["reward.reward_model.status"][0] == ["ok", "skipped: the answer is empty", "ok"]
    bad = build("annotate", {"name": "rewards.reward_model"})(
        [group], Context(models={"reward_model": Scorer(float("nan"))})
    )
    assert bad["reward.reward_model.status"][0][0].startswith("failed")


def test_ensemble():
    group = Group(Prompt("p", ()), (reply("a"), reply("abc")))
    models = {"a": Scorer(1.0), "b": Scorer(3.0)}
    context = Context(models=models)

    def ensemble(**options):
        return build("annotate", {"name": "rewards.ensemble", "models": ["a", "b"], **options})(
            [group], context
        )

    assert ensemble(standardise=False)["reward.ensemble"] == [[2.0, 6.0]]
    assert ensemble(standardise=False, how="min")["reward.ensemble"] == [[1.0, 3.0]]
    assert ensemble(standardise=False, how="uwo")["reward.ensemble"] == [[1.5, 1.5]]  # 2 - 1/2, 6 - 9/2
    assert ensemble(how="uwo")["reward.ensemble"] == [[-1.0, 1.0]]  # after scaling the members agree
    assert ensemble()["scores.b"] == [[3.0, 9.0]]


class Table:
    """A reward model that scores texts by a table."""

    weights = "table"

    def __init__(self, **scores):
        self.scores = scores

    def encode(self, group):
        return group

    def score(self, groups, outputs):
        return [{"scores": [self.scores[t.text] for t in g.trajectories]} for g in groups]


def test_members_are_standardised_over_all_answers_before_they_are_compared():
    """Scores -3 -1 1 3 (mean 0, deviation sqrt 5) and 10 10 10 30 (mean 15, deviation sqrt 75): standardised
    -1.342 -0.447 0.447 1.342 and -0.577 -0.577 -0.577 1.732. The least of the raw ones is always the first
    member's; of the standardised ones that of the second and the third answer is the second member's.
    """
    groups = [Group(Prompt(p, ()), (reply(a), reply(b))) for p, a, b in (("p", "a", "b"), ("q", "c", "d"))]
    models = {"one": Table(a=-3.0, b=-1.0, c=1.0, d=3.0), "two": Table(a=10.0, b=10.0, c=10.0, d=30.0)}

    def ensemble(**options):
        spec = {"name": "rewards.ensemble", "models": ["one", "two"], **options}
        rows = build("annotate", spec)(groups, Context(models=models))["reward.ensemble"]
        return [value for row in rows for value in row]

    worst = [-3 / 5**0.5, -5 / 75**0.5, -5 / 75**0.5, 3 / 5**0.5]
    best = [-5 / 75**0.5, -1 / 5**0.5, 1 / 5**0.5, 15 / 75**0.5]
    assert ensemble(how="min") == pytest.approx(worst)
    assert ensemble(how="min", standardise=False) == [-3.0, -1.0, 1.0, 3.0]
    mean = [(low + high) / 2 for low, high in zip(worst, best, strict=True)]
    assert ensemble() == pytest.approx(mean) and sum(ensemble()) == pytest.approx(0.0)
    variance = [((high - low) / 2) ** 2 for low, high in zip(worst, best, strict=True)]
    uncertain = [m - 0.7 * v for m, v in zip(mean, variance, strict=True)]
    assert ensemble(how="uwo", uncertainty=0.7) == pytest.approx(uncertain)


def test_combinations():
    group = Group(
        Prompt("p", ()),
        (reply("x", mask=[False, True, True]),),
        {"reward.reward_model": [2.0], "reward.format": [1.0]},
    )
    both = build(
        "annotate",
        {
            "name": "rewards.combine",
            "rewards": ["reward.reward_model", "reward.format"],
            "weights": [1.0, 0.5],
        },
    )
    assert both([group], Context()) == {"reward.combined": [[2.5]]}
    short = build("annotate", {"name": "rewards.combine.length_penalised", "penalty": 0.1})
    assert short([group], Context())["reward.length_penalised"][0] == pytest.approx([1.8])


def test_length_control_returns_the_residual():
    import numpy as np
    from sklearn.linear_model import LinearRegression

    rng = np.random.default_rng(0)
    lengths, noise = rng.integers(1, 60, size=(20, 5)), rng.normal(size=(20, 5))
    prompts = rng.normal(size=(20, 1))
    rewards = 2.0 * np.log(lengths) + prompts + noise
    groups = [
        Group(
            Prompt(str(i), ()),
            tuple(reply("x", mask=[True] * int(n)) for n in row),
            {"reward.reward_model": rewards[i].tolist()},
        )
        for i, row in enumerate(lengths)
    ]
    controlled = build("annotate", {"name": "rewards.combine.length_controlled"})(groups, Context())[
        "reward.length_controlled"
    ]
    x = np.log(lengths) - np.log(lengths).mean(1, keepdims=True)
    slope = (
        LinearRegression().fit(x.reshape(-1, 1), (rewards - rewards.mean(1, keepdims=True)).ravel()).coef_[0]
    )
    assert np.allclose(controlled, rewards - slope * x)
    assert (
        abs(
            np.corrcoef(x.ravel(), (np.array(controlled) - np.mean(controlled, 1, keepdims=True)).ravel())[
                0, 1
            ]
        )
        < 1e-9
    )
