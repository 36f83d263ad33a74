"""Near-duplicate search: MinHash LSH for candidates, verified by exact Jaccard similarity of word shingles.

Broder 1997; Leskovec, Rajaraman and Ullman, Mining of Massive Datasets, chapter 3. Verification excludes
false positives; seeds are fixed, so results are deterministic.
"""

from __future__ import annotations

import re
import zlib
from collections.abc import Iterator, Sequence

from ratchet.components.data.words import spaced

Shingles = frozenset[str]


def shingles(text: str, size: int = 3) -> Shingles:
    """Runs of `size` lower-case words without punctuation; the whole text if it is shorter."""
    words = re.findall(r"\w+", spaced(text.lower()))
    if len(words) <= size:
        return frozenset([" ".join(words)] if words else [])
    return frozenset(" ".join(words[i : i + size]) for i in range(len(words) - size + 1))


def jaccard(one: Shingles, other: Shingles) -> float:
    """Jaccard similarity; 0 for two empty sets."""
    return len(one & other) / len(one | other) if one or other else 0.0


def near_earlier(
    sets: Sequence[Shingles], threshold: float, permutations: int = 64
) -> Iterator[tuple[int, list[int]]]:
    """For each text, its index and the indices of earlier texts with similarity of at least `threshold`, in
    order; empty texts match nothing.
    """
    from datasketch import MinHash, MinHashLSH

    rows = max((r for r in range(1, 9) if 1 - (1 - threshold**r) ** (permutations // r) >= 0.999), default=1)
    index = MinHashLSH(
        num_perm=permutations, params=(permutations // rows, rows)
    )  # misses at most 1 in 1,000 at the threshold
    blank = MinHash(num_perm=permutations, seed=1, hashfunc=zlib.crc32)
    for number, own in enumerate(sets):
        if not own:
            yield number, []
            continue
        signature = blank.copy()
        signature.update_batch([s.encode() for s in sorted(own)])
        found = sorted(int(str(key)) for key in index.query(signature))
        yield number, [j for j in found if jaccard(own, sets[j]) >= threshold]
        index.insert(number, signature)
