"""A recipe as a list of stages: what each does, what it reads, and the key its product will have.

Pure and light: `ratchet plan` calls it to say what a run would do before anything is loaded.
"""

from __future__ import annotations

import ast
import functools
import hashlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ratchet.components.check_data import makes_pairs, splits_read
from ratchet.components.data.verifiers import verifiers
from ratchet.components.loop import optimised_rewards
from ratchet.components.piece import ROOT, catalogue, describe
from ratchet.components.recipe import for_round, plain
from ratchet.components.reward_models import certified, judges_of
from ratchet.components.schema import Demonstrate, Fit, Online, Preferences, Profile, Recipe
from ratchet.components.sections import PROMPT_SECTIONS
from ratchet.components.stages import STAGES
from ratchet.components.store import digest

PLACE = ("name", "ranks", "machines", "zero_stage", "offload_optimizer", "offload_parameters")
"""Of a profile: where work is done. No part of a product's key, so that a stage goes on with other ranks than it began with."""
NOT_SEEDED = ("fetch_data", "fetch_model", "make_tiny", "curate", "validate", "gold")  # the same whatever the run's seed


@dataclass(frozen=True)
class Stage:
    """One unit of work: `does` is the function, `STAGES[does]` the module it lives in."""

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
    sizes = {name: value for name, value in plain(profile).items() if name != "hardware"}

    def add(name: str, does: str, kind: str, options: Mapping[str, Any], inputs: Mapping[str, str] | None = None,
            pieces: Iterable[tuple[str, Mapping[str, Any]]] = (), heavy: bool = True, **more: Any) -> str:
        inputs = dict(inputs or {})
        seeded = {} if does in NOT_SEEDED else {"seed": recipe.seed}
        given = {**plain(options), **seeded, **({"profile": sizes} if heavy else {})}
        code = source_digest(does, pieces)
        kept = {**given, "profile": {k: v for k, v in sizes.items() if k not in PLACE}} if heavy else dict(given)
        if does == "rollout":
            del kept["rounds"]  # only a bound: a run made longer or shorter keeps the rounds it has (see `protocols.Prompts`)
        key = digest([name, does, kept, {k: stages[v].key for k, v in inputs.items()}, code])
        stages[name] = Stage(name, does, kind, given, inputs, key, **more)
        return name

    for name, source in recipe.models.items():
        where = {key: value for key, value in plain(source).items()
                 if key not in ("shape", "certificate") and (value or key not in ("base", "base_sha256", "remote_code", "role"))}
        add(f"model_{name}", "make_tiny" if source.format == "tiny" else "fetch_model", "weights", where, heavy=False)
    base = "model_policy"
    origins = [{key: value for key in ("source", "sha256", "config") if (value := getattr(one, key)) or key != "config"} for one in recipe.data.every_source]
    raw = add("raw", "fetch_data", "data", {"sources": origins} if recipe.data.sources else origins[0], heavy=False)
    transforms = [("transform", t) for t in recipe.data.transforms]
    transforms += [("transform", t) for name in PROMPT_SECTIONS if (part := getattr(recipe.data, name)) for t in part.transforms]
    named = {name for one in recipe.data.every_source for name in (catalogue("parser") if one.parser == "auto" else [one.parser["name"]])}
    parsers = [("parser", {"name": name}) for name in sorted(named)]
    checked, read = verifiers(recipe), {*splits_read(recipe).values(), *(["reward_validation"] if certified(recipe) else [])}
    drafts = add("drafts", "curate", "data", {"section": recipe.data, "read": sorted(read), **({"verifiers": checked} if checked else {})}, {"raw": raw, "policy": base},
                 [*parsers, *transforms, *(("annotate", spec) for spec in checked)], heavy=False)
    data = add("curated", "validate", "data", {"section": recipe.data}, {"drafts": drafts}, heavy=False)

    policy = base
    examples = _demonstrations(add, recipe, recipe.demonstrate, base, data) if recipe.demonstrate else data
    certificates = _certificates(add, recipe, examples, data)
    if recipe.sft:
        policy = add("sft", "sft", "weights", plain(recipe.sft), {"policy": policy, "data": examples}, _fit_pieces(recipe.sft.fit))
    initial = policy
    made, answered = recipe.demonstrate, "demonstrated"
    earlier: dict[str, str] = {}
    if recipe.preferences:
        earlier = {"demonstrations": examples} if made and made.reward else {}
        made, answered = recipe.preferences, "compared"
        examples = _preferences(add, recipe, recipe.preferences, policy, data)
    judges: dict[str, str] = {}
    if recipe.reward:
        for member, name in enumerate(recipe.reward.judges):
            options = {**plain(recipe.reward), "member": member, **({"verified_by": plain(made.annotate)} if made else {})}
            judges[name] = add(f"reward_{name}" if recipe.reward.members > 1 else "reward", "reward", "weights", options,
                               {"policy": initial, "data": examples, **earlier, **({"answers": answered} if made else {})},
                               _fit_pieces(recipe.reward.fit))
    gold: dict[str, str] = {}
    if recipe.evaluate and recipe.evaluate.gold:
        add("gold", "gold", "weights", {}, {"encoder": "model_encoder", "data": data})
        gold = {"gold": "gold", "encoder": "model_encoder"}
    others = {**{n: f"model_{n}" for n in recipe.models if n not in ("policy", "encoder")}, **certificates}

    if recipe.offline:
        section = recipe.offline
        source = examples if makes_pairs(recipe) and section.data == "reward" else data
        pairs = add("pairs", "prepare_offline", "groups", plain(section),
                    {"policy": policy, "reference": initial, "data": source, **judges, **others}, _slots(section))
        policy = add("offline", "optimise", "weights", {"fit": plain(section.fit)},
                     {"policy": policy, "groups": pairs}, _fit_pieces(section.fit))
    rounds: list[str] = []
    if recipe.online and recipe.online.cadence == "step":
        policy = add("improve", "improve", "weights", plain(recipe.online),
                     {"policy": policy, "reference": initial, "data": data, **judges, **others},
                     [*_slots(recipe.online), *_fit_pieces(recipe.online.fit)])
        rounds = [policy]
    elif recipe.online:
        policy, rounds = _rounds(add, recipe, recipe.online, policy, data, judges, gold, others)
    if recipe.evaluate:
        inputs = {"base": base, "initial": initial, "policy": policy, "data": data, **judges, **gold, **others}
        if "encoder" in recipe.models:
            inputs["encoder"] = "model_encoder"
        inputs |= {f"round_{i + 1}": stage for i, stage in enumerate(rounds)}
        inputs |= {f"scored_{i + 1}": f"annotate_{i + 1}" for i in range(len(rounds)) if f"annotate_{i + 1}" in stages}
        add("evaluate", "evaluate", "report",
            {**plain(recipe.evaluate), "judges": judges_of(recipe), "gates": plain(recipe.register.gates) if recipe.register else {},
             "recipe": recipe.name, "about": recipe.about, "resolved": plain(recipe)},
            inputs, [*(("annotate", m) for m in recipe.evaluate.metrics), *(("measure", m) for m in recipe.evaluate.measures),
                     *(("annotate", m) for m in (recipe.evaluate.best_of.annotate if recipe.evaluate.best_of else ()))])
    return stages


def _certificates(add: Any, recipe: Recipe, examples: str, data: str) -> dict[str, str]:
    """A certificate of each reward model that was not trained here, on pairs of the base model's answers where there are any."""
    found, made = {}, recipe.demonstrate
    for name in sorted(certified(recipe)):
        options = {"validation": "reward_validation", "certificate": plain(recipe.models[name].certificate or {})}
        inputs = {"model": f"model_{name}", "data": examples if made and made.reward else data}
        if made:
            options, inputs = {**options, "verified_by": plain(made.annotate)}, {**inputs, "answers": "demonstrated"}
        found[f"{name}_certificate"] = add(f"certified_{name}", "certify", "certificate", options, inputs)
    return found


def _demonstrations(add: Any, recipe: Recipe, section: Demonstrate, base: str, data: str) -> str:
    """The data sets that a recipe makes of the base model's answers, validated as the curated ones are."""
    pieces = [("rollout", section.rollout), *(("annotate", s) for s in section.annotate),
              *(("select", s) for s in [*section.sft, *section.reward])]
    unread = ["reward_validation"] if recipe.preferences and not certified(recipe) else []  # certificates are of the policy's own pairs
    made = add("demonstrated", "demonstrate", "groups", {**plain(section), "unread": unread}, {"policy": base, "data": data}, pieces)
    return _validated(add, recipe, "demonstrations", made, [kind for kind in ("sft", "reward") if getattr(section, kind)], unread)


def _preferences(add: Any, recipe: Recipe, section: Preferences, policy: str, data: str) -> str:
    """The same of the SFT policy's answers: pairs alone."""
    pieces = [("rollout", section.rollout), *(("annotate", s) for s in section.annotate), *(("select", s) for s in section.select)]
    options = {key: value for key, value in plain(section).items() if key != "select"}
    made = add("compared", "demonstrate", "groups", {**options, "sft": (), "reward": plain(section.select)}, {"policy": policy, "data": data}, pieces)
    return _validated(add, recipe, "preferences", made, ["reward"])


def _validated(add: Any, recipe: Recipe, name: str, made: str, kinds: Sequence[str], unread: Sequence[str] = ()) -> str:
    splits = {f"{kind}{end}": 1.0 for kind in kinds for end in ("", "_validation") if f"{kind}{end}" not in unread}
    return add(name, "validate", "groups", {"section": {**plain(recipe.data), "splits": splits}}, {"drafts": made}, heavy=False)


def _rounds(add: Any, recipe: Recipe, online: Online, policy: str, data: str, judges: Mapping[str, str],
            gold: Mapping[str, str], others: Mapping[str, str]) -> tuple[str, list[str]]:
    initial, previous, made = policy, policy, []
    held: list[str] = []  # selections that together hold what each earlier round chose, once
    whole = online
    watched = [online.watch.gold] if isinstance(online.watch.gold, Mapping) else []
    for i in range(1, whole.rounds + 1):
        online = for_round(whole, i)
        current = initial if online.sample_from == "initial" else policy
        answers = add(f"rollout_{i}", "rollout", "groups",
                      {**_pick(online, "rollout", "prompts", "prompts_per_round", "data", "rounds"), "round": i},
                      {"policy": current, "data": data}, [("rollout", online.rollout), ("prompts", online.prompts)], round=i)
        marked = add(f"annotate_{i}", "annotate", "groups",
                     {**_pick(online, "annotate", "max_failed", "watch", "health"), "round": i,
                      "optimised": optimised_rewards(online.annotate, online.select)},
                     {"groups": answers, "policy": current, "initial": initial, **judges, **(gold if online.watch.gold is True else {}), **others,
                      **{f"scored_{j}": f"annotate_{j}" for j in range(1, i)}},
                     [("annotate", s) for s in [*online.annotate, *watched]], round=i)
        reference = initial if online.reference == "initial" else current
        earlier = {f"earlier_{j + 1}": s for j, s in enumerate(held)} if online.keep_earlier else {}
        chosen = add(f"select_{i}", "select", "groups", {**_pick(online, "select", "prepare"), "round": i},
                     {"groups": marked, "policy": current, "reference": reference, **judges, **others, **earlier},
                     _slots(online), round=i)
        held = [chosen] if online.keep_earlier else [*held, chosen]
        update = add(f"optimise_{i}", "optimise", "weights", {"fit": plain(online.fit), "round": i},
                     {"policy": policy, "groups": chosen, "annotated": marked, "previous": previous},
                     _fit_pieces(online.fit), round=i)
        previous, policy = policy, update
        made.append(policy)
    return policy, made


def _pick(section: Any, *names: str) -> dict[str, Any]:
    return {name: plain(getattr(section, name)) for name in names}


def _slots(section: Any) -> list[tuple[str, Mapping[str, Any]]]:
    found = [("annotate", s) for s in [*section.annotate, *section.prepare]] + [("select", s) for s in section.select]
    if not isinstance(section, Online):
        return found
    anchors = [("anchor", section.reference)] if isinstance(section.reference, Mapping) else []
    return [*found, ("rollout", section.rollout), ("prompts", section.prompts), *anchors]


def _fit_pieces(fit: Fit) -> list[tuple[str, Mapping[str, Any]]]:
    pieces = [("objective", spec) for parts in fit.updates.values() for spec in parts]
    knobs = [("knob", v) for _, spec in pieces for v in spec.values() if isinstance(v, Mapping) and "name" in v]
    return [*pieces, *knobs, ("adapter", fit.adapter)]


# --- the source a stage depends on ------------------------------------------------------------------------------


def source_digest(does: str, pieces: Iterable[tuple[str, Mapping[str, Any]]]) -> str:
    """Digest of the stage's module, of the named pieces and of everything of ours they import."""
    module = _file(STAGES[does])
    files: set[Path] = set()
    for path in [module, *(describe(slot, spec["name"]).path for slot, spec in pieces)]:
        files |= _closure(path)
    return digest({str(f.relative_to(ROOT.parent)): _hash(f) for f in sorted(files)})



@functools.cache
def _hash(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()


@functools.cache
def _closure(path: Path) -> frozenset[Path]:
    seen: set[Path] = set()
    queue = [path]
    while queue:
        file = queue.pop()
        if file in seen or not file.exists():
            continue
        seen.add(file)
        for node in ast.walk(ast.parse(file.read_text())):
            modules = []
            if isinstance(node, ast.ImportFrom) and node.module and not node.level:
                modules = [node.module, *(f"{node.module}.{a.name}" for a in node.names)]
            elif isinstance(node, ast.Import):
                modules = [a.name for a in node.names]
            for module in modules:
                if module.startswith("ratchet."):
                    queue.append(_file(module))
    return frozenset(seen)


def _file(module: str) -> Path:
    return ROOT.parent.joinpath(*module.split(".")[1:]).with_suffix(".py")
