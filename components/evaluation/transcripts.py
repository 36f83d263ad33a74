"""Transcripts of the report with filter data: verifier results, tags, text patterns."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import Any

Talk = Mapping[str, Any]


def prepared(talks: Sequence[Talk]) -> dict[str, Any]:
    """`talks` with the indices of the patterns each fits; `patterns`: (label, count) of patterns that fit
    any; `tags`: name -> {value: count}.

    A talk has `prompt` and `answers`, and may have `verified` {title: passed}, `tags` {name: value} and
    `images` {digest: data URL}.
    """
    wanted = [(label, [bool(fits(talk)) for talk in talks]) for label, fits in _patterns(talks)]
    found = [(label, fitting) for label, fitting in wanted if any(fitting)]
    names = dict.fromkeys(name for talk in talks for name in talk.get("tags") or {})
    return {
        "talks": [
            {
                "human": None,
                "gold": None,
                "verified": None,
                "tags": None,
                "images": None,
                **talk,
                "fits": [i for i, (_, fitting) in enumerate(found) if fitting[row]],
            }
            for row, talk in enumerate(talks)
        ],
        "patterns": [(label, sum(fitting)) for label, fitting in found],
        "tags": {
            name: dict(
                sorted(
                    Counter(
                        str(talk["tags"][name]) for talk in talks if name in (talk.get("tags") or {})
                    ).items()
                )
            )
            for name in names
        },
    }


def _patterns(talks: Sequence[Talk]) -> list[tuple[str, Callable[[Talk], bool]]]:
    """Label -> predicate: the last model against each other one (nearest first), then all models."""
    titles = list(dict.fromkeys(title for talk in talks for title in talk.get("verified") or {}))
    found: list[tuple[str, Callable[[Talk], bool]]] = []
    for other in reversed(titles[:-1]):
        found += [
            (f"{titles[-1]} passes where {other} fails", _fits(titles[-1], other)),
            (f"{titles[-1]} fails where {other} passes", _fits(other, titles[-1])),
        ]
    if len(titles) > 1:
        found += [
            ("all fail", lambda talk: bool(talk.get("verified")) and not any(talk["verified"].values())),
            ("all pass", lambda talk: bool(talk.get("verified")) and all(talk["verified"].values())),
        ]
    elif titles:
        found += [
            (
                f"{titles[0]} {word}",
                lambda talk, passed=passed: (talk.get("verified") or {}).get(titles[0]) is passed,
            )
            for word, passed in (("fails", False), ("passes", True))
        ]
    return found


def _fits(passing: str, failing: str) -> Callable[[Talk], bool]:
    def fits(talk: Talk) -> bool:
        verified = talk.get("verified") or {}
        return verified.get(passing) is True and verified.get(failing) is False

    return fits
