"""Who is champion: by evidence when the pipeline decides, by a person with a reason, and back again.

A challenger must beat the champion on the same held-out prompts. Every night brings another one, and of many equals
some look better by luck, so the error that a champion may cost is spent on its challengers one by one: the k-th is
compared at alpha / (k (k + 1)), where alpha is the recipe's (`register.champion`). These shares sum to alpha however many
nights come, so by the union bound the chance that a champion ever gives way to a model that is no better stays below alpha
(alpha-spending: Foster & Stine, 2008; Tian & Ramdas, arXiv:1910.04900). Every comparison stands as a tag on the challenger,
which is what is counted.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import yaml

from ratchet.components.errors import ContractError, DataError, StoreError
from ratchet.components.recipes.schema import Champion
from ratchet.tasks.process.locks import registry_lock
from ratchet.tasks.registry.registry import (
    ROLLED_BACK,
    Version,
    events,
    holder,
    numbered,
    one_of,
    point,
    saved_lineage,
    versions_of,
    with_bytes,
)
from ratchet.tasks.tracking.results import comparable, paired, shared_scores
from ratchet.tasks.tracking.server import service

COMPARED = "comparison."  # tag: comparison.<champion's version>.<score>
MOST_RESAMPLES = 2_000_000


@dataclass(frozen=True)
class Comparison:
    """A challenger against the champion by one score, the `number`-th that this champion met. `why_not` is empty when they
    could be compared; `low` and `high` hold at `level`."""

    champion: str
    score: str = ""
    number: int = 0
    level: float = 0.0
    mean: float = 0.0
    low: float = 0.0
    high: float = 0.0
    n: int = 0
    why_not: str = ""

    @property
    def better(self) -> bool:
        """The interval lies above zero, on enough prompts: all of n won is a coincidence of probability 2^-n."""
        return not self.why_not and self.low > 0 and 2.0**-self.n <= (1 - self.level) / 2

    def __str__(self) -> str:
        if self.why_not:
            return f"not compared with the champion, version {self.champion}: {self.why_not}"
        return (f"{self.score} {self.mean:+.4g} [{self.low:+.4g}, {self.high:+.4g}] against the champion, version {self.champion}, on "
                f"{self.n} prompts: {'shown' if self.better else 'not shown'} to be better ({self.level:.2%} interval, "
                f"comparison {self.number} of this champion)")


def spent(number: int, alpha: float = Champion.alpha) -> float:
    """The error allowed to the `number`-th comparison: alpha / (k (k + 1)), which sums to alpha over all k."""
    return alpha / (number * (number + 1))


def against_champion(name: str, number: str, *, score: str | None = None, rule: Champion | None = None, home: Path) -> Comparison | None:
    """Compare a version with the champion and record it; None when there is no champion or it is that version.

    `rule` is the challenger's recipe's by default, and `score` the rule's. Asking again is the same comparison.
    """
    with service(f"comparing {name} version {number}", home) as mlflow:
        versions = versions_of(mlflow, name)
        challenger = one_of(versions, name, number)
        best = holder(versions)
        if best is None or best.version == number:
            return None
        lineages = [saved_lineage(v, home=home) or {} for v in (challenger, best)]
        mine, theirs = (whole.get("results") or {} for whole in lineages)
        rule = rule or _rule(lineages[0])
        score = score or rule.score or next((s for s in shared_scores(mine, theirs) if s != "length"), "gold")
        if why_not := comparable(mine, theirs, score):
            return Comparison(best.version, score, why_not=why_not)
        tag = f"{COMPARED}{best.version}.{score}"
        before = json.loads(challenger.tags.get(tag, "{}"))
        met = before.get("number") or 1 + sum(t.startswith(f"{COMPARED}{best.version}.") for v in versions for t in v.tags)
        share = spent(met, rule.alpha)
        resamples = min(MOST_RESAMPLES, max(10_000, math.ceil(80 / share)))  # forty draws or more in each tail
        try:
            found = Comparison(best.version, score, met, 1 - share, **paired(mine, theirs, score, level=1 - share, resamples=resamples))
        except DataError as error:  # no number to compare is no reason to lose the registration
            return Comparison(best.version, score, why_not=str(error))
        mlflow.set_model_version_tag(name, number, tag, json.dumps(asdict(found)))
        return found


def with_evidence(name: str, number: str, verdict: Mapping[str, Any], *, rule: Champion | None = None, home: Path) -> dict[str, Any]:
    """The verdict of the gates, and of the comparison with the champion where there is one: what the pipeline acts on."""
    found = against_champion(name, number, rule=rule, home=home) if verdict["passed"] else None
    if found is None:
        return dict(verdict)
    return {**verdict, "champion": found.better, "reasons": [*verdict.get("reasons", []), str(found)]}


def promote_by_hand(name: str, number: str, reason: str, *, alias: str = "champion", force: bool = False,
                    score: str | None = None, home: Path) -> tuple[str, Comparison | None, list[str]]:
    """Point an alias at a version because a person says so; returns its number, the comparison and what `force` overruled.

    A checkpoint whose bytes are in the store alone gets a version that holds them, which is another number. Raises
    `ContractError` when the gates failed, the version was rolled back or it is not shown to be better than the champion,
    unless `force`; `StoreError` for a version that is not there or whose bytes are gone.
    """
    _reason(reason)
    with registry_lock(home), service(f"promoting {name} version {number}", home) as mlflow:
        known = numbered(versions_of(mlflow, name), name, number)
        if known.external and alias == "champion" and not force:  # what is refused anyway is given no bytes first
            _refuse(name, number, _objections(known, None))
        number = with_bytes(name, number, home=home)
        found = against_champion(name, number, score=score, home=home) if alias == "champion" else None
        version = one_of(versions_of(mlflow, name), name, number)
        against = _objections(version, found) if alias == "champion" else []
        if not force:
            _refuse(name, number, against)
        if ROLLED_BACK in version.tags:
            mlflow.delete_model_version_tag(name, number, ROLLED_BACK)
        point(mlflow, version, alias, action="promoted", why=reason, by_hand=True, overruled=against,
              **({"comparison": str(found)} if found else {}))
    return number, found, against


def rollback(name: str, reason: str, *, home: Path) -> tuple[str, str]:
    """Give `champion` back to the version the present one replaced; returns (from, to).

    The version rolled back does not become champion again by itself. Raises `StoreError` when there is none to go back to.
    """
    _reason(reason)
    with registry_lock(home), service(f"rolling {name} back", home) as mlflow:
        versions = versions_of(mlflow, name)
        now = holder(versions)
        if now is None:
            raise StoreError(f"model {name!r} has no champion, so nothing can be rolled back")
        earlier = [e["replaced"] for e in events(now) if e["alias"] == "champion" and e["action"] == "promoted" and e.get("replaced")]
        if not earlier:
            raise StoreError(f"{name} version {now.version} replaced nobody; `ratchet promote {name} --version N` names another champion")
        back = one_of(versions, name, earlier[-1])  # before anything is written: it may have been deleted
        mlflow.set_model_version_tag(name, now.version, ROLLED_BACK, reason)
        point(mlflow, back, "champion", action="rolled back to", why=reason, by_hand=True)
        return now.version, back.version


def _rule(lineage: Mapping[str, Any]) -> Champion:
    """How the recipe of a version has it compared; the default for one from before recipes said so."""
    resolved = yaml.safe_load(lineage.get("resolved") or "") or {}
    return Champion(**(resolved.get("recipe", {}).get("register") or {}).get("champion", {}))


def _refuse(name: str, number: str, against: list[str]) -> None:
    if against:
        raise ContractError(f"{name} version {number} is not promoted: {'; '.join(against)}. With --force it is, on your word")


def _objections(version: Version, found: Comparison | None) -> list[str]:
    against = []
    if version.tags.get("verdict") != "passed":
        against.append(f"its gates did not pass ({version.tags.get('verdict.why', 'no verdict is recorded')})")
    if ROLLED_BACK in version.tags:
        against.append(f"it was rolled back ({version.tags[ROLLED_BACK]})")
    if found is not None and not found.better:
        against.append(str(found))
    return against


def _reason(reason: str) -> None:
    if not reason.strip():
        raise ContractError("a promotion needs a reason: it is what stands on the version when somebody asks")
