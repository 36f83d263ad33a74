"""What Great Expectations checks of curated data, by split."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from ratchet.components.recipes.sections import Data


@dataclass(frozen=True)
class Check:
    """One expectation: description, Great Expectations' class, column and arguments. `of`: rows (quarantine)
    or splits (stop).
    """

    says: str
    expectation: str
    column: str
    arguments: Mapping[str, Any] = field(default_factory=dict)
    of: str = "rows"


def expectations(data: Data) -> list[Check]:
    """The expectation suite of a recipe's `data` section. Missing values (no rating) pass."""

    def always(says: str, column: str, value: bool = True) -> Check:
        return Check(says, "ExpectColumnValuesToBeInSet", column, {"value_set": [value]})

    def between(
        says: str, column: str, least: float | None, most: float | None, of: str = "rows", **more: Any
    ) -> Check:
        return Check(
            says, "ExpectColumnValuesToBeBetween", column, {"min_value": least, "max_value": most, **more}, of
        )

    checks = [
        always("roles alternate, user first", "roles_alternate"),
        always("the last turn is the assistant's", "last_is_assistant"),
        always("the prompt is there and does not end with the assistant", "prompt_ends_well"),
        always("no turn is empty", "no_empty_turn"),
        always("chosen and rejected differ", "chosen_ne_rejected"),
        always("the group is once in its split", "duplicate", False),
        always("the prompt is in no earlier split", "leaked_prompt", False),
        always("the topic is in no earlier split", "leaked_topic", False),
        always("no earlier split has nearly the same text", "near_duplicate_across_splits", False),
        always("length is within the bound of its split, in tokens of the policy", "within_token_bound"),
        between("there is at least one token", "tokens", 1, None),
        always("trajectories fit the kind of split", "trajectories_fit"),
        between("the chosen side is rated higher", "rating_gap", 0, None, strict_min=True),
        between("every split has enough groups (data.min_groups)", "groups", data.min_groups, None, "splits"),
        between(
            "every topic split has enough topics (data.min_topics)", "topics", data.min_topics, None, "splits"
        ),
        between(
            "no topic fills a split (data.max_topic_share)",
            "max_topic_share",
            None,
            data.max_topic_share,
            "splits",
        ),
    ]
    if data.rating_range:
        checks += [
            between("ratings are in their range", "rating", *data.rating_range),  # pyright: ignore[reportArgumentType]
            between("the rejected side's rating is in its range", "rating_rejected", *data.rating_range),  # pyright: ignore[reportArgumentType]
        ]
    if "scrub" in [spec["name"] for spec in data.transforms]:
        checks.append(always("no personal data is left", "has_personal_data", False))
    if data.languages:
        checks.append(
            Check(
                "the language is one of the recipe's",
                "ExpectColumnValuesToBeInSet",
                "language",
                {"value_set": [*data.languages, "und"]},
            )
        )
    return checks
