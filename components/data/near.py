"""Near duplicates: MinHash finds the candidates, the exact Jaccard similarity of their shingles decides.

MinHash and its banding: Broder 1997; Leskovec, Rajaraman and Ullman, Mining of Massive Datasets, chapter 3. Because
candidates are verified there are no false positives, and the seeds are fixed: same texts, same answer.
"""

from __future__ import annotations

import re
import zlib
from collections.abc import Iterator, Sequence

Shingles = frozenset[str]


def shingles(text: str, size: int = 3) -> Shingles:
    """Runs of `size` words, lower-cased, punctuation ignored; the whole text if it is shorter."""
    words = re.findall(r"\w+", text.lower())
    if len(words) <= size:
        return frozenset([" ".join(words)] if words else [])
    return frozenset(" ".join(words[i:i + size]) for i in range(len(words) - size + 1))


def jaccard(one: Shingles, other: Shingles) -> float:
    """Shared over all; two empty sets share nothing."""
    return len(one & other) / len(one | other) if one or other else 0.0


def near_earlier(sets: Sequence[Shingles], threshold: float, permutations: int = 64) -> Iterator[tuple[int, list[int]]]:
    """For every text its number and the earlier ones at least `threshold` alike, in order; empty texts match nothing."""
    from datasketch import MinHash, MinHashLSH

    rows = max((r for r in range(1, 9) if 1 - (1 - threshold**r) ** (permutations // r) >= 0.999), default=1)
    index = MinHashLSH(num_perm=permutations, params=(permutations // rows, rows))  # misses 1 in 1,000 at the threshold
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
