"""Static checks of the phases in order: names, where each starts and what it reads, columns, objectives."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Mapping, Sequence

from ratchet.components.errors import RecipeError, nearest
from ratchet.components.models.outputs import OUTPUTS
from ratchet.components.recipes.check_fit import check_validated
from ratchet.components.recipes.check_sections import Flow, check_fit, check_piece, check_section, sampled
from ratchet.components.recipes.phases import SECTIONS, Phase, sections
from ratchet.components.recipes.schema import (
    Demonstrate,
    Fit,
    Groups,
    Learn,
    Offline,
    Online,
    Preferences,
    Recipe,
    Reward,
    Sft,
    Spec,
)
from ratchet.components.recipes.splits import KINDS, PAIR_COLUMNS, PAIRS, SINGLE, kind_of

TAKEN = re.compile(
    r"policy|reference|initial|base|encoder|gold|data|raw|drafts|curated|pairs|improve|evaluate|report|groups|"
    r"demonstrated|demonstrations|compared|(model|certified|answers|merged)_.*|.*_(validation|certificate)|"
    r"(rollout|ask|annotate|select|optimise|reward|round|scored|earlier)_\d+"
)
"""Names that stages, models and data sets have already."""


def check_phase_names(recipe: Recipe) -> None:
    """Names of phases are free, and the cycle is a run of neighbours."""
    for name in recipe.phases or {}:
        at = f"phases.{name}"
        if not re.fullmatch(r"[a-z][a-z0-9_]{0,40}", name):
            raise RecipeError(f"{at}: expected a name of lower-case letters, digits and _, got {name!r}")
        if name in SECTIONS:
            raise RecipeError(f"{at}: {name!r} is a section; write it as `{name}:`, or rename this phase")
        if TAKEN.fullmatch(name) or name in KINDS:
            raise RecipeError(f"{at}: {name!r} has a meaning already; rename this phase")
    names = [phase.name for phase in sections(recipe)]
    if recipe.cycles > 1 and not recipe.cycle:
        raise RecipeError("cycles: needs `cycle`, the names of the phases that are repeated")
    for i, name in enumerate(recipe.cycle):
        if name not in names:
            raise RecipeError(f"cycle[{i}]: no phase named {name!r}{nearest(name, names)}")
    start = names.index(recipe.cycle[0]) if recipe.cycle else 0
    if (there := names[start : start + len(recipe.cycle)]) != list(recipe.cycle):
        raise RecipeError(
            f"cycle: expected neighbouring phases in their order, such as {there}, got {list(recipe.cycle)}"
        )


def check_phases(recipe: Recipe, rounds: Mapping[str, Mapping[str, Online]]) -> set[str]:
    """Check every phase with what the earlier ones made. Returns the models that later pieces may name."""
    policies = {name for name, model in recipe.models.items() if name != "encoder" and not model.role}
    models = {"policy", "reference", *recipe.models}
    made: dict[str, tuple[Flow, Phase]] = {}
    for phase in sections(recipe):
        if phase.of and phase.of not in policies:
            raise RecipeError(
                f"{phase.where}.of: no model or earlier phase with a policy named "
                f"{phase.of!r}{nearest(phase.of, policies)}"
            )
        flow = _check_phase(recipe, phase, models | {"initial"}, made)
        for where, section in rounds.get(phase.where, {}).items():
            _check_unvalidated(section.fit, f"{where}.fit")
            check_section(section, models | {"initial"}, where)
        made |= {name: (dataclasses.replace(flow, columns=set(flow.columns)), phase) for name in phase.makes}
        if isinstance(phase.section, Demonstrate | Preferences):  # their columns are not written out
            made |= {name: (flow_of(name), phase) for name in phase.makes}
        models |= set(phase.models)
        policies |= set(phase.models) if phase.trains_policy else set()
    return models


def _check_phase(
    recipe: Recipe, phase: Phase, models: set[str], made: Mapping[str, tuple[Flow, Phase]]
) -> Flow:
    """Check one phase; the groups as its pieces leave them."""
    section, where = phase.section, phase.where
    if isinstance(section, Demonstrate):
        _check_demonstrate(recipe, section, models)
        return sampled(section.rollout)
    if isinstance(section, Preferences):
        _check_preferences(recipe, section, models)
        return sampled(section.rollout)
    flow, _ = made.get(section.data, (flow_of(section.data), None))
    flow = dataclasses.replace(flow, columns=set(flow.columns))
    if isinstance(section, Online):
        _check_unvalidated(section.fit, f"{where}.fit")
        for name, role in section.roles.items():
            _check_unvalidated(role.fit, f"{where}.roles.{name}.fit")
        check_section(section, models, where)
        return flow
    if isinstance(section, Groups):
        if section.rollout:
            check_piece("rollout", section.rollout, set(), models, f"{where}.rollout")
            flow = sampled(section.rollout)
        flow.through("annotate", section.annotate, models, f"{where}.annotate")
        flow.through("select", section.select, models, f"{where}.select")
        return flow
    if isinstance(section, Reward):
        for key in ("data", "also", "validation"):
            name = getattr(section, key)
            groups, maker = made.get(name, (flow_of(name), None))
            if name and not groups.pairs:
                what = f"{maker.where} makes none" if maker else f"the split {name!r} has none"
                raise RecipeError(
                    f"{where}.{key}: expected preference pairs, but {what}; expected a split of pairs "
                    f"({', '.join(PAIRS)}), or a phase with a selector that makes pairs, such as contrast"
                )
        _check_reward(section, where, flow, made.get(section.validation, (flow, None))[1])
    elif isinstance(section, Offline) or any((section.annotate, section.select, section.prepare)):
        if not isinstance(section, Sft):
            if section.validation:
                raise RecipeError(
                    f"{where}.validation: the loss is validated on groups as they are, but the pieces of "
                    "this phase change them; set it to null, or move the pieces to a phase of kind `groups` "
                    "before one of kind `learn`"
                )
            _check_unvalidated(section.fit, f"{where}.fit")
        check_section(section, models, where, flow)
    else:
        if isinstance(section, Sft):
            flow = Flow(set(), 1)
        check_fit(section.fit, flow, f"{where}.fit")
        if section.validation:
            check_validated(section.fit, f"{where}.fit")
    return flow


def _check_unvalidated(fit: Fit, where: str) -> None:
    if fit.validate_every:
        raise RecipeError(
            f"{where}.validate_every: got {fit.validate_every}, but this phase has no held-out groups to "
            "validate the loss on; set it to 0"
        )


def flow_of(split: str) -> Flow:
    """Groups of a curated split."""
    kind = kind_of(split)
    columns = {"label"} if kind in SINGLE else set[str](PAIR_COLUMNS) if kind in PAIRS else set[str]()
    return Flow(columns, 2 if kind in PAIRS else 1, kind in PAIRS)


def _check_demonstrate(recipe: Recipe, section: Demonstrate, models: set[str]) -> None:
    """Columns are written before they are read, and sections that read these data sets find them."""
    answered = sampled(section.rollout)
    answered.through("annotate", section.annotate, models, "demonstrate.annotate")
    for kind in ("sft", "reward"):
        wanted, made = getattr(recipe, kind), dataclasses.replace(answered)
        made.through("select", getattr(section, kind), models, f"demonstrate.{kind}")
        if getattr(section, kind) and made.pairs != (kind == "reward"):
            raise RecipeError(
                f"demonstrate.{kind}: "
                + (
                    "a reward model needs pairs, but these selectors make none; add one such as contrast"
                    if kind == "reward"
                    else "SFT would also train on the rejected answers of the pairs; use a selector such "
                    "as verified"
                )
            )
        if wanted is None or (kind == "reward" and recipe.preferences):
            continue
        if not getattr(section, kind):
            raise RecipeError(
                f"demonstrate.{kind}: has no selector, but the section `{kind}` trains on its output; add "
                "one, "
                f"or remove the section `{kind}`"
            )
        if (wanted.data, wanted.validation or f"{kind}_validation") != (kind, f"{kind}_validation"):
            raise RecipeError(
                f"{kind}.data: with a `demonstrate` section expected {kind!r} and {kind + '_validation'!r}, "
                f"got {wanted.data!r} and {wanted.validation!r}"
            )


def _check_preferences(recipe: Recipe, section: Preferences, models: set[str]) -> None:
    made = sampled(section.rollout)
    made.through("annotate", section.annotate, models, "preferences.annotate")
    made.through("select", section.select, models, "preferences.select")
    if not made.pairs:
        raise RecipeError(
            "preferences.select: a reward model needs pairs, but these selectors make none; add one such "
            "as contrast"
        )
    if recipe.reward is None and not (recipe.offline and recipe.offline.data == "reward"):
        raise RecipeError(
            "preferences: no section reads its pairs; add a section `reward`, or `offline` with data: "
            "reward, or remove `preferences`"
        )
    if recipe.reward and (recipe.reward.data, recipe.reward.validation) != ("reward", "reward_validation"):
        raise RecipeError(
            f"reward.data: with a `preferences` section expected 'reward' and 'reward_validation', "
            f"got {recipe.reward.data!r} and {recipe.reward.validation!r}"
        )
    if recipe.reward and recipe.reward.also and recipe.demonstrate and recipe.demonstrate.reward:
        raise RecipeError(
            f"reward.also: got {recipe.reward.also!r}, but the pairs of `demonstrate.reward` come with those "
            "of `preferences` already; leave one of the two out"
        )


PAIRS_BY = {
    "contrast": "contrast",
    "pass_fail": "contrast",
    "form": "unasked_form",
    "echo": "echo",
    "off_topic": "off_topic",
}
"""Kind of pair -> selector that makes it."""


def _pairs_of(source: Phase | None) -> tuple[str, Sequence[Spec]]:
    """Path and selectors of the phase that makes pairs."""
    if source is None:
        return "demonstrate.reward", ()
    if isinstance(source.section, Demonstrate):
        return "demonstrate.reward", source.section.reward
    return f"{source.where}.select", getattr(source.section, "select", ())


def _check_reward(reward: Reward, where: str, flow: Flow, source: Phase | None) -> None:
    """`flow`: the pairs; `source`: the phase that makes those of the certificate."""
    at, selectors = _pairs_of(source)
    pieces = [spec["name"] for spec in selectors]
    for kind in reward.certificate.min_accuracy_by_kind or ():
        if kind in PAIRS_BY and PAIRS_BY[kind] not in pieces:
            raise RecipeError(
                f"{where}.certificate.min_accuracy_by_kind: nothing makes pairs of kind {kind}; add "
                f"{{name: {PAIRS_BY[kind]}}} to {at} "
                f"(now {pieces}), or leave the limit out"
            )
    sampled = [
        key
        for key, wanted in (
            ("best_of_n_rises", reward.certificate.best_of_n_rises),
            ("min_accuracy_by_kind", "sampled" in (reward.certificate.min_accuracy_by_kind or ())),
        )
        if wanted
    ]
    rollout = source.section.rollout if source and not isinstance(source.section, Learn | Reward) else None
    if sampled and (rollout or {}).get("responses_per_prompt", 1) < 2:
        raise RecipeError(
            f"{where}.certificate.{sampled[0]}: it is measured on the verified answers of a `preferences` "
            "or `demonstrate` section; expected "
            "rollout.responses_per_prompt of at least 2, "
            + (f"got {rollout.get('responses_per_prompt', 1)}" if rollout else "got none")
            + ". Set it, or remove the limit"
        )
    probed = reward.linear_probe
    check_validated(reward.fit, f"{where}.fit")
    check_fit(
        reward.fit,
        flow,
        f"{where}.fit",
        role="reward_model",
        untrained=probed,
        gives=OUTPUTS["reward"],
    )
    if not probed or reward.fit.epochs:
        return
    if reward.members > 1:
        raise RecipeError(
            f"{where}.members: {reward.members} members trained by the linear probe only are identical; "
            "train them "
            "(reward.fit.epochs over 0), disable linear_probe, or set members to 1"
        )
    *more, last = reward.fit.updates["reward_model"]
    if more or (last["name"], last["weight"]) != ("ranking.bradley_terry", 1.0):
        raise RecipeError(
            f"{where}.fit.updates.reward_model: {last['name']!r} is ignored with reward.fit.epochs: 0, "
            "where only the linear "
            "probe is fitted (plain Bradley-Terry). Set reward.fit.epochs to 1 or more, or use only "
            "ranking.bradley_terry with weight 1"
        )
