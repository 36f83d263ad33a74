"""Answers that do not repeat their question or instruction."""

from __future__ import annotations

import re
from collections.abc import Sequence
from difflib import SequenceMatcher

from ratchet.components.evaluation.copying import source
from ratchet.components.piece import piece
from ratchet.components.recipes.ranges import Share
from ratchet.components.types import Context, Group, Prompt

SENTENCE_END = re.compile(r"[.!?:]+(?=\W|$)|\n+")
MIN_WORDS = 4
"""Shorter sentences are not compared: "Do you?" resembles much."""


@piece()
def without_restatements(groups: Sequence[Group], ctx: Context, *, similarity: Share = 0.85) -> list[Group]:
    """The groups without the answers of which a sentence repeats a sentence of the prompt's last
    message: one of at least four words whose characters agree to `similarity` (`difflib`'s ratio; case
    and punctuation do not count, nor do phrases that the instruction requires). A verifier of form
    accepts '"Have you heard the new album?"' where quotation marks are demanded, and a policy that
    learns from such answers learns to repeat questions. A prompt whose answers all do is left out.
    """
    kept: list[Group] = []
    for group in groups:
        own = [i for i, t in enumerate(group.trajectories) if not restates(t.text, group.prompt, similarity)]
        ctx.counts["answers that repeat their prompt"] += len(group.trajectories) - len(own)
        if own:
            kept.append(group.take(own))
    return kept


def restates(answer: str, prompt: Prompt, similarity: float) -> bool:
    """Whether a sentence of the answer repeats one of the prompt's last message."""
    return any(
        SequenceMatcher(None, sentence, other, autojunk=False).ratio() >= similarity
        for sentence in _sentences(answer)
        for other in _sentences(source(prompt))
    )


def _sentences(text: str) -> list[str]:
    """The sentences of at least `MIN_WORDS` words, in lower case, words separated by one space."""
    sentences = (re.findall(r"\w+(?:'\w+)?", sentence.lower()) for sentence in SENTENCE_END.split(text))
    return [" ".join(words) for words in sentences if len(words) >= MIN_WORDS]
