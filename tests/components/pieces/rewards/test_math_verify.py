"""Math answers: extraction, equality with the reference, time limits."""

from __future__ import annotations

import threading
import time

import pytest

from ratchet.components.data.verifiers import check_gold
from ratchet.components.errors import GateError
from ratchet.components.piece import build
from ratchet.components.pieces.rewards.expressions import Comparer, equal
from ratchet.components.types import Context, Group, Prompt, Trajectory

RIGHT = [
    ("72", text)
    for text in (
        "72",
        "#### 72",
        "The answer is 72.",
        r"\boxed{72}",
        r"so \boxed{70}, no: \boxed{72}.",
        "48/2 = 24, so 48+24 = 72",
        "The answer is: 72 clips",
        "**Answer:** 72",
        "She sold 48 + 24 = <<48+24=72>>72 clips.\n#### 72",
        "The final answer is $72$.",
        r"The answer is \$72.",
        "72.0",
        "72.00 dollars",
        "it costs $72",
        "Answer: 72 clips in April and 2 in May",
        "The answer is 48 + 24 = 72.",
        r"\boxed{72 \text{ clips}}",
        r"\boxed{\$72}",
        "x = 72",
        r"The answer is \(72\).",
        "Final answer:\n72",
        "Therefore, Natalia sold 72 clips altogether in April and May.",
        "Thus $48+24=72$.",
        "The answer is 72, since 2*36 = 72",
    )
]
RIGHT += [
    ("1000", "1,000"),
    ("1,000", "1000"),
    ("1000", "The total is $1,000.00."),
    ("3.50", "3.5"),
    ("3.5", "$3.50"),
    ("5", "$5"),
    ("$5", "5"),
    ("50", "50%"),
    ("50%", "0.5"),
    ("0.5", "50%"),
    ("0.75", "3/4"),
    ("3/4", r"\frac{3}{4}"),
    (r"\frac{3}{4}", "0.75"),
    ("1/2", r"\boxed{\dfrac12}"),
    ("-4", "4 - 8 = -4"),
    ("70000", "he made a profit of $200,000-80,000-50,000=$70,000"),
    ("18", "She makes 9 * 2 = $18 every day"),
    ("0.5", "half, .5"),
    ("Paris", r"\boxed{paris}"),
    ("B", "The answer is B."),
    ("x^2+1", "The answer is $1+x^2$."),
    ("(1,2)", "The answer is (1, 2)."),
    (r"2\sqrt{2}", r"So $\sqrt{8}$."),
    (r"so it is \boxed{\frac{1}{2}}", r"\boxed{0.5}"),
    ("2", r"\boxed{\sqrt{4}}"),
    ("1000", r"\boxed{10^3}"),
    ("72", r"The answer is \(72\) clips, not \(70\)."),
    ("600", "It is $5,$600 with the fee: $600"),
    ("x=1 or x=2", r"\boxed{x=1$ or $x=2}"),
    ("1500", r"\boxed{2,000 - 500 = 1,500}"),
    ("72", "The answer is x, so x = 72."),
]
WRONG = [
    ("72", text)
    for text in (
        "",
        "I do not know",
        "70, 71, 72, 73",
        "70, 71, 72",
        "70 71 72",
        "1;2;3;72",
        "72 or 73",
        "It is between 70 and 72",
        "The answer is 70, 71, 72",
        "The answer is 71 or 72.",
        "The answer is 72 and 73",
        "The answer is 1,2,3,72",
        r"\boxed{70, 71, 72}",
        r"\boxed{72 or 73}",
        r"\boxed{71} 72",
        "#### 71 72",
        "#### 7 2",
        "-72",
        "7.2",
        "172",
        "48 + 24",
        "The answer is 48 + 24.",
        r"\boxed{48+24}",
        r"\boxed{8 \cdot 9}",
        "72 = 72 = 71",
        r"\boxed{x}",
        r"\boxed{" + "(" * 600 + "72}",
        "The answer is 71. 72",
    )
]
WRONG += [
    ("-4", "4"),
    ("4", "4 - 8 = -4"),
    ("1/3", "0.33"),
    ("Paris", "It is Rome"),
    ("x^2+1", r"\boxed{x^2+2}"),
    ("(1,2)", "The answer is (2, 1)."),
    ("72", "The answer is $72$ or $70$."),
    ("72", "The answer is $70$, $71$ and $72$"),
    ("72", r"The answer is \(72\) or \(70\)."),
    ("72", r"\boxed{70$ $71$ $72}"),
    ("72", r"\boxed{x=70$ or $x=72}"),
    ("72", r"\boxed{x=70, x=72}"),
    ("72", r"\boxed{x=70 \text{ and } x=72}"),
    ("x=1 or x=2", r"\boxed{2}"),
    ("(1,2)", r"\boxed{(2,1)$ $(1,2)}"),
    (r"\frac{\pi}{2}", r"\boxed{\pi$ $\frac{\pi}{2}}"),
]


def score(answer: str | None, *texts: str, question: str = "How many?", **options) -> tuple[list, list[str]]:
    group = Group(
        Prompt("p", ({"role": "user", "content": question},), answer),
        tuple(Trajectory(({"role": "assistant", "content": text},)) for text in texts),
    )
    written = build("annotate", {"name": "rewards.math_verify", **options})([group], Context())
    return written["reward.math_verify"][0], written["reward.math_verify.status"][0]


@pytest.mark.parametrize(("answer", "text"), RIGHT)
def test_equivalent_spellings_of_the_answer_are_correct(answer: str, text: str) -> None:
    assert score(answer, text, seconds=60.0) == ([1.0], ["ok"])


@pytest.mark.parametrize(("answer", "text"), WRONG)
def test_lists_unfinished_sums_and_other_numbers_are_incorrect(answer: str, text: str) -> None:
    assert score(answer, text) == ([0.0], ["ok"])


def test_number_only_in_the_prompt_is_not_an_answer() -> None:
    assert score("72", "I am thinking of it.", question="Is it 72?") == ([0.0], ["ok"])


def test_a_prompt_without_an_answer_is_a_failed_reward() -> None:
    values, status = score(None, "72")
    assert values == [None] and status[0].startswith("failed: ValueError: prompt 'p' has no answer")


def test_timeout_of_one_expression_does_not_affect_the_next() -> None:
    equal("1", "1", 60.0)  # the process is up
    began = time.monotonic()
    assert score("72", r"\boxed{9^{9^{9^{9^{9}}}}}", seconds=0.5) == ([0.0], ["ok"])
    assert time.monotonic() - began < 20
    found: list = []
    thread = threading.Thread(
        target=lambda: found.append(score("x+1", r"\boxed{1+x}", seconds=60.0))
    )  # signals would need the main thread
    thread.start()
    thread.join()
    assert found == [([1.0], ["ok"])]


def test_dead_comparison_process_is_restarted() -> None:
    compare = Comparer()
    assert compare("x", "x", 60.0) and compare.process is not None
    compare.process.kill()
    compare.process.wait()
    assert not compare("x", "x", 60.0) and compare("x", "x", 60.0)
    compare.process.kill()
    compare.process.communicate()


def test_gold_answers_are_scored_first() -> None:
    def groups(*answers: str) -> list[Group]:
        return [
            Group(Prompt(str(i), ({"role": "user", "content": f"q{i}"},), answer), ())
            for i, answer in enumerate(answers)
        ]

    spec = {"name": "rewards.math_verify", "seconds": 60.0}
    golds = [
        "72",
        "1,000",
        "3.50",
        "$5",
        "50%",
        r"\frac{3}{4}",
        "x^2+1",
        "Paris",
        "(1, 2)",
        r"A solution, so \boxed{7}",
        "3/4",
        r"\sqrt{2}",
    ]
    assert check_gold(groups(*golds), [spec]) == {"rewards.math_verify": [12, 12]}
    worked = "She sold 48/2 = 24 clips in May.\nShe sold 48+24 = 72 clips altogether.\nThat is all."
    with pytest.raises(GateError, match=r"3 of 4 prompts .*'q3'.*That is all"):
        check_gold(groups("1", "2", "3", worked), [spec])
