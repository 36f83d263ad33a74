"""Static checks of training sections: columns are written before they are read, objectives get groups of the
right kind.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from ratchet.components.errors import RecipeError, nearest
from ratchet.components.labels.labels import SCORE
from ratchet.components.models.outputs import OUTPUTS
from ratchet.components.piece import catalogue, describe, resolve
from ratchet.components.recipes.check_fit import check_fit, objectives_of_pairs
from ratchet.components.recipes.check_piece import check_piece
from ratchet.components.recipes.conform import known_keys
from ratchet.components.recipes.people import check_people
from ratchet.components.recipes.phases import asks_people
from ratchet.components.recipes.schema import Learn, Online, Spec


@dataclass
class Flow:
    """Static description of groups between two pieces: columns, maximum number of answers, and whether they
    are preference pairs.
    """

    columns: set[str]
    answers: int
    pairs: bool = False

    def through(self, slot: str, specs: Sequence[Spec], models: set[str], where: str) -> None:
        """Pass the groups through these pieces. `RecipeError` for the first piece that cannot process its
        input.
        """
        kind = "annotate" if slot == "prepare" else slot
        for spec in specs:
            self.columns = check_piece(kind, spec, self.columns, models, where)
            description = describe(kind, spec["name"])
            if description.compares and self.answers < 2:
                raise RecipeError(
                    f"{where}: {spec['name']!r} compares answers to one prompt, but each prompt has a single "
                    "answer; expected responses_per_prompt of 2 or more, no earlier selector that keeps one"
                )
            if description.makes:
                self.pairs = description.makes == "pairs"
                self.answers = 2 if self.pairs else min(self.answers, spec.get("keep", self.answers))


def check_section(section: Learn | Online, models: set[str], where: str, flow: Flow | None = None) -> None:
    """`flow`: the groups that a phase reads; an online phase samples its own."""
    if isinstance(section, Online):
        _check_cadence_keys(section, where)
        _check_role_names(section, models, where)
        models = models | role_models(section)
        check_piece("rollout", section.rollout, set(), models, f"{where}.rollout")
        flow = sampled(section.rollout)
        if asked := asks_people(section):
            check_people(section, asked, f"{where}.annotate", sampled(section.rollout), models)
            flow.columns.add(SCORE)
    assert flow is not None
    # Prompt samplers are checked after `annotate`, since they learn from scored groups.
    prompts = [section.prompts] if isinstance(section, Online) else []
    steps = isinstance(section, Online) and section.cadence == "step"
    for slot, specs in {
        "annotate": section.annotate,
        "prompts": prompts,
        "select": section.select,
        "prepare": section.prepare,
    }.items():
        flow.through(slot, specs, models, f"{where}.{slot}")
        if slot == "annotate" and isinstance(section, Online):
            _check_roles(section, flow, models, where)
    if (
        isinstance(section, Online)
        and section.reference != "initial"
        and isinstance(section.reference, Mapping) != steps
    ):
        raise RecipeError(
            f"{where}.reference: got {section.reference!r} with `cadence: {section.cadence}`; expected "
            "`initial`, or " + ("a reference update such as {name: ema}" if steps else "`previous`")
        )
    if isinstance(section, Online):
        flow.through("prepare", section.fresh, models, f"{where}.fresh")
        _check_watched(section, where)
        _check_sampling(section, where)
    check_fit(section.fit, flow, f"{where}.fit", gives=_gives(getattr(section, "value_head", False)))


def _gives(value_head: bool) -> frozenset[str]:
    return OUTPUTS["policy_with_value" if value_head else "policy"]


ONLY = {
    "step": (("value_head", False), ("roles", {}), ("fresh", ()), ("start", 1)),
    "round": (("sample_from", "current"), ("keep_earlier", False)),
}
"""Keys that only one cadence has, with the values that say nothing."""


def _check_cadence_keys(online: Online, where: str) -> None:
    other = "round" if online.cadence == "step" else "step"
    for key, neutral in ONLY[other]:
        if (value := getattr(online, key)) != neutral and value:
            raise RecipeError(
                f"{where}.{key}: got {json.dumps(sorted(value) if key == 'roles' else value)} with "
                f"`cadence: {online.cadence}`; expected `cadence: {other}`, which alone has this key"
            )
    fits = {where: online.fit} | {f"{where}.roles.{name}": role.fit for name, role in online.roles.items()}
    for at, fit in fits.items() if online.cadence == "step" else ():
        if fit.max_steps is not None:
            raise RecipeError(
                f"{at}.fit.max_steps: got {fit.max_steps} with `cadence: step`, which ends after "
                f"{where}.rounds; set it to null, and fewer rounds or a larger batch"
            )


ROLE_NAMES = re.compile(r"[a-z][a-z0-9_]{0,40}")


def _check_role_names(online: Online, known: set[str], where: str) -> None:
    """Names, starting models and first steps of the further roles. `known`: the other models."""
    for name, role in online.roles.items():
        at = f"{where}.roles.{name}"
        if not ROLE_NAMES.fullmatch(name) or name.endswith("_target"):
            raise RecipeError(
                f"{at}: expected a name of lower-case letters, digits and _ that does not end in _target, "
                f"got {name!r}"
            )
        if name in known:
            raise RecipeError(f"{at}: a model is called {name!r} already; rename this role")
        if role.of and role.of not in known - {"reference", "initial"}:
            raise RecipeError(
                f"{at}.of: no model or earlier phase named {role.of!r}{nearest(role.of, known)}"
            )
    starts = {where: online.start, **{f"{where}.roles.{n}": role.start for n, role in online.roles.items()}}
    for at, start in starts.items():
        if start > online.rounds:
            raise RecipeError(
                f"{at}.start: got step {start}, but the phase has {online.rounds}; use an earlier step"
            )


def _check_roles(online: Online, flow: Flow, models: set[str], where: str) -> None:
    """Each role chooses from the scored groups that `flow` describes, and trains what it outputs."""
    for name, role in online.roles.items():
        at = f"{where}.roles.{name}"
        own = replace(flow, columns=set(flow.columns))
        for slot, specs in {"select": role.select, "prepare": role.prepare, "fresh": role.fresh}.items():
            own.through("prepare" if slot == "fresh" else slot, specs, models, f"{at}.{slot}")
        check_fit(role.fit, own, f"{at}.fit", role=name, gives=_gives(role.value_head))


def role_models(online: Online) -> set[str]:
    """Models that the further roles of a phase add to its pieces."""
    return {*online.roles, *(f"{name}_target" for name, role in online.roles.items() if role.target)}


def sampled(rollout: Spec) -> Flow:
    """Groups as a rollout returns them: of some, `own` answers and `count` more; of a search, all leaves."""
    answers = rollout.get("responses_per_prompt", rollout.get("own", 0) + rollout.get("count", 1))
    return Flow(
        set(describe("rollout", rollout["name"]).named("writes", rollout)),
        max(2, answers) if rollout.get("leaves") else answers,
    )


def _check_sampling(online: Online, where: str) -> None:
    """Policy gradients require samples from the policy itself: the learner's log-probs are at temperature 1
    without truncation.
    """
    drawn = online.rollout
    if drawn.get("temperature") == 0 and drawn.get("responses_per_prompt", 1) > 1:
        raise RecipeError(
            f"{where}.rollout.temperature: greedy decoding makes all {drawn['responses_per_prompt']} "
            "answers to a prompt equal; use a temperature above 0"
        )
    off = {
        name: drawn[name]
        for name, neutral in (("temperature", 1.0), ("top_p", 1.0), ("top_k", 0))
        if drawn.get(name, neutral) != neutral
    }
    older = {
        key: value
        for key, value in (("sample_from", online.sample_from), ("keep_earlier", online.keep_earlier))
        if value not in ("current", False)
    }
    for spec in [spec for parts in online.fit.updates.values() for spec in parts]:
        description = describe("objective", spec["name"])
        if "advantages" not in description.reads or "logprobs" not in description.outputs:
            continue
        for name, value in off.items():
            raise RecipeError(
                f"{where}.rollout.{name}: got {value} with the policy gradient {spec['name']!r}, whose "
                "log-probs are at temperature 1 "
                "without truncation; use temperature 1, top_p 1 and top_k 0, or an objective for "
                f"arbitrary answers ({objectives_of_pairs()})"
            )
        for name, value in older.items():
            if "logprobs.sampled" not in description.named("reads", spec) and "weight_column" not in spec:
                raise RecipeError(
                    f"{where}.{name}: got {str(value).lower()} with the policy gradient {spec['name']!r}, "
                    "which assumes on-policy answers; use an objective with importance ratios to the "
                    "sampler ({name: clip, old: sampled}), or one for arbitrary answers "
                    f"({objectives_of_pairs()})"
                )


def _check_watched(online: Online, where: str) -> None:
    """Every health rule exists, and its metric is measured."""
    known_keys(online.health, catalogue("health"), f"{where}.health")
    for name, rule in online.health.items():
        resolve("health", {"name": name, "limit": rule.limit}, where=f"{where}.health.{name}")
    for name in ("truncated", "equal_rewards"):
        if name in online.health and online.health[name].limit >= 1:
            raise RecipeError(
                f"{where}.health.{name}.limit: got {online.health[name].limit:g}, but it limits a share; "
                "use a number below 1"
            )
    if isinstance(online.watch.gold, Mapping):
        named = describe("annotate", online.watch.gold["name"])
        written = sorted(
            c
            for c in named.named("writes", online.watch.gold)
            if c.startswith("reward.") and not c.endswith(".status")
        )
        if len(written) != 1:
            raise RecipeError(
                f"{where}.watch.gold: expected an annotator that writes one reward, got "
                f"{online.watch.gold['name']!r}, which writes {written}"
            )
        check_absolute([online.watch.gold], f"{where}.watch.gold")
    if "reward_without_gold" in online.health:
        check_absolute(online.annotate, f"{where}.health.reward_without_gold")
    by_gold = next((rule for rule in ("reward_without_gold", "gold_drop") if rule in online.health), None)
    if online.cadence == "step":
        unseen = "the gold measure scores rounds, not steps; use `cadence: round`, or set it to"
        if by_gold:
            raise RecipeError(f"{where}.health.{by_gold}: {unseen} null")
        if online.watch.gold:
            raise RecipeError(f"{where}.watch.gold: {unseen} false")
    elif by_gold and not online.watch.gold:
        raise RecipeError(
            f"{where}.health.{by_gold}: the gold score is not measured; set {where}.watch.gold to true, "
            "or the rule to null"
        )
    if "kl" in online.health and not online.watch.kl_prompts:
        raise RecipeError(
            f"{where}.health.kl: the KL is not measured; set the number of prompts in "
            f"{where}.watch.kl_prompts, or the rule to null"
        )


def check_absolute(specs: Sequence[Spec], where: str) -> None:
    """No reward whose mean is compared is standardised over the answers of one call (one policy)."""
    for spec in specs:
        if spec.get("standardise"):
            raise RecipeError(
                f"{where}: compares the mean reward of several policies, but with `standardise: true` "
                f"{spec['name']!r} gives those of each policy the mean 0; set `standardise: false`"
            )
