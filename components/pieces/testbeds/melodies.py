"""Testbed `melodies`: captions, imperfect melodies for them, and choices of users who have a taste."""

from __future__ import annotations

import random
from collections.abc import Iterator
from itertools import product
from typing import Any

from ratchet.components.errors import DataError
from ratchet.components.piece import piece
from ratchet.components.pieces.rewards.melody import KEYS, LENGTH, PITCHES, SHAPES, liking_of
from ratchet.components.recipes.ranges import Natural, Share

MOODS = (
    *("bright", "calm", "clear", "cold", "dark", "deep", "gentle", "grave", "happy", "light", "lonely"),
    *("loud", "merry", "plain", "proud", "quiet", "sad", "shy", "soft", "warm"),
)
KINDS = (
    *("ballad", "bolero", "carol", "chant", "dance", "gigue", "hymn", "jig", "lullaby", "march", "polka"),
    *("reel", "song", "tango", "tune", "waltz"),
)
PAIRS = ("pairs", "held_out")
"""Splits of pairs."""


def melody(shape: str, key: str, slip: float, rng: random.Random) -> str:
    """An imperfect melody of six to ten notes in ABC notation: it begins with any note of the scale and goes
    on to the next one in the direction of `shape`, turning round at the ends of the two octaves. Every note
    is, with probability `slip`, one of the 14 pitches at random instead, and as often long as short.
    """
    scale = [i for i, pitch in enumerate(PITCHES) if pitch.upper() in KEYS[key]]
    place, way, made = rng.choice(scale), SHAPES[shape], []
    for _ in range(rng.randint(LENGTH - 2, LENGTH + 2)):
        if rng.random() < slip:
            place = rng.randrange(len(PITCHES))
        elif made:
            onward = [i for i in scale if (i - place) * way > 0]
            if not onward:
                way = -way
                onward = [i for i in scale if (i - place) * way > 0]
            place = min(onward, key=lambda i: abs(i - place))
        made.append(PITCHES[place] + rng.choice(("", "2")))
    return "".join(made)


def choice(first: float, second: float, careless: float, rng: random.Random) -> tuple[int, bool]:
    """The melody that a user chooses, 0 or 1, by how much the user likes each, and whether the choice was
    careless: with probability `careless` it is either one at even odds, else the one that is liked more, or
    either one if both are liked equally.
    """
    tossed, coin = rng.random() < careless, rng.randrange(2)
    return (coin if tossed or first == second else int(second > first)), tossed


@piece(paper="arXiv:2402.04229")
def melodies(
    *,
    size: Natural = 400,
    seed: Natural = 0,
    demonstrations: Natural = 400,
    pairs: Natural = 600,
    slip: Share = 0.4,
    careless: Share = 0.2,
) -> Iterator[dict[str, Any]]:
    """Captions such as "A calm rising waltz in C", each in one row, with `meta` {shape, key}; mood and kind
    change nothing. Read the splits with `data.columns: {split: split}`: `demonstrations` rows {id, prompt,
    completion, meta} with a melody such as "CD2EG2A2cde", as imperfect as `slip` makes it (`melody`); `pairs`
    pairs {id, prompt, chosen, rejected, meta} of two such melodies and, in split `held_out`, 100 further
    ones; `size` captions {id, prompt, meta} of split `unlabelled` and 96 of `test`.

    All users like the same (`rewards.melody.liking`): a quarter of it is adherence to the caption, a quarter
    quality, and half the share of notes held for double length, which neither of the two measures. A share
    `careless` of their choices is at random, so that half of these is wrong; `meta["careless"]` says which.

    Shows: whether a reward model of users' choices finds what the rewards that designers wrote down leave
    out, and what following it costs in these. Does not show: music, users who differ, favour the left one or
    choose by degrees, or pairs from the policy that learns.
    """
    counts = {"sft": demonstrations, "pairs": pairs, "held_out": 100, "unlabelled": size, "test": 96}
    every = list(product(MOODS, SHAPES, KINDS, KEYS))
    if sum(counts.values()) > len(every):
        raise DataError(f"melodies: {sum(counts.values())} captions asked for, of {len(every)}; lower a size")
    rng = random.Random(f"melodies {seed}")
    rng.shuffle(every)
    captions = iter(every)
    for split, count in counts.items():
        for number in range(count):
            mood, shape, kind, key = next(captions)
            meta: dict[str, Any] = {"shape": shape, "key": key}
            row: dict[str, Any] = {"id": f"melody-{seed}-{split}-{number}", "split": split, "meta": meta}
            row["prompt"] = [{"role": "user", "content": f"A {mood} {shape} {kind} in {key}"}]
            if split == "sft":
                row["completion"] = _reply(melody(shape, key, slip, rng))
            elif split in PAIRS:
                both = [melody(shape, key, slip, rng) for _ in range(2)]
                first, second = (liking_of(text, shape, key) for text in both)
                best, meta["careless"] = choice(first, second, careless, rng)
                row |= {"chosen": _reply(both[best]), "rejected": _reply(both[1 - best])}
            yield row


def _reply(text: str) -> list[dict[str, str]]:
    return [{"role": "assistant", "content": text}]
