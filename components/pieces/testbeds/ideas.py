"""Testbed `ideas`: three-sentence ideas, some of which give each of three aspects a sentence of its own."""

from __future__ import annotations

import random
from collections.abc import Iterator
from typing import Any

from ratchet.components.data.tiny_language import OPENERS, SUBJECTS
from ratchet.components.piece import piece
from ratchet.components.pieces.rewards.idea import ASPECTS, LENGTH, SENTENCES, scores, sentences_of, shares
from ratchet.components.pieces.rollouts.by_sentence import asked
from ratchet.components.recipes.ranges import Natural, Share

NEUTRAL = ("so", "for", "all", "one")
TEST, UNANSWERED = 60, 60
"""Prompts held out, and those of split `prompts`."""


def idea(aspects: list[str | None], pure: float, rng: random.Random) -> str:
    """Sentences of four words each. In a sentence with an aspect, each of the aspect's four words is said
    with probability `pure`, in any order; every other word is any word, of an aspect or neutral.
    """
    every = [word for own in (*ASPECTS.values(), NEUTRAL) for word in own]
    said = [
        " ".join(
            word if aspect and rng.random() < pure else rng.choice(every)
            for word in rng.sample(ASPECTS[aspect or "effect"], LENGTH)
        )
        for aspect in aspects
    ]
    return " ".join(f"{sentence}." for sentence in said)


def emphases(text: str) -> list[str]:
    """The aspect that each sentence of an idea has most of, the first among equals; then "end"."""
    found = [shares(words) for words in sentences_of(text)]
    return [*(max(one, key=one.__getitem__) for one in found), "end"]


@piece(paper="arXiv:2412.14626")
def ideas(
    *,
    demonstrations: Natural = 600,
    seed: Natural = 0,
    focused: Share = 0.3,
    pure: Share = 0.8,
    planned: Share = 0.7,
) -> Iterator[dict[str, Any]]:
    """Ideas on a subject: "new odd for rare. easy safe one cheap. great nice fine good." Read the splits
    with `data.columns: {split: split}`. `sft`, `demonstrations` rows {id, prompt, completion}: in a share
    of `focused` each sentence has an aspect of its own, in random order, to which a word belongs with
    probability `pure` (and a fifth of the others by chance); in the rest every word is any of 16.
    `sft_plan`, rows {id, prompt, completion}, four for every idea of `sft` whose three scores
    (`rewards.idea`) have a minimum of at least `planned`: what is said so far, and the aspect that the
    next sentence has most of, or "end". `prompts` and `test` have 60 prompts {id, prompt} each, which
    occur nowhere else.

    Shows: whether strengths of controllers that change from sentence to sentence meet aims that compete for
    the words of a sentence, where strengths that stay must divide every sentence. Does not show: ideas, or
    scores by reward models; an aspect is a list of words, and what it should be next depends only on what
    was said.
    """
    rng = random.Random(f"ideas {seed}")
    prompts = [wording.format(subject) for wording in OPENERS for subject in SUBJECTS]
    rng.shuffle(prompts)
    held = {"test": prompts[:TEST], "prompts": prompts[TEST : TEST + UNANSWERED]}
    for split, texts in held.items():
        for number, text in enumerate(texts):
            yield {"id": f"idea-{seed}-{split}-{number}", "split": split, "prompt": _turn("user", text)}
    for number in range(demonstrations):
        question = rng.choice(prompts[TEST + UNANSWERED :])
        order: list[str | None] = list(rng.sample(list(ASPECTS), SENTENCES))
        text = idea(order if rng.random() < focused else [None] * SENTENCES, pure, rng)
        name = f"idea-{seed}-{number}"
        row = {"prompt": _turn("user", question), "completion": _turn("assistant", text)}
        yield {"id": name, "split": "sft", **row}
        if min(scores(text).values()) >= planned:
            for place, emphasis in enumerate(emphases(text)):
                said = "".join(f"{sentence}." for sentence in text.split(".")[:place])
                yield {
                    "id": f"{name}-plan-{place}",
                    "split": "sft_plan",
                    "prompt": _turn("user", asked(question, said)),
                    "completion": _turn("assistant", emphasis),
                }


def _turn(role: str, text: str) -> list[dict[str, str]]:
    return [{"role": role, "content": text}]
