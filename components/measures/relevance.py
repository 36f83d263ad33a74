"""Is an answer about its question?"""

from __future__ import annotations

from collections.abc import Sequence

from components.piece import piece
from components.types import Context, Group


@piece(paper="arXiv:1908.10084")
def relevance(groups: Sequence[Group], ctx: Context, *, model: str = "encoder") -> list[list[float]]:
    """Cosine of the sentence embeddings of an answer and the last message of its prompt, less the answer's mean cosine with all
    other prompts of the call: 0 for an answer that would fit any question, -2 to 2. An empty answer counts 0.
    """
    import numpy as np

    encoder = ctx.models[model]
    asked = encoder([group.prompt.messages[-1]["content"] for group in groups])
    total = asked.sum(0)
    found = []
    for own, group in zip(asked, groups, strict=True):
        vectors = encoder([t.text.strip() or "-" for t in group.trajectories])
        others = vectors @ (total - own) / max(1, len(groups) - 1)
        found.append([float(x) if t.text.strip() else 0.0 for t, x in zip(group.trajectories, np.asarray(vectors @ own - others), strict=True)])
    return found
