"""Testbed `programs`: four generators, whose style and rightness are the stated ones."""

from __future__ import annotations

import random
from collections import Counter
from statistics import fmean

import pytest

from ratchet.components.errors import DataError
from ratchet.components.piece import build
from ratchet.components.pieces.rewards.program import PREFERENCES, scores
from ratchet.components.pieces.testbeds.programs import program, programs
from ratchet.components.types import Context, Prompt

STEPS = ["times 3", "minus 4"]


def test_a_program_of_good_or_bad_style() -> None:
    for seed in range(40):
        rng = random.Random(seed)
        found = scores(program(STEPS, True, 1.0, rng), STEPS)
        assert found.pop("readability") in (1.0, pytest.approx(5 / 6)) and set(found.values()) == {1.0}
        text = program(STEPS, True, 0.0, rng)
        assert text in ("a=x*3\nb=a+0\nc=b-4", "a=x*3\nb=a-4\nc=b+0")
        wrong = scores(program(STEPS, False, 1.0, rng), STEPS)
        assert wrong["following"] == 0.5 and wrong["explanation"] == wrong["complexity"] == 1.0


def test_instructions_differ_and_do_not_tell_the_preference() -> None:
    rows = list(programs(seed=3, demonstrations=2))
    assert Counter(row["split"] for row in rows) == {"sft": 780, "rated": 240, "test": 96}
    texts = {row["prompt"][0]["content"] for row in rows}
    assert len(texts) == 390 + 240 + 96 and len({row["id"] for row in rows}) == len(rows)
    assert not any(word in text for text in texts for word in PREFERENCES)
    assert Counter(row["meta"].get("preference") for row in rows if row["split"] == "rated") == {
        name: 48 for name in PREFERENCES
    }
    for row in rows:
        assert row["prompt"][0]["content"] == f"x {', '.join(row['meta']['steps'])}"
        if row["split"] == "sft":
            text = row["completion"][0]["content"]
            assert scores(text, row["meta"]["steps"])["following"] == 1.0
    with pytest.raises(DataError, match="of 729; lower"):
        next(programs(rated=244))


def test_a_pool_is_half_right_and_half_of_good_style() -> None:
    """Traits are good with probability 0.8 and 0.2: names are words in half of the programs, a statement in
    vain (complexity 2/3) in the other half, each independently of the rightness.
    """
    rows = [row for seed in range(4) for row in programs(seed=seed) if row["split"] == "rated"]
    found = [[scores(text, row["meta"]["steps"]) for text in row["meta"]["answers"]] for row in rows]
    right = [[one["following"] == 1.0 for one in four] for four in found]
    # An error in one step is no error of the result in a few programs, such as "times 1" before "times 2".
    assert fmean(sum(four) for four in right) == pytest.approx(2.0, abs=0.03)
    assert all(fmean(four[place] for four in right) == pytest.approx(0.5, abs=0.06) for place in range(4))
    named = [[one["readability"] > 0.6 for one in four] for four in found]
    assert fmean(fmean(four) for four in named) == pytest.approx(0.5, abs=0.03)
    of_right = [n for two in zip(named, right, strict=True) for n, r in zip(*two, strict=True) if r]
    assert fmean(of_right) == pytest.approx(0.5, abs=0.04)
    assert fmean(one["complexity"] for four in found for one in four) == pytest.approx(5 / 6, abs=0.02)


def test_offered_answers_are_those_of_the_prompt() -> None:
    prompts = [Prompt(f"p{i}", (), meta={"answers": [f"a{i}", f"b{i}", f"c{i}"]}) for i in range(2)]
    groups = build("rollout", {"name": "offered", "responses_per_prompt": 2})(prompts, Context())
    assert [g.prompt.id for g in groups] == ["p0", "p1"]
    assert [[t.text for t in g.trajectories] for g in groups] == [["a0", "b0"], ["a1", "b1"]]
    assert all(t.logprobs is None and not t.mask for g in groups for t in g.trajectories)
    for bad in ({"answers": ["a"]}, {"answers": "text"}, {}):
        with pytest.raises(DataError, match=r"meta\.answers"):
            build("rollout", {"name": "offered", "responses_per_prompt": 2})(
                [Prompt("p", (), meta=bad)], Context()
            )
