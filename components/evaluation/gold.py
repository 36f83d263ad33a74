"""Gold measure: a Bradley-Terry model on sentence embeddings of another backbone, fitted to independent human
preferences.

A turn has the features x = [sentence embedding, its product with the embedding of the previous turn, their
cosine, a few countable traits], standardised. A conversation is the mean over the turns of both speakers
(multiple-instance: raters rated the whole); its score is w·mean(x). With a fixed context, replies are ranked
by their own w·x, so single replies can be scored, and the same reply scores differently after another prompt.
Ratings are a weak signal: the certificate passes only if the lower bound of held-out accuracy is above
chance, and without a passed certificate the measure is not used.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from ratchet.components.errors import ContractError, DataError, SourceError
from ratchet.components.evaluation.certificate import CHANCE, shortfall
from ratchet.components.evaluation.certificate_statistics import (
    accuracy,
    calibration,
    conversations_of,
    independent,
    length_bias,
    prompts_of,
)
from ratchet.components.evaluation.encoder import Encoder, Turn
from ratchet.components.evaluation.linear import bradley_terry, choose_penalty, topics_of
from ratchet.components.types import Group, Message

PENALTIES = (0.1, 0.3, 1.0, 3.0, 10.0, 30.0, 100.0)
FILE = "gold.json"

WORD = re.compile(r"[a-z']+")
PATTERNS = {
    "asks": re.compile(r"\?"),
    "exclaims": re.compile(r"!"),
    "says I": re.compile(r"\b(i|i'm|im|my|me|i've|i'd)\b"),
    "says you": re.compile(r"\b(you|your|you're|u)\b"),
    "laughs": re.compile(r"\b(a?ha(ha)+h?|lol|lmao|rofl|hehe)\b"),
    "reasons": re.compile(r"\b(because|but|so|if|would|could|think|maybe)\b"),
    "has a number": re.compile(r"\d"),
    "ends a sentence": re.compile(r"[.!?]$"),
}
TRAITS = ("log words", "distinct words", "word length", *PATTERNS)


class GoldMeasure:
    """A fitted gold measure loaded from disk."""

    def __init__(self, encoder: Encoder, fitted: Mapping[str, Any]) -> None:
        self.encoder = encoder
        self.certificate: dict[str, Any] = fitted["certificate"]
        self._centre, self._scale, self._weights = (
            np.asarray(fitted[k]) for k in ("centre", "scale", "weights")
        )
        self._length = fitted["length"]

    @classmethod
    def load(cls, path: Path, encoder: Path, *, threads: int | None = None) -> GoldMeasure:
        """`SourceError` if there is none, `ContractError` if it was fitted on another encoder."""
        file = Path(path) / FILE
        try:
            fitted = json.loads(file.read_text())
        except (OSError, ValueError) as error:
            raise SourceError(
                f"{file}: cannot read the gold measure ({error}); create it with the gold stage"
            ) from error
        loaded = Encoder(encoder, threads=threads)
        if loaded.digest != fitted["encoder"]:
            raise ContractError(
                f"{file}: the gold measure was fitted on encoder {fitted['encoder'][:12]}, but {encoder} "
                f"is {loaded.digest[:12]}. "
                "Use the same encoder or refit the measure"
            )
        return cls(loaded, fitted)

    def score(
        self, conversations: Sequence[Sequence[Message]], *, length_controlled: bool = False
    ) -> list[float]:
        """One score per conversation (prompt messages and reply), on the logit scale of human preference.

        `length_controlled` subtracts, turn by turn, the part of the score predicted by log length.
        """
        spoken = [_turns(messages) for messages in conversations]
        flat = self._turn_scores([turn for turns in spoken for turn in turns], length_controlled)
        ends = np.cumsum([len(turns) for turns in spoken])
        return [float(flat[end - len(turns) : end].mean()) for end, turns in zip(ends, spoken, strict=True)]

    def score_replies(
        self, conversations: Sequence[Sequence[Message]], *, length_controlled: bool = False
    ) -> list[float]:
        """Score of the last turn only: comparable between contexts of different length, same ranking as
        `score` within one context.
        """
        return [
            float(s)
            for s in self._turn_scores(
                [_turns(messages)[-1] for messages in conversations], length_controlled
            )
        ]

    def _turn_scores(self, turns: Sequence[Turn], length_controlled: bool) -> np.ndarray:
        x = (features(turns, self.encoder) - self._centre) / self._scale
        scores = x @ self._weights
        if length_controlled:
            scores = scores - self._length["slope"] * (_log_words(turns) - self._length["mean"])
        return scores


def train_gold(
    pairs: Sequence[Group],
    validation: Sequence[Group],
    encoder_path: Path,
    out: Path,
    *,
    threads: int | None = None,
) -> dict[str, Any]:
    """Fit the measure on human pairs (chosen first), certify it on `validation`, save `out/gold.json`, and
    return the certificate.

    The ridge penalty is chosen by cross-validation over topics (prompts), then all pairs are fitted.
    Deterministic. `DataError` without pairs or if a group is not a pair.
    """
    for name, groups in (("gold", pairs), ("gold validation", validation)):
        wrong = next((g for g in groups if len(g.trajectories) != 2), None)
        if not groups or wrong:
            what = (
                f"{wrong.prompt.id!r} has {len(wrong.trajectories)} trajectories"
                if wrong
                else "there are none"
            )
            raise DataError(
                f"the {name} split must contain preference pairs (groups of two, chosen first); {what}"
            )
    encoder = Encoder(encoder_path, threads=threads)
    turns = sorted({turn for g in pairs for side in _sides(g) for turn in side})
    raw = features(turns, encoder)
    centre, scale = raw.mean(0), np.maximum(raw.std(0), 1e-3)
    rows = dict(zip(turns, (raw - centre) / scale, strict=True))
    bags = [[np.mean([rows[t] for t in side], axis=0) for side in _sides(g)] for g in pairs]
    differences = np.array([chosen - rejected for chosen, rejected in bags])
    topics = topics_of(pairs)
    penalty, validated = choose_penalty(differences, topics, PENALTIES)
    weights = bradley_terry(differences, penalty)
    lengths = _log_words(turns)
    spread = float(lengths.var())
    slope = (
        float(np.cov(np.array([rows[t] for t in turns]) @ weights, lengths, bias=True)[0, 1] / spread)
        if spread
        else 0.0
    )
    fitted: dict[str, Any] = {
        "encoder": encoder.digest,
        "traits": TRAITS,
        "centre": centre.tolist(),
        "scale": scale.tolist(),
        "weights": weights.tolist(),
        "length": {"slope": slope, "mean": float(lengths.mean())},
        "certificate": {},
    }
    measure = GoldMeasure(encoder, fitted)
    fitted["certificate"] = {
        "penalty": penalty,
        "cross_validated": validated,
        "pairs_fitted": len(pairs),
        "topics_fitted": len(np.unique(topics)),
        **examine(measure, validation),
    }
    Path(out).mkdir(parents=True, exist_ok=True)
    (Path(out) / FILE).write_text(json.dumps(fitted))
    return fitted["certificate"]


def examine(measure: GoldMeasure, pairs: Sequence[Group]) -> dict[str, Any]:
    """Held-out accuracy (raw, length-controlled, at matched length) with intervals; calibration; length bias.

    As in a reward model's certificate, intervals count at most half as many trials as there are distinct
    conversations, and fewer where the pairs of a prompt are alike.
    """
    sides = [[[*g.prompt.messages, *t.messages] for t in g.trajectories] for g in pairs]
    flat = [conversation for pair in sides for conversation in pair]
    raw = np.array(measure.score(flat)).reshape(-1, 2)
    controlled = np.array(measure.score(flat, length_controlled=True)).reshape(-1, 2)
    lengths = np.array(
        [sum(len(text.split()) for _, text in _turns(conversation)) for conversation in flat], float
    ).reshape(-1, 2)
    distinct = conversations_of(pairs)
    most, prompts = independent(len(pairs), distinct), prompts_of(pairs)
    deltas = raw[:, 0] - raw[:, 1]
    error, bins = calibration(deltas)
    gaps = np.log(np.maximum(lengths[:, 0], 1) / np.maximum(lengths[:, 1], 1))
    near = np.flatnonzero(np.abs(gaps) < 0.2).tolist()
    right = accuracy(deltas, most, prompts)
    reasons = shortfall("held-out accuracy", right, CHANCE, "chance")
    return {
        "passed": not reasons,
        "reasons": reasons,
        "pairs": len(pairs),
        "conversations": distinct,
        "accuracy": right,
        "length_controlled": accuracy(controlled[:, 0] - controlled[:, 1], most, prompts),
        "matched_length": accuracy(deltas[near], most, [prompts[i] for i in near]) if len(near) else None,
        "calibration_error": error,
        "reliability": bins,
        "length": length_bias(deltas, lengths, most, prompts),
    }


def features(turns: Sequence[Turn], encoder: Encoder) -> np.ndarray:
    """(N, 2 D + 1 + traits): embedding of each turn, its product with that of the previous turn (zero for the
    first) and their cosine, scaled to entries of about one, and the traits.
    """
    vectors = encoder([text for _, text in turns])
    before = encoder([before for before, _ in turns]) * np.array([[bool(before)] for before, _ in turns])
    together, size = vectors * before, vectors.shape[1]
    return np.hstack(
        [
            vectors * size**0.5,
            together * size,
            together.sum(1, keepdims=True),
            np.array([_traits(text) for _, text in turns], dtype=float),
        ]
    )


def _turns(messages: Sequence[Message]) -> list[Turn]:
    texts = [m["content"].strip() for m in messages if m["role"] in ("user", "assistant")]
    if not texts:
        raise DataError(
            "the gold measure needs a conversation with at least one user or assistant turn, got none"
        )
    return list(zip(["", *texts[:-1]], texts, strict=True))


def _sides(group: Group) -> list[list[Turn]]:
    return [_turns([*group.prompt.messages, *t.messages]) for t in group.trajectories]


def _log_words(turns: Sequence[Turn]) -> np.ndarray:
    return np.log1p([len(text.split()) for _, text in turns])


def _traits(text: str) -> list[float]:
    lower = text.lower()
    found = WORD.findall(lower)
    n = max(len(found), 1)
    return [
        float(np.log1p(len(text.split()))),
        len(set(found)) / n,
        sum(map(len, found)) / n,
        *(float(bool(pattern.search(lower))) for pattern in PATTERNS.values()),
    ]
