"""Rewards of text simplification by programs: kept meaning, readability, SARI."""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Sequence

from ratchet.components.piece import each, piece
from ratchet.components.recipes.ranges import Positive
from ratchet.components.types import Prompt, Trajectory

FUNCTION_WORDS = frozenset(["a", "an", "the"])
Grams = Counter[tuple[str, ...]]


def tokens(text: str) -> list[str]:
    """Words and punctuation marks in lower case."""
    return re.findall(r"\w+|[^\w\s]", text.lower())


@piece(writes=("reward.meaning", "reward.meaning.status"), paper="arXiv:2401.15043")
@each
def meaning(prompt: Prompt, trajectory: Trajectory) -> float:
    """Cosine similarity of source and answer as sets of concepts, 0 to 1: concepts of `meta["concepts"]`,
    each a list of words for it, named by the answer, over the root of their number times that of the
    answer's distinct words without articles. It stands for the similarity of sentence embeddings: synonyms
    are equal, and words that have nothing to do with the source cost.
    """
    concepts = prompt.meta.get("concepts")
    if not concepts:
        raise ValueError(f"prompt {prompt.id!r} has no meta['concepts']; use the testbed `simplify`")
    found = {word for word in tokens(trajectory.text) if word[0].isalnum()} - FUNCTION_WORDS
    kept = sum(not found.isdisjoint(words) for words in concepts)
    return kept / math.sqrt(len(concepts) * len(found)) if found else 0.0


def syllables(word: str) -> int:
    """Groups of vowels, without a silent e at the end; at least 1.

    >>> [syllables(word) for word in ("the", "home", "drink", "beverage", "physician", "table")]
    [1, 1, 1, 3, 3, 2]
    """
    groups = len(re.findall(r"[aeiouy]+", word.lower()))
    silent = re.search(r"[^aeiouyl]e$", word.lower()) is not None
    return max(1, groups - silent)


def grade(text: str) -> float:
    """Flesch-Kincaid grade level: 0.39 words/sentence + 11.8 syllables/word - 15.59.

    >>> round(grade("The cat sat on the mat."), 2)
    -1.45
    """
    words = re.findall(r"[A-Za-z]+", text)
    sentences = max(1, len(re.findall(r"[.!?]+", text)))
    if not words:
        return 0.0
    return 0.39 * len(words) / sentences + 11.8 * sum(map(syllables, words)) / len(words) - 15.59


@piece(writes=("reward.readability", "reward.readability.status"), paper="arXiv:2401.15043")
@each
def readability(prompt: Prompt, trajectory: Trajectory, *, highest: Positive = 15.0) -> float | None:
    """1 - grade / highest, between 0 and 1, with the Flesch-Kincaid grade of the answer: the formula that
    earlier work rewards. Skipped for an answer without words.
    """
    if not re.search(r"[A-Za-z]", trajectory.text):
        return None
    return min(1.0, max(0.0, 1 - grade(trajectory.text) / highest))


@piece(writes=("reward.sari", "reward.sari.status"), paper="arXiv:2401.15043", gold=True)
@each
def sari(prompt: Prompt, trajectory: Trajectory) -> float:
    """SARI (Xu et al. 2016), 0 to 1, of the answer given the prompt's last message and the reference
    `prompt.answer`. A prompt without a reference is a failed reward.
    """
    if prompt.answer is None:
        raise ValueError(f"prompt {prompt.id!r} has no answer to compare with")
    return sari_score(prompt.messages[-1]["content"], trajectory.text, [prompt.answer])


def sari_score(source: str, text: str, references: Sequence[str]) -> float:
    """Mean over n-grams of n = 1 to 4 and over F1 of the kept, precision of the deleted and F1 of the added
    ones. Counts of the text and the source are multiplied by the number of references; 0/0 is 1, and the
    recall of what is kept is over counts, as in the implementations in use.

    >>> sari_score("a b c", "a x c", ["a x c"])
    1.0
    """
    before, after, wanted = tokens(source), tokens(text), [tokens(one) for one in references]
    scores = [
        _ngram_scores(_grams(before, n), _grams(after, n), [_grams(one, n) for one in wanted])
        for n in range(1, 5)
    ]
    return sum(map(sum, scores)) / (3 * len(scores))


def _grams(words: Sequence[str], n: int) -> Grams:
    return Counter(zip(*(words[i:] for i in range(n)), strict=False))


def _ngram_scores(source: Grams, text: Grams, references: Sequence[Grams]) -> tuple[float, float, float]:
    """F1 of kept, precision of deleted and F1 of added n-grams of one length."""
    wanted: Grams = sum(references, Counter())
    source, text = (Counter({g: c * len(references) for g, c in one.items()}) for one in (source, text))
    kept, keep = source & text, source & wanted
    good = kept & wanted
    kept_f1 = _f1(_share(good, kept), good.total() / keep.total() if keep else 1.0)
    deleted = source - text
    deletion = _share(deleted - wanted, deleted)
    new, asked = set(text) - set(source), set(wanted) - set(source)
    right = len(new & asked)
    return kept_f1, deletion, _f1(right / len(new) if new else 1.0, right / len(asked) if asked else 1.0)


def _share(part: Grams, whole: Grams) -> float:
    """Mean over the distinct n-grams of `whole` of the share of their count in `part`; 1 without any."""
    return sum(part[g] / c for g, c in whole.items()) / len(whole) if whole else 1.0


def _f1(precision: float, recall: float) -> float:
    return 2 * precision * recall / (precision + recall) if precision + recall else 0.0
