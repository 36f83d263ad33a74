"""Testbed `languages`: small talk in a language of its own words, of which there is little data."""

from __future__ import annotations

import random
import re
from collections.abc import Iterator
from itertools import combinations, product
from typing import Any

from ratchet.components.data.tiny_language import OPENERS, SUBJECTS
from ratchet.components.errors import DataError
from ratchet.components.piece import piece
from ratchet.components.recipes.ranges import Count, Natural, Share

REPLIES = (
    *(
        "i like {} a lot.",
        "{} is fine.",
        "why {}?",
        "i do not know {}.",
        "i love {}.",
        "i hate {}.",
        "yes, {}!",
    ),
    *(
        "no {} today.",
        "{} is nice.",
        "bye to {}.",
        "it is time for {}.",
        "great {} is art.",
        "my friend has {}.",
    ),
    *("we talked about {}.", "well, who knows {}?", "thank you for {}.", "i am glad of {}.", "good work!"),
)
"""Sentences of answers. Seven of them have none of the words that `rewards.sentiment` counts, or as many
positive as negative ones.
"""
WORDS = sorted({word for text in OPENERS + SUBJECTS + REPLIES for word in re.findall("[a-z]+", text)})
"""The vocabulary, every positive and negative word of `rewards.sentiment` included."""
ORDER = random.Random("languages").sample(WORDS, len(WORDS))


def translate(text: str, source: int, target: int) -> str:
    """The text in language `target` instead of `source`, both from 1. Language n replaces every word of
    `ORDER` by the (n - 1)-th after it; language 3 has the words in reverse order besides, between the same
    marks. Other words stay, so that no information is lost: translating back restores the text.
    """
    parts = re.split("([a-z]+)", text)
    places = {word: place for place, word in enumerate(ORDER)}
    words = [
        ORDER[(places[word] + target - source) % len(ORDER)] if word in places else word
        for word in parts[1::2]
    ]
    parts[1::2] = words[::-1] if (source == 3) != (target == 3) else words
    return "".join(parts)


@piece(paper="arXiv:2307.16039")
def languages(
    *, language: Count = 1, share: Share = 1.0, size: Natural = 240, seed: Natural = 0
) -> Iterator[dict[str, Any]]:
    """Small talk of two subjects, translated exactly into one `language` (`translate`), which stands in
    `meta`. Read the splits with `data.columns: {split: split}`: `sft`, rows {id, prompt, completion, meta}
    with two sentences at random of `REPLIES`, and prompts {id, prompt, meta} of `ranked` (whose sampled
    answers get ranked), `held_out`, `unlabelled` and `test`. Of `sft`, `ranked` and `held_out` a language
    has the `share` of 960, 320 and 60 rows; of the others `size` and 96. Each prompt occurs once, and a seed
    has the same prompts in every language, of which a smaller `share` has the first ones.

    Shows: whether learning from a reward model that ranked answers in this language gains over imitation
    alone, and what errors of the ranker or of the translation cost (`rewards.translated`). Does not show:
    grammar, words with several meanings, errors that keep to a word, or what a model knows of a language
    from pre-training: languages from 2 on give other meanings to words that it has seen.
    """
    texts = [
        wording.format(f"{one} and {other}")
        for wording, (one, other) in product(OPENERS, combinations(SUBJECTS, 2))
    ]
    random.Random(f"languages {seed}").shuffle(texts)
    counts = {"sft": 960, "ranked": 320, "held_out": 60, "test": 96, "unlabelled": size}
    if sum(counts.values()) > len(texts):
        raise DataError(
            f"languages: {sum(counts.values())} prompts asked for, of {len(texts)}; lower the size"
        )
    start = 0
    for split, count in counts.items():
        scaled = split in ("sft", "ranked", "held_out")
        for number in range(round(count * share) if scaled else count):
            text = texts[start + number]
            row: dict[str, Any] = {
                "id": f"languages-{seed}-{split}-{number}",
                "split": split,
                "meta": {"language": language},
                "prompt": [{"role": "user", "content": translate(text, 1, language)}],
            }
            if split == "sft":
                row["completion"] = [
                    {"role": "assistant", "content": translate(_reply(text, f"{seed} {number}"), 1, language)}
                ]
            yield row
        start += count


def _reply(prompt: str, seed: str) -> str:
    """Two different sentences on one subject of the prompt each."""
    rng = random.Random(f"languages {seed}")
    named = [subject for subject in SUBJECTS if re.search(rf"\b{subject}\b", prompt)]
    return " ".join(sentence.format(rng.choice(named)) for sentence in rng.sample(REPLIES, 2))
