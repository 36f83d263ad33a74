"""Execution plan: the stages of a recipe, their inputs, and the store keys of their outputs. Pure, without
loading models.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from ratchet.components.data.verifiers import verifiers
from ratchet.components.piece import ROOT, SLOTS, catalogue
from ratchet.components.recipes.check_data import makes_pairs, read_splits
from ratchet.components.recipes.profile import Profile
from ratchet.components.recipes.recipe import for_round, plain
from ratchet.components.recipes.reward_models import certified, scoring_models
from ratchet.components.recipes.schema import Demonstrate, Online, Preferences, Recipe
from ratchet.components.stages import STAGES
from ratchet.components.storage.definitions import Sources
from ratchet.components.storage.store import digest
from ratchet.components.training.loop import optimised_rewards

PLACE = ("name", "ranks", "machines", "zero_stage", "offload_optimizer", "offload_parameters")
"""Profile keys that are not part of store keys, so that a stage can resume with another number of ranks."""
NOT_SEEDED = (
    "fetch_data",
    "fetch_model",
    "make_tiny",
    "curate",
    "validate",
    "gold",
)  # independent of the run's seed


@dataclass(frozen=True)
class Stage:
    """One unit of work. `does`: name of its function in the module `STAGES[does]`."""

    name: str
    does: str
    kind: str
    options: Mapping[str, Any]
    inputs: Mapping[str, str] = field(default_factory=dict)
    key: str = ""
    round: int | None = None

    @property
    def title(self) -> str:
        return self.name.replace("_", " ")


def plan(recipe: Recipe, profile: Profile) -> dict[str, Stage]:
    """Every stage of the run in order, keyed by name."""
    stages: dict[str, Stage] = {}
    sources = our_sources()
    sizes = {name: value for name, value in plain(profile).items() if name != "hardware"}

    def add(
        name: str,
        does: str,
        kind: str,
        options: Mapping[str, Any],
        inputs: Mapping[str, str] | None = None,
        heavy: bool = True,
        **more: Any,
    ) -> str:
        inputs = dict(inputs or {})
        seeded = {} if does in NOT_SEEDED else {"seed": recipe.seed}
        given = {**plain(options), **seeded, **({"profile": sizes} if heavy else {})}
        code = source_digest(does, given, sources)
        kept = (
            {**given, "profile": {k: v for k, v in sizes.items() if k not in PLACE}} if heavy else dict(given)
        )
        if does == "rollout":
            del kept[
                "rounds"
            ]  # only a bound: a run with more or fewer rounds keeps finished ones (see `protocols.Prompts`)
        key = digest([name, does, kept, {k: stages[v].key for k, v in inputs.items()}, code])
        stages[name] = Stage(name, does, kind, given, inputs, key, **more)
        return name

    for name, source in recipe.models.items():
        where = {
            key: value
            for key, value in plain(source).items()
            if key not in ("shape", "certificate")
            and (value or key not in ("base", "base_sha256", "remote_code", "role"))
        }
        add(
            f"model_{name}",
            "make_tiny" if source.format == "tiny" else "fetch_model",
            "weights",
            where,
            heavy=False,
        )
    base = "model_policy"
    origins = [
        {
            key: value
            for key in ("source", "sha256", "config")
            if (value := getattr(one, key)) or key != "config"
        }
        for one in recipe.data.every_source
    ]
    raw = add(
        "raw", "fetch_data", "data", {"sources": origins} if recipe.data.sources else origins[0], heavy=False
    )
    checked, read = verifiers(recipe), read_splits(recipe)
    drafts = add(
        "drafts",
        "curate",
        "data",
        {
            "section": recipe.data,
            **({} if recipe.data.splits else {"read": sorted(read)}),
            **({"verifiers": checked} if checked else {}),
        },
        {"raw": raw, "policy": base},
        heavy=False,
    )
    data = add("curated", "validate", "data", {"section": recipe.data}, {"drafts": drafts}, heavy=False)

    policy = base
    examples = _demonstrations(add, recipe, recipe.demonstrate, base, data) if recipe.demonstrate else data
    certificates = _certificates(add, recipe, examples, data)
    if recipe.sft:
        policy = add("sft", "sft", "weights", plain(recipe.sft), {"policy": policy, "data": examples})
    initial = policy
    made, answered = recipe.demonstrate, "demonstrated"
    earlier: dict[str, str] = {}
    if recipe.preferences:
        earlier = {"demonstrations": examples} if made and made.reward else {}
        made, answered = recipe.preferences, "compared"
        examples = _preferences(add, recipe, recipe.preferences, policy, data)
    reward_stages: dict[str, str] = {}
    if recipe.reward:
        for member, name in enumerate(recipe.reward.reward_models):
            options = {
                **plain(recipe.reward),
                "member": member,
                **({"verified_by": plain(made.annotate)} if made else {}),
            }
            reward_stages[name] = add(
                f"reward_{member + 1}" if recipe.reward.members > 1 else "reward",
                "reward",
                "weights",
                options,
                {"policy": initial, "data": examples, **earlier, **({"answers": answered} if made else {})},
            )
    gold: dict[str, str] = {}
    if recipe.evaluate and recipe.evaluate.gold:
        add("gold", "gold", "weights", {}, {"encoder": "model_encoder", "data": data})
        gold = {"gold": "gold", "encoder": "model_encoder"}
    others = {**{n: f"model_{n}" for n in recipe.models if n not in ("policy", "encoder")}, **certificates}

    if recipe.offline:
        section = recipe.offline
        source = examples if makes_pairs(recipe) and section.data == "reward" else data
        pairs = add(
            "pairs",
            "prepare_offline",
            "groups",
            plain(section),
            {
                "policy": policy,
                "reference": initial,
                "data": source,
                **(reward_stages if section.annotate else {}),
                **others,
            },
        )
        policy = add(
            "offline", "optimise", "weights", {"fit": plain(section.fit)}, {"policy": policy, "groups": pairs}
        )
    rounds: list[str] = []
    if recipe.online and recipe.online.cadence == "step":
        policy = add(
            "improve",
            "improve",
            "weights",
            plain(recipe.online),
            {"policy": policy, "reference": initial, "data": data, **reward_stages, **others},
        )
        rounds = [policy]
    elif recipe.online:
        policy, rounds = _rounds(add, recipe, recipe.online, policy, data, reward_stages, gold, others)
    if recipe.evaluate:
        inputs = {
            "base": base,
            "initial": initial,
            "policy": policy,
            "data": data,
            **reward_stages,
            **gold,
            **others,
        }
        if "encoder" in recipe.models:
            inputs["encoder"] = "model_encoder"
        inputs |= {f"round_{i + 1}": stage for i, stage in enumerate(rounds)}
        inputs |= {
            f"scored_{i + 1}": f"annotate_{i + 1}"
            for i in range(len(rounds))
            if f"annotate_{i + 1}" in stages
        }
        add(
            "evaluate",
            "evaluate",
            "report",
            {
                **plain(recipe.evaluate),
                "reward_models": scoring_models(recipe),
                "gates": plain(recipe.register.gates) if recipe.register else {},
                "recipe": recipe.name,
                "about": recipe.about,
                "resolved": plain(recipe),
            },
            inputs,
        )
    return stages


def _certificates(add: Any, recipe: Recipe, examples: str, data: str) -> dict[str, str]:
    """Certificate stages of reward models trained elsewhere, on pairs of the base model's answers if there
    are any.
    """
    found, made = {}, recipe.demonstrate
    for name in sorted(certified(recipe)):
        options = {
            "validation": "reward_validation",
            "certificate": plain(recipe.models[name].certificate or {}),
        }
        inputs = {"model": f"model_{name}", "data": examples if made and made.reward else data}
        if made:
            options, inputs = (
                {**options, "verified_by": plain(made.annotate)},
                {**inputs, "answers": "demonstrated"},
            )
        found[f"{name}_certificate"] = add(f"certified_{name}", "certify", "certificate", options, inputs)
    return found


def _demonstrations(add: Any, recipe: Recipe, section: Demonstrate, base: str, data: str) -> str:
    """Data sets from the base model's answers, validated as curated ones."""
    held_out = (
        recipe.reward and not recipe.preferences
    )  # with `preferences`, the certificate is of the policy's own pairs
    unread = [] if held_out or certified(recipe) else ["reward_validation"]
    made = add(
        "demonstrated",
        "demonstrate",
        "groups",
        {**plain(section), "unread": unread},
        {"policy": base, "data": data},
    )
    return _validated(
        add,
        recipe,
        "demonstrations",
        made,
        [kind for kind in ("sft", "reward") if getattr(section, kind)],
        unread,
    )


def _preferences(add: Any, recipe: Recipe, section: Preferences, policy: str, data: str) -> str:
    """Preference pairs from the SFT policy's answers, validated as curated ones."""
    options = {key: value for key, value in plain(section).items() if key != "select"}
    unread = [] if recipe.reward or certified(recipe) else ["reward_validation"]
    made = add(
        "compared",
        "demonstrate",
        "groups",
        {**options, "sft": (), "reward": plain(section.select), "unread": unread},
        {"policy": policy, "data": data},
    )
    return _validated(add, recipe, "preferences", made, ["reward"], unread)


def _validated(
    add: Any, recipe: Recipe, name: str, made: str, kinds: Sequence[str], unread: Sequence[str] = ()
) -> str:
    splits = {
        f"{kind}{end}": 1.0 for kind in kinds for end in ("", "_validation") if f"{kind}{end}" not in unread
    }
    return add(
        name,
        "validate",
        "groups",
        {"section": {**plain(recipe.data), "splits": splits}},
        {"drafts": made},
        heavy=False,
    )


def _rounds(
    add: Any,
    recipe: Recipe,
    online: Online,
    policy: str,
    data: str,
    reward_stages: Mapping[str, str],
    gold: Mapping[str, str],
    others: Mapping[str, str],
) -> tuple[str, list[str]]:
    initial, previous, made = policy, policy, []
    kept: list[str] = []  # selections that together contain each earlier round's choice once
    whole = online
    for i in range(1, whole.rounds + 1):
        online = for_round(whole, i)
        current = initial if online.sample_from == "initial" else policy
        answers = add(
            f"rollout_{i}",
            "rollout",
            "groups",
            {**_pick(online, "rollout", "prompts", "prompts_per_round", "data", "rounds"), "round": i},
            {"policy": current, "data": data},
            round=i,
        )
        marked = add(
            f"annotate_{i}",
            "annotate",
            "groups",
            {
                **_pick(online, "annotate", "max_failed", "watch", "health"),
                "round": i,
                "optimised": optimised_rewards(online.annotate, online.select),
            },
            {
                "groups": answers,
                "policy": current,
                "initial": initial,
                **reward_stages,
                **(gold if online.watch.gold is True else {}),
                **others,
                **{f"scored_{j}": f"annotate_{j}" for j in range(1, i)},
            },
            round=i,
        )
        reference = initial if online.reference == "initial" else current
        earlier = {f"earlier_{j + 1}": s for j, s in enumerate(kept)} if online.keep_earlier else {}
        chosen = add(
            f"select_{i}",
            "select",
            "groups",
            {**_pick(online, "select", "prepare"), "round": i},
            {
                "groups": marked,
                "policy": current,
                "reference": reference,
                **reward_stages,
                **others,
                **earlier,
            },
            round=i,
        )
        kept = [chosen] if online.keep_earlier else [*kept, chosen]
        update = add(
            f"optimise_{i}",
            "optimise",
            "weights",
            {"fit": plain(online.fit), "round": i},
            {"policy": policy, "groups": chosen, "annotated": marked, "previous": previous},
            round=i,
        )
        previous, policy = policy, update
        made.append(policy)
    return policy, made


def _pick(section: Any, *names: str) -> dict[str, Any]:
    return {name: plain(getattr(section, name)) for name in names}


# --- source code that a stage depends on
# -------------------------------------------------------------------------------


STARTS = ("ratchet.components.stages.job", "run_job")  # entry point shared by all stages


def source_digest(does: str, options: Mapping[str, Any], sources: Sources | None = None) -> str:
    """Digest of the definitions that a stage reaches (see `storage/definitions.py`): from its function, the
    job runner, and each piece in its options.
    """
    return (sources or our_sources()).digest(starts(does, options))


def starts(does: str, options: Mapping[str, Any]) -> set[tuple[str, str]]:
    """Definitions where a stage's execution starts, as (module, name)."""
    pieces = _pieces()
    work = {
        key: value for key, value in plain(options).items() if key != "resolved"
    }  # the whole recipe, copied by `evaluate`
    return {(STAGES[does], does), STARTS, *(pieces[name] for name in set(_named(work, pieces)))}


def our_sources() -> Sources:
    return Sources(ROOT.parent, _pieces())


def _named(value: Any, pieces: Mapping[str, object], within: bool = False) -> Iterator[str]:
    """Pieces named in options: in a spec (`name:` and options, which may name further pieces), or by full
    name anywhere.
    """
    if isinstance(value, Mapping):
        within = within or value.get("name") in pieces
        if value.get("parser") == "auto":
            yield from catalogue("parser")
        for inner in value.values():
            yield from _named(inner, pieces, within)
    elif isinstance(value, (list, tuple)):
        for inner in value:
            yield from _named(inner, pieces, within)
    elif isinstance(value, str) and value in pieces and (within or "." in value):
        yield value


def _pieces() -> dict[str, tuple[str, str]]:
    """Module and function of each piece of every slot."""
    return {name: (piece.module, piece.function) for slot in SLOTS for name, piece in catalogue(slot).items()}
