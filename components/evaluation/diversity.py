"""Diversity of a set of answers: distinct n-grams, self-BLEU, embedding spread."""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Sequence

import numpy as np

from ratchet.components.evaluation.bootstrap import Interval

WORD = re.compile(r"\w+(?:['’]\w+)*|[^\w\s]")


def words(text: str) -> list[str]:
    """Lower-case words and punctuation marks."""
    return WORD.findall(text.lower())


def repetition(text: str) -> float:
    """Share of words and punctuation marks that occurred earlier in the text; 0 if all are distinct."""
    found = words(text)
    return 1 - len(set(found)) / len(found) if found else 0.0


def distinct_n(texts: Sequence[str], n: int) -> float:
    """Distinct n-grams as a share of all n-grams of the set (Li et al., 2016, arXiv 1510.03055); 0 without
    n-grams.

    It falls with the amount of text: compare sets of similar size only.
    """
    grams = [gram for text in texts for gram in _ngrams(words(text), n)]
    return len(set(grams)) / len(grams) if grams else 0.0


def distinct_n_ratio(texts: Sequence[str], others: Sequence[str], n: int) -> float:
    """`distinct_n` of `texts` over that of `others`, both on as many n-grams as the smaller set has, since
    the measure falls with size. NaN if either has none.
    """
    sets = [[gram for text in some for gram in _ngrams(words(text), n)] for some in (texts, others)]
    most = min(map(len, sets))
    ours, theirs = (len(set(grams[:most])) for grams in sets)
    return ours / theirs if theirs else math.nan


def distinct_n_interval(
    texts: Sequence[Sequence[str]],
    others: Sequence[Sequence[str]],
    n: int,
    *,
    level: float = 0.95,
    halves: int = 200,
    seed: int = 0,
) -> Interval:
    """`distinct_n_ratio` of two arms on the same prompts (one list of answers per prompt), with an interval
    over prompts.

    The bootstrap does not apply (a prompt drawn twice would count as repetition). Delete-half jackknife (Shao
    and Wu, 1989): the standard deviation of the ratio over random halves of the prompts is its standard
    error.
    """
    from scipy.stats import norm

    rng, total = np.random.default_rng(seed), len(texts)
    mean = distinct_n_ratio(_flat(texts), _flat(others), n)
    drawn = [np.sort(rng.choice(total, max(1, total // 2), replace=False)) for _ in range(halves)]
    spread = float(
        np.std(
            [
                distinct_n_ratio(_flat([texts[i] for i in half]), _flat([others[i] for i in half]), n)  # pyright: ignore[reportArgumentType]
                for half in drawn
            ]
        )
    )
    reach = float(norm.ppf((1 + level) / 2)) * spread
    return Interval(mean=mean, low=mean - reach, high=mean + reach, n=total)


def _flat(rows: Sequence[Sequence[str]]) -> list[str]:
    return [text for row in rows for text in row]


def self_bleu(texts: Sequence[str], *, n: int = 4, limit: int = 200, seed: int = 0) -> float:
    """Mean BLEU of each answer against all others (Zhu et al., 2018, arXiv 1802.01886), in 0..1; high means
    uniform.

    Equal to the mean of sacrebleu's and nltk's sentence BLEU with add-one smoothing above unigrams. These
    read all other answers again for each: 200 answers take 0.02 s here and some 2 s there.

    Sets larger than `limit` are sampled (seeded), since the cost is quadratic. Empty answers are ignored;
    fewer than two give 0.
    """
    rows = [row for row in map(words, texts) if row]
    if len(rows) > limit:
        rows = [rows[i] for i in np.random.default_rng(seed).choice(len(rows), limit, replace=False)]
    if len(rows) < 2:
        return 0.0
    tables = [[Counter(_ngrams(row, k)) for k in range(1, n + 1)] for row in rows]
    tops = [_two_largest([table[k] for table in tables]) for k in range(n)]
    lengths = [len(row) for row in rows]
    return float(np.mean([_bleu(i, tables[i], tops, lengths) for i in range(len(rows))]))


def cosine_spread(vectors: np.ndarray) -> float:
    """Mean pairwise cosine distance of the rows of (N,D): 0 for identical rows, about 1 for unrelated ones; 0
    for N < 2.
    """
    rows = np.asarray(vectors, dtype=float)
    if len(rows) < 2:
        return 0.0
    rows = rows / np.maximum(np.linalg.norm(rows, axis=1, keepdims=True), 1e-12)
    n = len(rows)
    return float(1 - ((rows.sum(0) ** 2).sum() - (rows**2).sum()) / (n * (n - 1)))


def _ngrams(row: Sequence[str], n: int) -> list[tuple[str, ...]]:
    return list(zip(*(row[i:] for i in range(n)), strict=False))


def _two_largest(tables: Sequence[Counter]) -> dict[tuple[str, ...], tuple[int, int, int]]:
    """Per n-gram: the largest count in an answer, the index of that answer, and the largest count among the
    others.
    """
    best: dict[tuple[str, ...], tuple[int, int, int]] = {}
    for i, table in enumerate(tables):
        for gram, count in table.items():
            first, owner, second = best.get(gram, (0, -1, 0))
            best[gram] = (count, i, first) if count > first else (first, owner, max(second, count))
    return best


def _bleu(i: int, own: Sequence[Counter], tops: Sequence[dict], lengths: Sequence[int]) -> float:
    """BLEU (Papineni et al., 2002) with add-one smoothing above unigrams (Lin and Och, 2004), needed for
    short texts.
    """
    logs = 0.0
    for k, table in enumerate(own):
        clipped = sum(
            min(count, tops[k][gram][2] if tops[k][gram][1] == i else tops[k][gram][0])
            for gram, count in table.items()
        )
        add = 1 if k else 0
        if clipped + add == 0:
            return 0.0
        logs += math.log((clipped + add) / (sum(table.values()) + add)) / len(own)
    others = [length for j, length in enumerate(lengths) if j != i]
    closest = min(others, key=lambda length: (abs(length - lengths[i]), length))
    return math.exp(logs + min(0.0, 1 - closest / lengths[i]))
