"""Preference pairs that teach a reward model what no prompt asked for is worth."""

from __future__ import annotations

import dataclasses
import hashlib
from collections.abc import Sequence
from itertools import groupby

from components.piece import build, piece
from components.rewards.instructions import FORMS, in_form
from components.selectors.contrast import bare
from components.selectors.pairs import pair
from components.types import Context, Group


@piece(writes=("margin",), paper="arXiv:2309.16155")
def unasked_form(groups: Sequence[Group], ctx: Context, *, reward: str = "reward.instructions", verifier: str = "rewards.instructions") -> list[Group]:
    """The pairs, and one more for each prompt, of kind `form`: the first chosen answer against itself in a form that only other
    instructions ask for (`rewards.instructions.FORMS`), which `verifier` must fail. Where a form is asked for it is always in the chosen
    answer; a reward model that saw no such pair pays for it everywhere. Which form depends on seed and prompt id alone.
    """
    rescore = build("annotate", {"name": verifier})
    made: list[Group] = []
    for _, members in groupby(groups, key=lambda group: group.prompt.id):
        pairs = list(members)
        made += pairs
        prompt, chosen = pairs[0].prompt, bare(pairs[0].trajectories[0])
        form = min(FORMS, key=lambda name: hashlib.sha256(f"{ctx.seed}/{prompt.id}/{name}".encode()).digest())
        worse = dataclasses.replace(chosen, messages=({**chosen.messages[-1], "content": in_form(chosen.text.strip(), form)},))
        whole = Group(prompt, (chosen, worse))
        ((own, other),) = rescore([whole], ctx)[reward]
        if own is None or other is None or not own > other:
            ctx.counts["prompts whose answer may have the form"] += 1
            continue
        for one in pair(whole.extended({reward: [own, other]}), 0, 1, [own, other], ctx, reward):
            meta = {**one.prompt.meta, "pair": {**one.prompt.meta["pair"], "kind": "form"}}
            made.append(Group(dataclasses.replace(one.prompt, meta=meta), one.trajectories, one.columns))
            ctx.counts["pairs of kind form"] += 1
    return made
