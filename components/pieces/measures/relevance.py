"""Is an answer about its question?"""

from __future__ import annotations

from collections.abc import Sequence

from ratchet.components.evaluation.copying import copied, source
from ratchet.components.evaluation.diversity import WORD
from ratchet.components.piece import piece
from ratchet.components.types import Context, Group


@piece(paper="arXiv:1908.10084")
def relevance(groups: Sequence[Group], ctx: Context, *, model: str = "encoder") -> list[list[float]]:
    """Cosine of the sentence embeddings of an answer and the question of its prompt (the last message without its instruction), less the
    answer's mean cosine with all other questions of the call: 0 for an answer that would fit any question, -2 to 2. What an answer copies
    from the last message, five words or more in a row, is left out; where nothing is left it counts 0.
    """
    import numpy as np

    encoder = ctx.models[model]
    asked = encoder([question(group) for group in groups])
    total = asked.sum(0)
    found = []
    for own, group in zip(asked, groups, strict=True):
        texts = [own_words(t.text, source(group.prompt)) for t in group.trajectories]
        vectors = encoder([text or "-" for text in texts])
        others = vectors @ (total - own) / max(1, len(groups) - 1)
        found.append([float(x) if text else 0.0 for text, x in zip(texts, np.asarray(vectors @ own - others), strict=True)])
    return found


def question(group: Group) -> str:
    """The last message, without the instruction that `instruct` put after it."""
    message, instruction = group.prompt.messages[-1]["content"], group.prompt.meta.get("instruction")
    return message.removesuffix(instruction["text"]).strip() if instruction else message


def own_words(text: str, origin: str) -> str:
    """The text without what it copies from `origin`."""
    said = list(WORD.finditer(text))
    flags = copied([m[0].lower() for m in said], [m[0].lower() for m in WORD.finditer(origin)])
    for match, taken in reversed(list(zip(said, flags, strict=True))):
        text = text[: match.start()] + text[match.end() :] if taken else text
    return " ".join(text.split())
