"""Selectors of pairs to be labelled: which pairs are kept, in which order, and what is counted."""

import pytest

from ratchet.components.errors import RecipeError
from ratchet.components.piece import build
from ratchet.components.types import Context, Group, Message, Prompt, Trajectory


def pair(name: str, *texts: str, **columns: list) -> Group:
    rows = tuple(Trajectory((Message(role="assistant", content=text),)) for text in texts or ("x", "y"))
    return Group(Prompt(name, ()), rows, columns)


def names(selector: str, groups: list[Group], ctx: Context | None = None, **options) -> list[str]:
    made = build("select", {"name": selector, **options})(groups, ctx or Context(seed=1, round=1))
    assert all(group in groups for group in made), "pairs are unchanged"
    return [group.prompt.id for group in made]


def test_small_margins_keeps_the_least_certain_in_their_order() -> None:
    groups = [
        pair(n, margin=[m] * 2) for n, m in (("a", -0.5), ("b", 0.1), ("c", -2.0), ("d", 0.5), ("e", -0.2))
    ]
    ctx = Context()
    assert names("small_margins", groups, ctx, share=0.5) == ["a", "b", "e"], (
        "2.5 is rounded up, ties are first"
    )
    assert dict(ctx.counts) == {"margins above the smallest": 2}


def test_disagreement_is_the_variance_of_scaled_score_differences() -> None:
    """Member 2 has ten times the scale of member 1: by unscaled differences "agree" would vary most."""
    groups = [
        pair("agree", **{"scores.m1": [1.0, 0.0], "scores.m2": [10.0, 0.0]}),
        pair("opposed", **{"scores.m1": [1.0, 0.0], "scores.m2": [0.0, 4.0]}),
        pair("alike", **{"scores.m1": [0.5, 0.0], "scores.m2": [5.0, 0.0]}),
    ]
    assert names("disagreement", groups, members=["scores.m1", "scores.m2"], share=0.3) == ["opposed"]
    with pytest.raises(RecipeError, match="two or more"):
        names("disagreement", groups, members=["scores.m1"])
    assert names("disagreement", [], members=["scores.m1", "scores.m2"]) == []


def test_diverse_covers_the_texts() -> None:
    groups = [
        pair("cats", "cats sleep", "cats purr"),
        pair("more cats", "cats sleep", "cats purr loudly"),
        pair("boats", "boats sail", "boats sink"),
        pair("still cats", "cats sleep a lot", "cats purr"),
        pair("trains", "trains run", "late"),
    ]
    assert names("diverse", groups, share=0.6) == ["cats", "boats", "trains"]
    assert names("diverse", groups, share=1.0) == [group.prompt.id for group in groups]
    assert names("diverse", [groups[0]] * 3, share=0.6) == ["cats", "cats"], "equal texts are no error"


def test_uniform_draws_anew_each_round_and_seed() -> None:
    groups = [pair(str(i)) for i in range(40)]
    drawn = {
        (seed, round): tuple(names("uniform", groups, Context(seed=seed, round=round), share=0.25))
        for seed in (1, 2)
        for round in (1, 2)
    }
    assert len(set(drawn.values())) == 4 and {len(one) for one in drawn.values()} == {10}
    assert all(list(one) == sorted(one, key=int) for one in drawn.values())
    assert names("uniform", groups, Context(seed=1, round=1), share=0.25) == list(drawn[1, 1])
    often = [names("uniform", groups, Context(seed=s), share=0.25).count("0") for s in range(200)]
    assert 30 <= sum(often) <= 70, "each group is drawn with probability 1/4"
