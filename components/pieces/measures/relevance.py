"""Measure `relevance`: whether an answer is about its question."""

from __future__ import annotations

from collections.abc import Sequence

from ratchet.components.evaluation.copying import copied, source
from ratchet.components.evaluation.diversity import WORD
from ratchet.components.piece import piece
from ratchet.components.types import Context, Group


@piece(paper="arXiv:1908.10084")
def relevance(groups: Sequence[Group], ctx: Context, *, model: str = "encoder") -> list[list[float]]:
    """Cosine similarity of answer and question embeddings (the question is the last message without its
    instruction), minus the answer's mean similarity to all other questions: 0 for an answer that fits any
    question; range -2 to 2. Text copied from the last message in runs of five or more words is removed; an
    empty remainder gives 0.
    """
    import numpy as np

    encoder = ctx.models[model]
    questions = encoder([question(group) for group in groups])
    total = questions.sum(0)
    found = []
    for own, group in zip(questions, groups, strict=True):
        texts = [own_words(t.text, source(group.prompt)) for t in group.trajectories]
        vectors = encoder([text or "-" for text in texts])
        others = vectors @ (total - own) / max(1, len(groups) - 1)
        found.append(
            [
                float(x) if text else 0.0
                for text, x in zip(texts, np.asarray(vectors @ own - others), strict=True)
            ]
        )
    return found


def question(group: Group) -> str:
    """The last message without the instruction appended by `instruct`."""
    message, instruction = group.prompt.messages[-1]["content"], group.prompt.meta.get("instruction")
    return message.removesuffix(instruction["text"]).strip() if instruction else message


def own_words(text: str, origin: str) -> str:
    """The text without parts copied from `origin`."""
    found_words = list(WORD.finditer(text))
    flags = copied([m[0].lower() for m in found_words], [m[0].lower() for m in WORD.finditer(origin)])
    for match, taken in reversed(list(zip(found_words, flags, strict=True))):
        text = text[: match.start()] + text[match.end() :] if taken else text
    return " ".join(text.split())
