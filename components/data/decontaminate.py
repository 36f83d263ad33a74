"""Decontamination: drops training records that contain evaluation questions.

A training record is contaminated if one of its messages shares `words` consecutive words (13, as in GPT-3,
arXiv:2005.14165, appendix C) with a question of a held-out record, or if their prompts are equal. Questions
are compared, not answers (as in Tulu 3, arXiv:2411.15124). Word runs that occur in more than one in a hundred
held-out prompts, and in more than one prompt, are task boilerplate ("Answer the following question step by
step ...") and ignored. Letter case and punctuation are ignored.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence

from ratchet.components.data.published import held_out
from ratchet.components.data.records import Conversation, Rejected
from ratchet.components.data.statistics import GREETING, normalised
from ratchet.components.data.words import spaced, words_of

COMMON = 0.01


def decontaminate(
    parts: Mapping[str, Sequence[Conversation]], benchmarks: Sequence[Conversation], words: int
) -> tuple[dict[str, list[Conversation]], list[Rejected]]:
    """The splits without contaminated records, and those records. Splits of the kind `evaluate` are compared
    with the benchmarks, `_validation` splits with both, training splits with all three.
    """
    order = {name: 2 if not held_out(name) else 1 if name.endswith("_validation") else 0 for name in parts}
    known, questions, dropped = _Questions(words), [("a benchmark", benchmarks)], list[Rejected]()
    kept: dict[str, list[Conversation]] = {}
    for level in range(3):
        for name, records in questions:
            known.add(name, records)
        questions = []
        for name in (name for name in parts if order[name] == level):
            found = [(record, known.of(record)) for record in parts[name]]
            kept[name] = [record for record, why in found if not why]
            dropped += [
                Rejected(record.id, f"contaminated, {why[0]}", record.as_json(), copy=True, detail=why[1])
                for record, why in found
                if why
            ]
            questions.append((name, kept[name]))
    return {name: kept[name] for name in parts}, dropped


Why = tuple[str, str]
"""Why a record is contaminated, and the id of the held-out record."""


class _Questions:
    """Prompts and word runs of held-out records. A fixed prompt is the same on every topic, the first
    turn of a conversation ("Hi, how are you?") is not.
    """

    def __init__(self, words: int) -> None:
        self._words = words
        self._prompts: dict[str, Why] = {}
        self._turns: dict[tuple[str | None, str], Why] = {}
        self._runs: dict[int, Why] = {}

    def add(self, name: str, records: Sequence[Conversation]) -> None:
        asked = {tuple(map(normalised, _question_texts(record))): record for record in records}
        runs = {
            key: {run for text in _question_texts(record) for run in self._runs_of(text)}
            for key, record in asked.items()
        }
        times = Counter(run for found in runs.values() for run in found)
        most = max(1, COMMON * len(asked))
        for key, record in asked.items():
            for run in runs[key]:
                if times[run] <= most:
                    self._runs.setdefault(run, (f"{self._words} words of a question in {name}", record.id))
        for record in records:
            if prompt := _prompt(record):
                why = f"the same prompt as in {name}", record.id
                if record.opening:
                    self._prompts.setdefault(prompt, why)
                else:
                    self._turns.setdefault((record.topic, prompt), why)

    def of(self, record: Conversation) -> Why | None:
        """Why a record is contaminated; None if it is not."""
        if not (self._prompts or self._turns or self._runs):
            return None
        texts = [
            m["content"]
            for m in (*record.messages, *record.rejected[record.opening :])
            if m["role"] != "system"
        ]
        prompt = _prompt(record)
        return (
            self._prompts.get(prompt)
            or self._turns.get((record.topic, prompt))
            or next(
                (self._runs[run] for text in texts for run in self._runs_of(text) if run in self._runs), None
            )
        )

    def _runs_of(self, text: str) -> Iterator[int]:
        words = re.findall(r"\w+", spaced(text.lower()))
        return map(hash, zip(*(words[i:] for i in range(self._words)), strict=False))


def _question_texts(record: Conversation) -> list[str]:
    """Question texts of a held-out record: the non-assistant turns of its prompt, or of the conversation."""
    return [
        m["content"]
        for m in record.messages[: record.opening or None]
        if m["role"] not in ("system", "assistant")
    ]


def _prompt(record: Conversation) -> str:
    """Normalised prompt, without system messages. For a conversation without a fixed prompt, its first user
    turn if that is long enough.
    """
    question_messages = record.messages[: record.opening] or next(
        ([m] for m in record.messages if m["role"] == "user"), []
    )
    text = normalised("\n".join(m["content"] for m in question_messages if m["role"] != "system"))
    return text if record.opening or len(words_of(text)) >= GREETING else ""
