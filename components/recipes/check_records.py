"""Curation of a recipe's local data before anything starts, as far as that is possible without a tokenizer:
what is read, what the splits get, what is lost.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import islice
from typing import Any

from ratchet.components.errors import DataError, GateError, RecipeError
from ratchet.components.recipes import check_warnings
from ratchet.components.recipes.changed_rounds import with_rounds
from ratchet.components.recipes.check_columns import unread_columns
from ratchet.components.recipes.check_counts import check_counts
from ratchet.components.recipes.schema import Online, Recipe
from ratchet.components.recipes.sections import Data
from ratchet.components.recipes.splits import PROMPT_SECTIONS, kind_of
from ratchet.components.types import Group, Message

HEAD, MORE = 500, 4000
"""Rows of each file checked first, then where these fail; all rows are read only if both fail, for an exact
message.
"""


LONGEST = 400
"""Characters of a message that `Example.lines` prints."""


@dataclass(frozen=True)
class Example:
    """A group of a split as the recipe's sections get it, before tokenisation. `answers` are chosen and
    rejected in a split of pairs, else one or none; `trained`: whether their assistant messages are in a loss,
    as in SFT and in pairs. In a split of prompts they are not.
    """

    messages: Sequence[Message]
    answers: Sequence[Sequence[Message]]
    trained: bool
    reference: str | None = None
    columns: Mapping[str, Sequence[Any]] = field(
        default_factory=dict
    )  # per answer, such as ratings and labels

    def lines(self) -> list[str]:
        """A line per message; `>` marks what is in a loss, with two answers `+` the chosen and `-` the
        rejected one.
        """
        marks = ("+", "-") if len(self.answers) == 2 else (">",) * len(self.answers)
        lines = [self._line(" ", message) for message in self.messages]
        for mark, answer in zip(marks, self.answers, strict=True):
            lines += [
                self._line(mark if self.trained and message["role"] == "assistant" else " ", message)
                for message in answer
            ]
        if self.reference is not None:
            lines.append(self._line(" ", {"role": "reference", "content": self.reference}))  # pyright: ignore[reportArgumentType]
        return [
            *lines,
            *(f"  {name}: {', '.join(map(str, values))}" for name, values in self.columns.items()),
        ]

    def _line(self, mark: str, message: Message) -> str:
        text = " ".join(str(message["content"]).split())
        more = f" … ({len(text):,} characters)" if len(text) > LONGEST else ""
        return f"{mark} {message['role']}: {text[:LONGEST]}{more}"


@dataclass(frozen=True)
class Checked:
    """What is known before a run. Numbers are of local data only, of the first `head` rows of each file if
    not `whole`; lengths in tokens are not known yet.
    """

    warnings: Sequence[str] = ()
    whole: bool = True
    layouts: Mapping[str, int] = field(default_factory=dict)  # rows by the parser that read them
    groups: Mapping[str, int] = field(default_factory=dict)  # by split
    unread: Sequence[str] = ()  # columns of which no parser asked for the value
    left_out: Mapping[str, int] = field(default_factory=dict)  # records by step and reason
    examples: Mapping[str, Sequence[Example]] = field(
        default_factory=dict
    )  # the first groups of each split, as asked for
    head: int = HEAD

    def lines(self) -> list[str]:
        """For people: at most a few lines."""
        lines = []
        if self.groups:
            read = ", ".join(f"{count:,} rows {what}" for what, count in self.layouts.items())
            lines += [
                f"read: {read or 'by the parser of the recipe'}"
                + ("" if self.whole else f" (the first {self.head:,} of each file)"),
                "groups: "
                + ", ".join(f"{name} {count:,}" for name, count in self.groups.items())
                + " (lengths in tokens are checked in the run)",
            ]
        if self.unread:
            lines.append(f"columns that nothing reads: {', '.join(self.unread)}")
        if self.left_out:
            worst = Counter(self.left_out).most_common()
            more = sum(count for _, count in worst[3:])
            lines.append(
                "left out: "
                + "; ".join(f"{why} {count:,}" for why, count in worst[:3])
                + (f"; for other reasons {more:,}" if more else "")
            )
        for name, examples in self.examples.items():
            for i, example in enumerate(examples, 1):
                lines += [
                    f"{name}, {i} of {self.groups[name]:,}:",
                    *("  " + line for line in example.lines()),
                ]
        return [*lines, *(f"warning: {warning}" for warning in self.warnings)]


def check_records(recipe: Recipe, read: set[str], show: int = 0) -> Checked:
    """Curate the local data of a recipe whose sections read the splits `read`: the errors of curation, of
    wrong reference answers and of splits that are too small. `show`: examples of each split.
    """
    from ratchet.components.data.curate import curate_records
    from ratchet.components.data.files import read_rows
    from ratchet.components.data.mixture import read_sources
    from ratchet.components.data.published import published
    from ratchet.components.data.sources import local
    from ratchet.components.data.verifiers import check_gold, verifiers

    data = recipe.data
    paths = [local(source.source) for source in data.every_source]
    for most in (HEAD, MORE, None):
        try:
            parsed = read_sources(data, paths, data.seed, most)
            made = curate_records(data, parsed, lambda messages: 0, data.seed, read)
            check_gold(
                [
                    group
                    for name, groups in made.splits.items()
                    if kind_of(name) in PROMPT_SECTIONS
                    for group in groups
                ],
                verifiers(recipe),
            )
            _check_answers(recipe, made.splits)
            rows = len(parsed.kept) + len(parsed.dropped)
            if most in (HEAD, None) or rows < most:  # of more rows, most may be enough
                check_counts(recipe, made.splits)
            warnings = _sizes(data, made.splits, rows, sure=most is None)
        except (DataError, RecipeError, GateError):
            if most is None:
                raise
            continue
        files = [
            file
            for path, source in zip(paths, data.every_source, strict=True)
            for _, file in published(path, source.config, source.splits)
        ]
        whole = (
            most is None
            or rows < most
            or not any(True for file in files for _ in islice(read_rows(file), most, most + 1))
        )
        left_out = Counter(
            {
                f"{step['step']}: {reason}": count
                for step in made.steps
                for reason, count in step["dropped"].items()
            }
        )
        warnings += [
            *check_warnings.markup(made.splits),
            *check_warnings.equal_labels(recipe, made.splits),
            *check_warnings.one_conversation(made.splits),
            *check_warnings.repeated_prompts(made.splits),
        ]
        warnings += unread(
            {name: len(part) for name, part in made.parts.items()},
            read,
            "{:,} records" if whole else f"{{:,}} of the first {len(parsed.kept):,} records",
        )
        return Checked(
            [*made.warnings, *warnings],
            whole,
            _layouts(parsed.changed),
            {name: len(groups) for name, groups in made.splits.items()},
            unread_columns(zip(paths, data.every_source, strict=True), HEAD),
            left_out,
            {
                name: [_example(name, group) for group in groups[:show]]
                for name, groups in made.splits.items()
                if show
            },
            most or HEAD,
        )
    raise AssertionError("not reached: the second pass returns or raises")


def _example(split: str, group: Group) -> Example:
    kind, answers = kind_of(split), [trajectory.messages for trajectory in group.trajectories]
    return Example(
        group.prompt.messages,
        answers,
        kind not in PROMPT_SECTIONS,
        group.prompt.answer if kind in PROMPT_SECTIONS else None,
        dict(group.columns),
    )


def unread(sizes: Mapping[str, float], read: set[str], what: str) -> list[str]:
    """A warning if splits get records that no section reads. Their data would be lost without a word."""
    lost = {name: size for name, size in sizes.items() if name not in read}
    if not lost:
        return []
    share = sum(lost.values()) / max(sum(sizes.values()), 1e-9)
    nulls = ", ".join(f"{name}: null" for name in lost)
    return [
        "data.splits: no section reads "
        f"{' and '.join(f'{name!r} ({what.format(size)})' for name, size in lost.items())}, {share:.0%} "
        "of the data; "
        f"write `data: {{splits: {{{nulls}}}}}` and the other splits share it"
    ]


def _check_answers(recipe: Recipe, splits: Mapping[str, Sequence[Group]]) -> None:
    """`GateError` if a verifier that an online phase rewards by can score too few of its prompts, which have
    no reference answer: the rollout would be sampled in vain.
    """
    from ratchet.components.data.verifiers import unscored, verifiers_of

    for where, section in with_rounds(recipe):
        if not isinstance(section, Online) or section.data not in splits:
            continue
        groups = splits[section.data]
        pieces = [("annotate", spec) for spec in section.annotate] + [("rollout", section.rollout)]
        used = [(slot, verifier) for slot, spec in pieces for verifier in verifiers_of(slot, spec)]
        for slot, verifier in used:
            without = unscored(groups, verifier)
            if len(without) > section.max_failed * len(groups):
                raise GateError(
                    f"{where}.{slot}: {verifier['name']} compares with the reference answer, which "
                    f"{len(without)} of {len(groups)} prompts of {section.data!r} lack, such as "
                    f"{without[0].id!r}; expected at most {section.max_failed:.0%} ({where}.max_failed): "
                    "give rows an `answer`, or leave these out"
                )


def _layouts(changed: Mapping[str, int]) -> dict[str, int]:
    return {
        what.removeprefix("read "): count
        for what, count in changed.items()
        if count and what.startswith("read as ")
    }


def _sizes(data: Data, splits: Mapping[str, Sequence[Group]], rows: int, *, sure: bool) -> list[str]:
    """`GateError` for splits that data validation would refuse: lengths in tokens can only take more groups
    away. What they might mend, the share of a topic, is a warning if `sure`.
    """
    topics = {
        name: Counter(topic for group in groups if (topic := group.prompt.meta.get("topic")) is not None)
        for name, groups in splits.items()
    }
    few = {name: len(groups) for name, groups in splits.items() if len(groups) < data.min_groups}
    alike = {name: len(counts) for name, counts in topics.items() if 0 < len(counts) < data.min_topics}
    shares = {
        name: counts.most_common(1)[0][1] / len(splits[name]) for name, counts in topics.items() if counts
    }
    full = {name: share for name, share in shares.items() if share > data.max_topic_share}
    for key, bad, wanted, of in (
        ("min_groups", few, f"at least {data.min_groups} groups", "add data"),
        (
            "min_topics",
            alike,
            f"at least {data.min_topics} topics",
            "a topic is never in two splits; add data",
        ),
        ("max_topic_share", full, f"at most {data.max_topic_share:.0%} of one topic", "add data"),
    ):
        if bad:
            got = ", ".join(
                f"{share:.0%} in {name!r}" if bad is full else f"{share} in {name!r}"
                for name, share in bad.items()
            )
            value = f"{math.ceil(100 * max(bad.values())) / 100:g}" if bad is full else f"{min(bad.values())}"
            message = (
                f"data.{key}: expected {wanted} in every split, got {got}, of {rows} rows; {of}, name "
                f"fewer splits in data.splits, or set data.{key}: {value}"
            )
            if bad is full and sure and max(full.values()) < 1:
                return [message]
            raise GateError(message)
    return []
