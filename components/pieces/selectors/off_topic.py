"""Selector `off_topic`: preference pairs that teach a reward model and a policy to read the question."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from itertools import groupby

from ratchet.components.piece import piece
from ratchet.components.pieces.selectors.pairs import bare, drawn, of_kind, pair
from ratchet.components.recipes.ranges import Share
from ratchet.components.types import Context, Group, Trajectory


@piece(reads=("margin",), writes=("margin",), makes="pairs", paper="arXiv:2309.16155")
def off_topic(
    groups: Sequence[Group], ctx: Context, *, reward: str = "reward.instructions", share: Share = 1.0
) -> list[Group]:
    """Adds a pair of kind `off_topic` to a `share` of the prompts: the first chosen answer against an answer
    that was chosen for another question (`meta["question"]`), with an instruction of the same family if there
    is one, so that only the question distinguishes the two. Otherwise a policy optimised against a verifier
    learns answers that obey and fit any question ('{"type": "json"}'). The choice depends on seed and prompt
    ids only.
    """
    prompts = [list(members) for _, members in groupby(groups, key=lambda group: group.prompt.id)]
    chosen: dict[str, list[tuple[str, Trajectory]]] = defaultdict(list)
    for first, *_ in prompts:
        entry = (_question(first), bare(first.trajectories[0]))
        chosen[first.prompt.meta["instruction"]["family"]].append(entry)
    everything = [entry for entries in chosen.values() for entry in entries]
    ids = [members[0].prompt.id for members in prompts]
    asked = set(drawn(ids, str(ctx.seed))[: round(share * len(ids))])
    made: list[Group] = []
    for pairs in prompts:
        made += pairs
        if pairs[0].prompt.id not in asked:
            continue
        first, own = pairs[0], _question(pairs[0])
        family = chosen[first.prompt.meta["instruction"]["family"]]
        others = [t for question, t in family if question != own] or [
            t for question, t in everything if question != own
        ]
        if others:
            index = drawn(range(len(others)), f"{ctx.seed}/{first.prompt.id}")[0]
            found = pair(
                Group(first.prompt, (bare(first.trajectories[0]), others[index])),
                0,
                1,
                [1.0, 0.0],
                ctx,
                reward,
            )
            made += [of_kind(one, "off_topic") for one in found]
            ctx.counts["pairs of kind off_topic"] += len(found)
    return made


def _question(group: Group) -> str:
    return str(group.prompt.meta.get("question"))
