"""Groups of sampled answers with the log-probs of the engine that sampled them."""

from __future__ import annotations

from collections.abc import Sequence

from ratchet.components.types import Group, Prompt, Sample, Trajectory


def sampled_groups(tokens: Sequence[Sequence[int]], answers: Sequence[Sequence[Sample]]) -> list[Group]:
    """One group a prompt, given as tokens; log-probs of prompt tokens are 0."""
    return [
        Group(
            Prompt("p", ()),
            tuple(
                Trajectory(
                    (),
                    {"tokens": [*ids, *s.tokens]},
                    [False] * len(ids) + [True] * len(s.tokens),
                    [0.0] * len(ids) + list(s.logprobs),
                )
                for s in samples
            ),
        )
        for ids, samples in zip(tokens, answers, strict=True)
    ]
