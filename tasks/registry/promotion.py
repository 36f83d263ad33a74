"""Promotion of registered versions to champion: automatic with statistical evidence, or by hand with a
reason; and rollback.

A challenger must beat the champion on the same held-out prompts. With many challengers, some look better by
chance, so the error rate is divided among them (alpha-spending): the k-th is tested at alpha / (k (k + 1)),
with the recipe's alpha (`register.champion`). These sum to alpha, so by the union bound the probability that
a champion is ever replaced by a model that is not better is below alpha (Foster & Stine, 2008; Tian & Ramdas,
arXiv:1910.04900). Every comparison is recorded as a tag on the challenger, and their number on the champion.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import yaml

from ratchet.components.errors import ContractError, DataError, RecipeError, StoreError
from ratchet.components.evaluation.bootstrap import enough
from ratchet.components.evaluation.verdicts import spent
from ratchet.components.recipes.check_independent import learned_scores
from ratchet.components.recipes.recipe import reread
from ratchet.components.recipes.schema_evaluation import Champion
from ratchet.components.storage.store import digest
from ratchet.tasks.process.locks import registry_lock
from ratchet.tasks.registry.registry import ROLLED_BACK, ensure_files, move_alias
from ratchet.tasks.registry.versions import (
    Version,
    events,
    saved_lineage,
    version_by_number,
    version_with_alias,
    versions_of,
)
from ratchet.tasks.tracking.results import paired_difference, shared_scores, why_not_comparable
from ratchet.tasks.tracking.server import service

COMPARED = "comparison."  # tag: comparison.<champion's version>.<score>
COUNT = "comparisons"  # tag of a champion: how many comparisons it had


@dataclass(frozen=True)
class Comparison:
    """Comparison of a challenger with the champion by one score, the `number`-th for this champion.
    `why_not`: empty if comparable. `low` and `high` are at confidence `level`. `of`: digest of the compared
    numbers.
    """

    champion: str
    score: str = ""
    number: int = 0
    level: float = 0.0
    mean: float = 0.0
    low: float = 0.0
    high: float = 0.0
    n: int = 0
    of: str = ""
    why_not: str = ""

    @property
    def better(self) -> bool:
        """The interval is above zero, with enough prompts (by chance all n win with probability 2^-n)."""
        return not self.why_not and self.low > 0 and enough(self.n, level=self.level)

    def __str__(self) -> str:
        if self.why_not:
            return f"not compared with the champion, version {self.champion}: {self.why_not}"
        return (
            f"{self.score} {self.mean:+.4g} [{self.low:+.4g}, {self.high:+.4g}] against the champion, "
            f"version {self.champion}, on {self.n} prompts: {'shown' if self.better else 'not shown'} to be "
            f"better ({self.level:.2%} interval, comparison {self.number} of this champion)"
        )


def against_champion(
    name: str, number: str, *, rule: Champion | None = None, home: Path
) -> Comparison | None:
    """Compare a version with the champion and record it; None if there is no champion or it is this version.
    Repeating it returns the same comparison; if one was evaluated again, it is another one, and counts.
    Default: the `rule` of the challenger's recipe.
    """
    with service(f"comparing {name} version {number}", home) as mlflow:
        versions = versions_of(mlflow, name)
        challenger = version_by_number(versions, name, number)
        best = version_with_alias(versions)
        if best is None or best.version == number:
            return None
        lineages = [saved_lineage(v, home=home) or {} for v in (challenger, best)]
        mine, theirs = (whole.get("results") or {} for whole in lineages)
        rule = rule or _rule(lineages[0])
        known = shared_scores(mine, theirs)
        apart = {"length", *_optimised(lineages[0], known)}
        score = rule.score or next((one for one in known if one not in apart), "gold")
        if why_not := why_not_comparable(mine, theirs, score):
            return Comparison(best.version, score, why_not=why_not)
        tag = f"{COMPARED}{best.version}.{score}"
        of = digest([one["per_prompt"][score] for one in (mine, theirs)])
        before = json.loads(challenger.tags.get(tag, "{}"))
        earlier = [t for v in versions for t in v.tags if t.startswith(f"{COMPARED}{best.version}.")]
        counted = max(len(earlier), int(best.tags.get(COUNT, 0)))  # a deleted challenger stays counted
        met = before["number"] if before.get("of") == of else 1 + counted
        share = spent(met, rule.alpha)
        try:
            interval = paired_difference(mine, theirs, score, level=1 - share)
            found = Comparison(best.version, score, met, 1 - share, **interval, of=of)
        except DataError as error:  # keep the registration
            return Comparison(best.version, score, why_not=str(error))
        mlflow.set_model_version_tag(name, best.version, COUNT, str(max(met, counted)))
        mlflow.set_model_version_tag(name, number, tag, json.dumps(asdict(found)))
        return found


def with_evidence(
    name: str, number: str, verdict: Mapping[str, Any], *, rule: Champion | None = None, home: Path
) -> dict[str, Any]:
    """The gates' verdict extended by the comparison with the champion, if there is one; input of
    `promote`.
    """
    found = against_champion(name, number, rule=rule, home=home) if verdict["passed"] else None
    if found is None:
        return dict(verdict)
    return {**verdict, "champion": found.better, "reasons": [*verdict.get("reasons", []), str(found)]}


def promote_by_hand(
    name: str, number: str, reason: str, *, force: bool = False, home: Path
) -> tuple[str, Comparison | None, list[str]]:
    """Set the alias `champion` by a user's decision; returns the version, the comparison, and the objections
    overruled by `force`.

    A checkpoint stored only in the store gets a new version with its files. `ContractError` if gates failed,
    the version was rolled back or is not shown to be better than the champion, unless `force`; `StoreError`
    if the version or its files are missing.
    """
    _reason(reason)
    with registry_lock(home), service(f"promoting {name} version {number}", home) as mlflow:
        found = against_champion(name, number, home=home)
        against = _objections(version_by_number(versions_of(mlflow, name), name, number), found)
        if against and not force:
            raise ContractError(
                f"{name} version {number} is not promoted: {'; '.join(against)}. Use --force to overrule"
            )
        number = ensure_files(name, number, home=home)
        version = version_by_number(versions_of(mlflow, name), name, number, with_files=True)
        if ROLLED_BACK in version.tags:
            mlflow.delete_model_version_tag(name, number, ROLLED_BACK)
        more = {"by_hand": True, "overruled": against, **({"comparison": str(found)} if found else {})}
        move_alias(mlflow, version, "champion", action="promoted", why=reason, **more)
    return number, found, against


def rollback(name: str, reason: str, *, home: Path) -> tuple[str, str]:
    """Set `champion` back to the version that the current one replaced; returns (from, to). The rolled-back
    version cannot become champion again automatically. `StoreError` if there is no earlier champion.
    """
    _reason(reason)
    with registry_lock(home), service(f"rolling {name} back", home) as mlflow:
        versions = versions_of(mlflow, name)
        now = version_with_alias(versions)
        if now is None:
            raise StoreError(f"model {name!r} has no champion, so nothing can be rolled back")
        promotions = [e for e in events(now) if e["alias"] == "champion" and e["action"] == "promoted"]
        earlier = [event["replaced"] for event in promotions if event.get("replaced")]
        if not earlier:
            raise StoreError(
                f"{name} version {now.version} replaced no earlier champion; use `ratchet promote {name} "
                "--version N`"
            )
        # fails before anything is written if it was deleted
        back = version_by_number(versions, name, earlier[-1], with_files=True)
        mlflow.set_model_version_tag(name, now.version, ROLLED_BACK, reason)
        move_alias(mlflow, back, "champion", action="rolled back to", why=reason, by_hand=True)
        return now.version, back.version


def _rule(lineage: Mapping[str, Any]) -> Champion:
    """The comparison settings in a version's recipe, or the defaults."""
    resolved = yaml.safe_load(lineage.get("resolved") or "") or {}
    return Champion(**(resolved.get("recipe", {}).get("register") or {}).get("champion", {}))


def _optimised(lineage: Mapping[str, Any], scores: Sequence[str]) -> set[str]:
    """Scores that the version was optimised for, which must not decide that it is better: those of its
    recipe's reward models. If its recipe cannot be read any more, all but the gold measure.
    """
    if not lineage.get("resolved"):
        return set()
    try:
        recipe = reread(lineage["resolved"])[0]
        return set(learned_scores(recipe)) if recipe.evaluate else set()
    except RecipeError:
        return set(scores) - {"gold"}


def _objections(version: Version, found: Comparison | None) -> list[str]:
    against = []
    if version.tags.get("verdict") != "passed":
        why = version.tags.get("verdict.why", "no verdict is recorded")
        against.append(f"it was refused when it was registered ({why})")
    if ROLLED_BACK in version.tags:
        against.append(f"it was rolled back ({version.tags[ROLLED_BACK]})")
    if found is not None and not found.better:
        against.append(str(found))
    return against


def _reason(reason: str) -> None:
    if not reason.strip():
        raise ContractError("a promotion needs a reason, which is recorded on the version")
