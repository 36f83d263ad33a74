"""Preference pairs that teach a reward model what no prompt asked for is worth."""

from __future__ import annotations

import dataclasses
import hashlib
import math
from collections.abc import Iterable, Sequence
from itertools import groupby
from typing import TypeVar

from ratchet.components.data.instructions.families import FAMILIES, instruction_text
from ratchet.components.piece import build, piece
from ratchet.components.rewards.instructions import FORMS, in_form
from ratchet.components.selectors.contrast import bare
from ratchet.components.selectors.pairs import pair
from ratchet.components.types import Context, Group, Prompt

T = TypeVar("T")


@piece(reads=("margin",), writes=("margin",), makes="pairs", paper="arXiv:2309.16155")
def unasked_form(groups: Sequence[Group], ctx: Context, *, reward: str = "reward.instructions", verifier: str = "rewards.instructions") -> list[Group]:
    """The pairs, and one more for each prompt, of kind `form`: the first chosen answer against itself in a form that only other
    instructions ask for (`rewards.instructions.FORMS`) or behind its own instruction in some wording, which `verifier` must fail. Without them a reward model sees a form almost only
    in chosen answers, where it was asked for, and rewards it everywhere. Which form depends on seed and prompt id alone.
    """
    rescore = build("annotate", {"name": verifier})
    made: list[Group] = []
    for _, members in groupby(groups, key=lambda group: group.prompt.id):
        pairs = list(members)
        made += pairs
        prompt, chosen = pairs[0].prompt, bare(pairs[0].trajectories[0])
        form, *_ = drawn(("instruction", *FORMS), f"{ctx.seed}/{prompt.id}")
        text = f"{restated(prompt, ctx.seed)} {chosen.text.strip()}" if form == "instruction" else in_form(chosen.text.strip(), form)
        worse = dataclasses.replace(chosen, messages=({**chosen.messages[-1], "content": text},))
        whole = Group(prompt, (chosen, worse))
        values = [math.nan if value is None else value for value in rescore([whole], ctx)[reward][0]]
        for one in pair(whole.extended({reward: values}), 0, 1, values, ctx, reward):  # none where the verifier lets the form pass
            meta = {**one.prompt.meta, "pair": {**one.prompt.meta["pair"], "kind": "form"}}
            made.append(Group(dataclasses.replace(one.prompt, meta=meta), one.trajectories, one.columns))
            ctx.counts["pairs of kind form"] += 1
    return made


def restated(prompt: Prompt, seed: int) -> str:
    """The prompt's instruction in one of its family's wordings."""
    instruction = prompt.meta["instruction"]
    family = instruction["family"]
    wording, *_ = drawn(range(len(FAMILIES[family].wordings)), f"{seed}/{prompt.id}")
    return instruction_text(family, wording, instruction["params"])


def drawn(values: Iterable[T], key: str) -> list[T]:
    """The values in an order that follows from `key` alone."""
    return sorted(values, key=lambda value: hashlib.sha256(f"{key}/{value}".encode()).digest())
