"""Selectors that build demonstrations and preference pairs from verified answers."""

from __future__ import annotations

import dataclasses

import pytest

from ratchet.components.data.instructions.families import FAMILIES, instruction_text
from ratchet.components.errors import RecipeError
from ratchet.components.piece import build
from ratchet.components.pieces.rewards.instructions import FORMS
from ratchet.components.pieces.selectors.contrast import contrast
from ratchet.components.pieces.selectors.echo import echo
from ratchet.components.pieces.selectors.flip_labels import flip_labels
from ratchet.components.pieces.selectors.largest_margins import largest_margins
from ratchet.components.pieces.selectors.off_topic import off_topic
from ratchet.components.pieces.selectors.unasked_form import unasked_form
from ratchet.components.pieces.selectors.verified import verified
from ratchet.components.types import Context, Group, Prompt, Trajectory


def instruction(family: str, **params: object) -> dict:
    return {"family": family, "wording": 0, "params": params, "text": "", "kind": "seen"}


def prompt(name: str, family: str, **params: object) -> Prompt:
    return Prompt(
        name,
        ({"role": "user", "content": f"What do you eat? {family}"},),
        meta={"question": "q", "instruction": instruction(family, **params)},
    )


def answer(text: str, logprob: float = -1.0) -> Trajectory:
    return Trajectory(
        ({"role": "assistant", "content": text},),
        {"tokens": [1, 2, 3]},
        [False, True, True],
        [0.0, logprob, logprob],
    )


SHORT = Group(
    prompt("a", "at_most_words", n=5),
    (answer("I eat rice."), answer("I eat rice and beans and bread.")),
    {"reward.instructions": [1.0, 0.0]},
)
LONG = Group(
    prompt("b", "at_least_words", n=6),
    (answer("I eat rice, beans and bread today."), answer("Rice.")),
    {"reward.instructions": [1.0, 0.0]},
)


def texts(group: Group) -> list[str]:
    return [t.text for t in group.trajectories]


def test_contrast_rejects_an_answer_that_obeys_another_instruction_on_the_question() -> None:
    pairs = contrast([SHORT, LONG], Context(), per_prompt=1, share=1.0)
    assert [texts(p) for p in pairs] == [
        ["I eat rice.", "I eat rice, beans and bread today."],
        ["I eat rice, beans and bread today.", "I eat rice."],
    ]
    assert {p.prompt.meta["pair"]["kind"] for p in pairs} == {"contrast"}
    assert all(not t.inputs and not t.mask and t.logprobs is None for p in pairs for t in p.trajectories), (
        "tokens belong to the other prompt"
    )
    assert [p.columns["margin"] for p in pairs] == [[1.0, 1.0]] * 2


def test_contrast_takes_failing_answers_for_the_rest_and_skips_prompts_without_a_verified_answer() -> None:
    none = Group(
        prompt("c", "at_most_words", n=1),
        (answer("I eat."), answer("No I do not.")),
        {"reward.instructions": [0.0, 0.0]},
    )
    ctx = Context()
    pairs = contrast([SHORT, none], ctx, per_prompt=2, share=0.5)
    assert [(texts(p), p.prompt.meta["pair"]["kind"]) for p in pairs] == [
        (["I eat rice.", "I eat rice and beans and bread."], "pass_fail")
    ]
    assert ctx.counts["prompts without a verified answer"] == 1


def test_contrast_chooses_an_answer_to_another_instruction_where_the_prompt_has_no_verified_one() -> None:
    failed = Group(prompt("e", "at_most_words", n=5), LONG.trajectories[:1], {"reward.instructions": [0.0]})
    pairs = contrast([failed, SHORT], Context(), per_prompt=1, share=0.0)
    assert (
        texts(pairs[0]) == ["I eat rice.", "I eat rice, beans and bread today."] and pairs[0].prompt.id == "e"
    )


def test_contrast_does_not_reject_an_answer_that_obeys_both_instructions() -> None:
    both = Group(prompt("d", "at_most_words", n=8), SHORT.trajectories[:1], {"reward.instructions": [1.0]})
    assert (
        contrast([SHORT, both], Context(), per_prompt=1, share=1.0)[0].prompt.meta["pair"]["kind"]
        == "pass_fail"
    )


def test_verified_prefers_the_highest_likelihood_among_answers_that_do_not_repeat_themselves() -> None:
    group = Group(
        prompt("e", "no_comma"),
        (
            answer("rice rice rice", -0.1),
            answer("I eat bread", -2.0),
            answer("I eat beans", -1.0),
            answer("no", 0.0),
        ),
        {"reward.instructions": [1.0, 1.0, 1.0, 0.0]},
    )
    ctx = Context()
    assert [texts(g) for g in verified([group], ctx, keep=2)] == [["I eat beans"], ["I eat bread"]]
    assert not verified([group.take([3])], ctx) and ctx.counts["prompts without a verified answer"] == 1


@pytest.mark.parametrize(("share", "expected"), [(0.0, 0), (1.0, 400), (0.2, 80)])
def test_flip_labels_exchanges_the_sides_of_a_share_of_pairs(share: float, expected: int) -> None:
    pairs = [
        Group(Prompt(f"p{i}", SHORT.prompt.messages), SHORT.trajectories, {"margin": [1.0, 1.0]})
        for i in range(400)
    ]
    ctx = Context(seed=3)
    flipped = flip_labels(pairs, ctx, share=share)
    assert ctx.counts["labels flipped"] == pytest.approx(expected, abs=25 if 0 < share < 1 else 0)
    assert (
        sum(texts(f) != texts(p) for f, p in zip(flipped, pairs, strict=True)) == ctx.counts["labels flipped"]
    )
    assert flip_labels(pairs, Context(seed=3), share=share) == flipped


@pytest.mark.parametrize(
    ("share", "kept"), [(1.0, [0, 1, 2, 3, 4]), (0.5, [1, 2, 3]), (0.2, [3]), (0.41, [1, 2, 3])]
)
def test_largest_margins_keeps_the_pairs_of_largest_margin_in_order(share: float, kept: list[int]) -> None:
    pairs = [
        Group(Prompt(f"p{i}", SHORT.prompt.messages), SHORT.trajectories, {"margin": [m, m]})
        for i, m in enumerate([0.1, 2.0, 0.5, 3.0, 0.5])
    ]
    assert [int(g.prompt.id[1:]) for g in largest_margins(pairs, Context(), share=share)] == kept


def test_largest_margins_refuses_a_share_out_of_range() -> None:
    with pytest.raises(RecipeError):
        largest_margins([], Context(), share=0.0)


def test_an_unasked_form_is_rejected_once_a_prompt_and_never_where_it_is_asked_for() -> None:
    quoted = Group(
        prompt("q", "quotation"),
        (answer('"I eat rice."'), answer("I eat rice.")),
        {"reward.instructions": [1.0, 0.0]},
    )
    ctx = Context()
    pairs = contrast([SHORT, LONG, quoted], Context(), per_prompt=1, share=0.0)
    result = unasked_form(pairs, ctx)
    forms = {p.prompt.id: texts(p) for p in result if p.prompt.meta["pair"]["kind"] == "form"}
    assert ctx.counts["pairs of kind form"] == len(forms) == len(result) - len(pairs) and {"a", "b"} <= set(
        forms
    )
    for chosen, rejected in forms.values():
        assert chosen in rejected and len(rejected) > len(chosen)
    assert forms == {
        p.prompt.id: texts(p)
        for p in unasked_form(pairs, Context())
        if p.prompt.meta["pair"]["kind"] == "form"
    }
    drawn = {
        unasked_form(
            [dataclasses.replace(result[0], prompt=prompt(f"p{i}", "at_most_words", n=9))], Context()
        )[-1]
        .trajectories[1]
        .text
        for i in range(60)
    }
    assert len(drawn) == len(FORMS), "every form is drawn"


def test_echo_rejects_the_instruction_in_a_trained_wording_or_the_question() -> None:
    groups = [
        dataclasses.replace(
            SHORT,
            prompt=dataclasses.replace(
                SHORT.prompt,
                id=f"p{i}",
                messages=({"role": "user", "content": "What do you eat? Be brief."},),
                meta={
                    "question": "q",
                    "instruction": {**instruction("at_most_words", n=5), "text": "Be brief."},
                },
            ),
        )
        for i in range(60)
    ]
    ctx = Context()
    result = [
        p
        for p in echo(contrast(groups, Context(), per_prompt=1, share=0.0), ctx)
        if p.prompt.meta["pair"]["kind"] == "echo"
    ]
    family = FAMILIES["at_most_words"]
    wordings = {instruction_text(family.name, wording, {"n": 5}) for wording in family.seen_wordings}
    assert {texts(p)[0] for p in result} == {"I eat rice."} and ctx.counts["pairs of kind echo"] == len(
        result
    ) == 60
    assert {texts(p)[1] for p in result} == wordings | {f"{wording} I eat rice." for wording in wordings} | {
        "What do you eat?"
    }


def test_off_topic_rejects_an_answer_to_another_question_with_an_instruction_of_the_same_family() -> None:
    def about(group: Group, name: str, question: str, *more: str) -> Group:
        there = dataclasses.replace(group.prompt, id=name, meta={**group.prompt.meta, "question": question})
        return Group(
            there,
            (*(answer(text) for text in more), group.trajectories[1]),
            {"reward.instructions": [1.0] * len(more) + [0.0]},
        )

    groups = [
        about(SHORT, "a", "q", "I eat rice."),
        about(SHORT, "a2", "q", "I eat jam."),
        about(SHORT, "c", "r", "I am six."),
        about(LONG, "d", "q", "I eat rice, beans and bread today."),
        about(LONG, "e", "q", "I eat fish, beans and bread today."),
    ]
    pairs, ctx = contrast(groups, Context(), per_prompt=1, share=0.0), Context()
    result = off_topic(pairs, ctx)
    assert [p for p in result if p.prompt.meta["pair"]["kind"] != "off_topic"] == pairs
    found = {p.prompt.id: texts(p) for p in result if p.prompt.meta["pair"]["kind"] == "off_topic"}
    assert ctx.counts["pairs of kind off_topic"] == len(found) == 5
    assert found["a"] == ["I eat rice.", "I am six."] and found["a2"] == ["I eat jam.", "I am six."], (
        "not one of the same question"
    )
    assert found["c"][0] == "I am six." and found["c"][1] in ("I eat rice.", "I eat jam.")
    assert found["d"] == ["I eat rice, beans and bread today.", "I am six."], (
        "of another family where the family has one question"
    )
    assert all(
        p.columns["margin"] == [1.0, 1.0] and not t.inputs for p in result[1::2] for t in p.trajectories
    )
    alone = contrast([SHORT, LONG], Context(), per_prompt=1, share=0.0)
    assert off_topic(alone, Context()) == alone
    for share, number in ((0.0, 0), (0.4, 2), (1.0, 5)):
        some = off_topic(pairs, Context(), share=share)
        more = [p for p in some if p.prompt.meta["pair"]["kind"] == "off_topic"]
        assert len(more) == number and all(texts(p) == found[p.prompt.id] for p in more)
    drawn = {
        tuple(p.prompt.id for p in off_topic(pairs, Context(seed=seed), share=0.4))
        for seed in (0, 0, 1, 2, 3, 4)
    }
    assert len(drawn) > 1, "the seed draws the prompts"


def test_by_prompt_puts_the_pairs_of_a_prompt_in_one_group() -> None:
    pairs = contrast([SHORT, LONG], Context(), per_prompt=2, share=0.5)
    grouped = build("select", {"name": "by_prompt"})(pairs, Context())
    assert [len(group.trajectories) for group in grouped] == [4, 4]
    assert [texts(grouped[0].take([i, i + 1])) for i in (0, 2)] == [texts(pair) for pair in pairs[:2]]
