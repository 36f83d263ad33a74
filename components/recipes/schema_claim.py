"""Section of a recipe: its claim."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal, get_args

from ratchet.components.errors import RecipeError
from ratchet.components.recipes.conform import record
from ratchet.components.recipes.ranges import (
    Count,
    Finite,
    Natural,
    NotNegative,
)

Budget = Literal["updates", "tokens", "labels"]
START, ZERO, MOST_SEEDS = "start", "zero", 8


@record
class Claim:
    """The method's published claim against one or several baselines, tested over seeds by `ratchet claims`.
    Settings of all of them are chosen on other seeds than those of the check. `testbed`, `budget` and
    `tuning` are stated before the check; `RecipeError` without them.
    """

    # baseline recipes; `start`: this recipe's policy before its last training, in the same evaluation;
    # `zero`: the number 0, for a report that compares arms itself
    against: str | Sequence[str]
    metric: str  # of the evaluation; with `per: curve` of the training log (metrics.jsonl)
    testbed: str  # what the check is run on, and what it cannot show
    # what is as large as in the baselines (`updates`, `tokens` or `labels`: counted in the check, and no side
    # may win by more of it), or `none: WHY`
    budget: str
    tuning: str  # what was tuned on which side: neither, same search on both, method only: ..., not recorded
    direction: Literal["higher", "lower"] = "higher"  # of the claimed difference
    at_least: NotNegative = 0.0  # smallest effect of interest: the whole interval must lie beyond it
    seeds: Count = 3  # number of seeds of the first look
    max_seeds: Count | None = None  # seeds are added up to this while undecided; null: 8, or `seeds` if more
    first_seed: Natural = 0  # a second check of an undecided claim uses seeds that the first did not
    # prompt: paired by seed and prompt; seed: one number per seed; curve: one number per training curve
    per: Literal["prompt", "seed", "curve"] = "prompt"
    level: Finite | None = None  # with `per: curve`: number of logged steps to reach it; null: their mean
    changed: Natural = 0  # how often the check was changed after its first result

    def __post_init__(self) -> None:
        if not self.baselines:
            raise RecipeError("claim.against: expected one or several baseline recipes, got none")
        if self.level is not None and self.per != "curve":
            raise RecipeError("claim.level: applies to `per: curve` only; remove it, or set per: curve")
        if START in self.baselines and self.per != "prompt":
            raise RecipeError(
                f"claim.per: expected prompt with `against: {START}`, whose answers are compared one by "
                f"one, got {self.per!r}"
            )
        if ZERO in self.baselines and self.per != "seed":
            raise RecipeError(
                f"claim.per: expected seed with `against: {ZERO}`, one number per seed, got {self.per!r}"
            )
        for key in ("testbed", "tuning"):
            if not getattr(self, key).strip():
                raise RecipeError(f"claim.{key}: expected a few words, got none")
        self._check_budget()
        if self.max_seeds is not None and self.max_seeds < self.seeds:
            raise RecipeError(
                f"claim.max_seeds: expected at least claim.seeds ({self.seeds}), got {self.max_seeds}"
            )

    def _check_budget(self) -> None:
        if self.counted and not self.recipes:
            raise RecipeError(
                f"claim.budget: {START} and {ZERO} have none to compare with; write `none: WHY`, for example "
                "none: it is compared with its own policy before training"
            )
        if not self.counted and not self.budget.partition("none:")[2].strip():
            raise RecipeError(
                f"claim.budget: expected {', '.join(get_args(Budget))} or `none: WHY`, got {self.budget!r}"
            )

    @property
    def counted(self) -> Budget | None:
        """The budget that is held equal; None if the claim says why there is none."""
        return next((one for one in get_args(Budget) if one == self.budget), None)

    @property
    def baselines(self) -> tuple[str, ...]:
        return (self.against,) if isinstance(self.against, str) else tuple(self.against)

    @property
    def recipes(self) -> tuple[str, ...]:
        """The baselines that are recipes."""
        return tuple(one for one in self.baselines if one not in (START, ZERO))

    @property
    def most_seeds(self) -> int:
        return self.max_seeds or max(MOST_SEEDS, self.seeds)
