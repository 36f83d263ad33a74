"""Reward of an answer in another language, which a ranker reads in translation."""

from __future__ import annotations

import random
import re
from collections.abc import Sequence

from ratchet.components.errors import DataError
from ratchet.components.piece import piece
from ratchet.components.pieces.rewards.sentiment import score
from ratchet.components.pieces.testbeds.languages import WORDS, translate
from ratchet.components.recipes.ranges import Share
from ratchet.components.types import OK, Columns, Context, Group


@piece(writes=("reward.translated", "reward.translated.status"), paper="arXiv:2307.16039", by_group=True)
def translated(groups: Sequence[Group], ctx: Context, *, error: Share = 0.0) -> Columns:
    """`rewards.sentiment` of an answer's translation from `meta["language"]` of the prompt into language 1
    of the testbed `languages`, in (0, 1). Every word of the translation is, with probability `error`, one of
    the vocabulary at random instead, drawn by seed, round, prompt and answer (the two turns of the ranker in
    Okapi, section 2.2: translate, then rank).

    `error` 0 is the truth, for evaluation. A ranker that reads the language itself, but knows a share k of
    its words and guesses the others, is `error` 1 - k. Fails for a prompt without a language.
    """
    values = []
    for group in groups:
        language = group.prompt.meta.get("language")
        if not isinstance(language, int):
            raise DataError(f"prompt {group.prompt.id!r}: expected meta.language, a number, got {language!r}")
        values.append(
            [
                score(_misread(translate(trajectory.text, language, 1), error, rng))
                for i, trajectory in enumerate(group.trajectories)
                for rng in [random.Random(f"{ctx.seed}/{ctx.round}/{group.prompt.id}/{i}/translated")]
            ]
        )
    return {"reward.translated": values, "reward.translated.status": [[OK] * len(row) for row in values]}


def _misread(text: str, error: float, rng: random.Random) -> str:
    """The text with a share `error` of its words at random."""
    return re.sub("[a-z]+", lambda word: rng.choice(WORDS) if rng.random() < error else word[0], text)
