"""Token rewards by a corrector: where it would write what the policy wrote, and where it would not."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Literal

from ratchet.components.piece import piece
from ratchet.components.pieces.selectors.corrections import with_draft
from ratchet.components.recipes.ranges import Bool, Positive
from ratchet.components.types import OK, Columns, Context, Group, Request

if TYPE_CHECKING:
    from ratchet.components.protocols import Engine


@piece(
    writes=("dense", "reward.correction", "reward.correction.status"),
    models=("{corrector}",),
    paper="arXiv:2409.00162",
    by_group=True,
)
def correction(
    groups: Sequence[Group],
    ctx: Context,
    *,
    corrector: str,
    scale: Positive = 1.0,
    after_divergence: Literal["zero", "positive"] = "zero",
    by_length: Bool = False,
    instruction: str = "Correct it.",
) -> Columns:
    """Token rewards of a sequence-to-sequence reward model, section 3.2 (the model `corrector`, which must
    have the policy's tokenizer and learned from `corrections`). It reads prompt and answer and rewrites the
    answer greedily. `dense`, lists (T): `scale` at each sampled token before the first one where the two
    differ; from there on the corrector is given the policy's own tokens, and a token has -`scale` if it is
    not the likeliest one, else 0 (`after_divergence: zero`) or `scale` (`positive`). The end of the turn is a
    token like any other. `by_length`: divided by the number of sampled tokens, so that a longer answer has no
    larger sum.

    `reward.correction`: the mean of the values without that division, in -`scale` to `scale`. Texts are read
    again with the chat template, so that an answer cut at its limit has an end of turn in the corrector's
    prompt. `skipped` for an answer without tokens.
    """
    engine = ctx.models[corrector]
    rows = agreement(engine, groups, instruction)
    dense, means, statuses = [], [], []
    for group, agreed in zip(groups, rows, strict=True):
        dense.append([])
        means.append([])
        statuses.append([])
        for trajectory, own in zip(group.trajectories, agreed, strict=True):
            values = iter(_values(own, scale, after_divergence))
            numbers = [next(values) if chosen else 0.0 for chosen in trajectory.mask]
            means[-1].append(sum(numbers) / len(own) if own else None)
            statuses[-1].append(OK if own else "skipped: the answer has no tokens")
            dense[-1].append([number / len(own) for number in numbers] if by_length and own else numbers)
    return {"dense": dense, "reward.correction": means, "reward.correction.status": statuses}


def agreement(engine: Engine, groups: Sequence[Group], instruction: str) -> list[list[list[bool]]]:
    """For each answer, whether each of its sampled tokens is the engine's likeliest, given those before.

    A greedy answer agrees up to its first different token. The next one begins after the policy's token
    there, and so on, so that there are as many passes as differences, not tokens.
    """
    drafts = [(group.prompt, trajectory) for group in groups for trajectory in group.trajectories]
    starts = [list(engine.encode_prompt(with_draft(prompt, t, instruction))) for prompt, t in drafts]
    written = [
        [token for token, chosen in zip(t.inputs["tokens"], t.mask, strict=True) if chosen] for _, t in drafts
    ]
    agreed: list[list[bool]] = [[] for _ in drafts]
    while live := [i for i, own in enumerate(written) if len(agreed[i]) < len(own)]:
        requests = [
            Request(
                [*starts[i], *written[i][: len(agreed[i])]],
                max_tokens=len(written[i]) - len(agreed[i]),
                temperature=0.0,
            )
            for i in live
        ]
        for i, (greedy,) in zip(live, engine.generate(requests), strict=True):
            for token, wanted in zip(greedy.tokens, written[i][len(agreed[i]) :], strict=False):
                agreed[i].append(token == wanted)
                if token != wanted:
                    break
    rest = iter(agreed)
    return [[next(rest) for _ in group.trajectories] for group in groups]


def _values(agreed: Sequence[bool], scale: float, after: str) -> list[float]:
    """Rewards of an answer's tokens.

    >>> _values([True, False, True], 1.0, "zero"), _values([True, False, True], 0.5, "positive")
    ([1.0, -1.0, 0.0], [0.5, -0.5, 0.5])
    """
    first = next((t for t, same in enumerate(agreed) if not same), len(agreed))
    later = scale if after == "positive" else 0.0
    return [(scale if t < first else later) if same else -scale for t, same in enumerate(agreed)]
