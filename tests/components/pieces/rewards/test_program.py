"""Programs of assignments: the interpreter, five preferences, and the ratings of a judge, by hand."""

from __future__ import annotations

from collections import Counter
from statistics import fmean, pstdev

import pytest

from ratchet.components.errors import DataError
from ratchet.components.piece import build
from ratchet.components.pieces.rewards.program import follows, ratings_of, reply, run, scores
from ratchet.components.types import Context, Group, Prompt, Trajectory

STEPS = ["times 3", "minus 4"]
GOOD = "half = x * 3\ntotal = half - 4 # times 3, minus 4"
PLAIN = "a=x*3\nb=a+0\nc=b-4"


def group(name: str, *texts: str, **meta: object) -> Group:
    prompt = Prompt(name, ({"role": "user", "content": "x times 3, minus 4"},), meta={"steps": STEPS, **meta})
    return Group(prompt, tuple(Trajectory(({"role": "assistant", "content": text},)) for text in texts))


def test_a_program_is_run_one_assignment_after_another() -> None:
    assert [run(GOOD, x) for x in (-3, 0, 7)] == [-13, -4, 17]
    assert run("a = x\nb = a * a\na = b - x", 5) == 20, "a name may be assigned again"
    assert run("# three\n\na = 3", 9) == 3


@pytest.mark.parametrize(
    "text",
    ["", "x * 3", "a = b + 1", "a = 1 + 2 + 3", "a = __import__", "a = x ** 2", "import os", "a = x / 2", "x",
     "while x: pass", "a = (x)", "A = x", "\n".join(["a = x"] * 9), "a = 999999 * 999999",
     "a = x" + " " * 400],
)  # fmt: skip
def test_anything_else_is_not_run(text: str) -> None:
    with pytest.raises(ValueError, match=r"expected|no value|too large"):
        run(text, 1)


def test_growth_is_limited() -> None:
    assert run("a = 1000 * x\nb = a * a", 31) == 961_000_000
    with pytest.raises(ValueError, match="too large"):
        run("a = 1000 * x\nb = a * a", 32)


def test_a_program_follows_its_instruction_if_every_test_passes() -> None:
    """x * 3 - 4 on -3, 0, 1, 2, 7 is -13, -4, -1, 2, 17; (x - 4) * 3 is equal nowhere."""
    assert follows(GOOD, STEPS) == follows(PLAIN, STEPS) == 1.0
    assert follows("a = x - 4\nb = a * 3", STEPS) == 0.5, "runs, with another result"
    assert follows("a = x * x\nb = a - 2", STEPS) == 0.5, "right for x = 1 and x = 2 only"
    assert follows("total = half - 4", STEPS) == 0.0


def test_scores_by_hand() -> None:
    """`PLAIN`: two steps of three operations; none of 6 marks between spaces (three =, three operators);
    names of one letter; no comment. The mixture: "half" 1 and "ab" 1/3, means 2/3; three of four marks
    between spaces; one of two steps in the comment.
    """
    assert scores(GOOD, STEPS) == dict.fromkeys(scores(GOOD, STEPS), 1.0)
    assert scores(PLAIN, STEPS) == {
        "following": 1.0,
        "complexity": pytest.approx(2 / 3),
        "style": 0.0,
        "readability": 0.0,
        "explanation": 0.0,
    }
    mixture = scores("half = x * 3 # times 3\nab = half-4", STEPS)
    assert mixture["readability"] == pytest.approx(2 / 3) and mixture["style"] == 0.75
    assert mixture["explanation"] == 0.5 and mixture["complexity"] == 1.0
    assert scores("a = x * 3 - 4 # times 3, minus 4", STEPS) == dict.fromkeys(mixture, 0.0)
    assert scores("a = x * 4", STEPS)["complexity"] == 1.0, "fewer operations than steps"


def test_rewards_are_pass_or_fail_and_a_mean_from_1_to_5() -> None:
    """Mean of `PLAIN`: (1 + 2/3) / 5 = 1/3, on the scale 1 + 4/3."""
    rows = [group("p", GOOD, PLAIN, "no program")]
    passed = build("annotate", {"name": "rewards.program.passed"})(rows, Context())
    means = build("annotate", {"name": "rewards.program.attributes"})(rows, Context())
    assert passed["reward.passed"] == [[1.0, 1.0, 0.0]]
    assert means["reward.attributes"] == [[5.0, pytest.approx(7 / 3), 1.0]]
    bare = Group(Prompt("q", ()), rows[0].trajectories[:1])
    assert "meta.steps" in build("annotate", {"name": "rewards.program.passed"})([bare], Context())[
        "reward.passed.status"][0][0]  # fmt: skip


def judged(rows: list[Group], seed: int = 0, **options: float) -> list[list[float]]:
    spec = {"name": "rewards.program.judged", "noise": 0.0, "favour": 0.0, "garbled": 0.0, **options}
    return build("annotate", spec)(rows, Context(seed=seed))["reward.judged"]


def test_a_judge_without_errors_rates_the_one_preference_of_the_prompt() -> None:
    """Scores of complexity 1, 2/3, 1: ratings 5, round(1 + 8/3) = 4, 5. Of style 1, 0, 3/4: 5, 1, 4."""
    texts = (GOOD, PLAIN, "half = x * 3\nab = half-4")
    for preference, expected in (("complexity", [5, 4, 5]), ("style", [5, 1, 4]), ("following", [5, 5, 5])):
        for seed in range(5):
            assert judged([group("p", *texts, preference=preference)], seed) == [expected]
    with pytest.raises(DataError, match=r"meta\.preference"):
        judged([group("p", *texts)])


def test_the_order_in_which_answers_are_shown_is_undone() -> None:
    """A judge who favours the first shown answer beyond all others: 5 for it, the own rating of the others;
    each stored place is shown first equally often.
    """
    rows = [group(f"p{i}", PLAIN, PLAIN, PLAIN, GOOD, preference="style") for i in range(800)]
    found = judged(rows, favour=2.0)
    assert {tuple(row) for row in found} == {(5, 1, 1, 5), (1, 5, 1, 5), (1, 1, 5, 5), (1, 1, 1, 5)}
    first = Counter(tuple(row) for row in found)
    assert all(count == pytest.approx(200, abs=45) for count in first.values())


def test_noise_is_that_of_the_score_and_a_function_of_seed_and_prompt() -> None:
    """A score of 3/4 is a rating of 4; an error of 0.1 is one of 0.4 before rounding."""
    rows = [group(f"p{i}", "half = x * 3\nab = half-4", preference="style") for i in range(600)]
    found = [row[0] for row in judged(rows, noise=0.1)]
    assert fmean(found) == pytest.approx(4.0, abs=0.06)
    assert pstdev(found) == pytest.approx((0.16 + 1 / 12) ** 0.5, abs=0.05)
    assert [row[0] for row in judged(rows[7:9], noise=0.1)] == found[7:9]
    assert [row[0] for row in judged(rows, seed=1, noise=0.1)] != found


def test_a_reply_without_a_block_for_every_answer_counts_for_none() -> None:
    text = reply([0.0, 0.5, 1.2], "style")
    assert ratings_of(text, 3) == [1, 3, 5] and "Output 2\nRating: 3\nRationale: its style is fair." in text
    assert ratings_of(text, 4) is None and ratings_of(text, 2) is None
    assert ratings_of(text.replace("Rating: 3", "Rating: 6"), 3) is None
    assert ratings_of(reply([0.0, 0.5, 1.2], "style", 1), 3) is None
    rows = [group(f"p{i}", GOOD, PLAIN, preference="style") for i in range(400)]
    spec = {"name": "rewards.program.judged", "garbled": 0.25}
    out = build("annotate", spec)(rows, Context(seed=2))
    lost = [row == [None, None] for row in out["reward.judged"]]
    assert sum(lost) == pytest.approx(100, abs=30)
    for row, status in zip(lost, out["reward.judged.status"], strict=True):
        assert all(one.startswith("skipped") if row else one == "ok" for one in status)
