"""A recipe, checked before anything heavy is imported: each column is written before it is read, each gate measured, each size possible."""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping

from ratchet.components.check_data import check_kinds, check_splits
from ratchet.components.conform import known_keys
from ratchet.components.errors import RecipeError, nearest
from ratchet.components.evaluation.health import RULES
from ratchet.components.evaluation.measured import ENDS, measured
from ratchet.components.loop import reward_columns
from ratchet.components.piece import catalogue, describe
from ratchet.components.reduce import legal
from ratchet.components.reward_models import certified, optimised_models
from ratchet.components.schema import Demonstrate, Fit, Offline, Online, Preferences, Profile, Recipe, Reward, Spec
from ratchet.components.sections import SINGLE, kind_of


def check(recipe: Recipe, rounds: Mapping[str, Online]) -> None:
    """Walk the columns through every section of a resolved recipe, and through `rounds`: the online section as the rounds
    that change it run it, by their place in the recipe. What is read before it is written, or cannot be, is a `RecipeError`.
    """
    _check_names({"name": recipe.name, **{f"models.{n}": n for n in recipe.models},
                  **({"register.model": recipe.register.model} if recipe.register else {})})
    known = {"policy", "reference", *recipe.models, *(recipe.reward.judges if recipe.reward else ())}
    if "policy" not in recipe.models:
        raise RecipeError(f"models: needs 'policy', the model that learns; got {', '.join(recipe.models) or 'none'}")
    if not all(one.source for one in recipe.data.every_source):
        raise RecipeError("data: needs 'source', the address of the data, such as path:conversations.jsonl")
    if recipe.evaluate and recipe.evaluate.gold and "encoder" not in recipe.models:
        raise RecipeError("evaluate.gold: the gold judge reads sentence embeddings, and the recipe names no models.encoder; add it, or set evaluate.gold to false")
    check_splits(recipe)
    check_kinds(recipe)
    _check_reward_models(recipe)
    if recipe.demonstrate:
        _check_demonstrate(recipe, recipe.demonstrate)
    if recipe.preferences:
        _check_preferences(recipe, recipe.preferences)
    if recipe.sft:
        _check_fit(recipe.sft.fit, set(), "sft.fit")
    if recipe.reward:
        _check_reward(recipe.reward, recipe.demonstrate, recipe.preferences)
    for where, section in {"offline": recipe.offline, "online": recipe.online, **rounds}.items():
        if section is not None:
            _check_section(section, known, where)
    if recipe.evaluate:
        have, arms = set[str](), {"base", "initial", "policy"}
        for spec in recipe.evaluate.metrics:
            have = _check_piece("annotate", spec, have, (known | arms) - {"reference", "encoder"}, "evaluate.metrics")
        for spec in recipe.evaluate.measures:
            _check_piece("measure", spec, set(), (known | arms) - {"reference"}, "evaluate.measures")
        if recipe.evaluate.best_of:
            best: set[str] = set()
            for spec in recipe.evaluate.best_of.annotate:
                best = _check_piece("annotate", spec, best, (known | arms) - {"reference", "encoder"}, "evaluate.best_of.annotate")
    if recipe.online and recipe.online.watch.gold is True and not (recipe.evaluate and recipe.evaluate.gold):
        raise RecipeError("online.watch.gold: needs a gold judge; set `evaluate.gold: true`")
    _check_gates(recipe)
    _check_independent(recipe)
    if recipe.register and (score := recipe.register.champion.score):
        scores = ["length", *(name.removeprefix("final.") for name in measured(recipe) if re.match(r"final\.(gold$|reward\.)", name))]
        if score not in scores:
            raise RecipeError(f"register.champion.score: no {score!r} is measured for each prompt{nearest(score, scores)}")


def check_window(recipe: Recipe, profile: Profile) -> None:
    """vLLM's window holds the longest prompt and its answer."""
    sections = {"demonstrate": recipe.demonstrate, "preferences": recipe.preferences, "online": recipe.online} if profile.engine == "vllm" else {}
    for where, section in sections.items():
        if section is not None:
            prompt, answer = recipe.data.of(section.data).max_tokens, section.rollout.get("max_tokens", 0)
            if prompt + answer > profile.vllm.max_model_len:
                raise RecipeError(f"profile {profile.name}: vllm.max_model_len: {profile.vllm.max_model_len} tokens, but the longest prompt (data.{section.data}"
                                  f".max_tokens: {prompt}) and answer ({where}.rollout.max_tokens: {answer}) have {prompt + answer}; raise it or lower these")


def _check_names(names: Mapping[str, str]) -> None:
    """Some names become names of files and folders: none may lead out of the run's."""
    for where, name in names.items():
        if not re.fullmatch(r"\w[\w .+-]{0,99}", str(name)):
            raise RecipeError(f"{where}: {name!r} becomes the name of a folder; write letters, digits, spaces and _ . + - only, "
                              "the first a letter or a digit, at most 100")


def _check_demonstrate(recipe: Recipe, section: Demonstrate) -> None:
    """Columns in order, and every section that reads what is made here finds it."""
    have = set(describe("rollout", section.rollout["name"]).named("writes", section.rollout))
    for spec in section.annotate:
        have = _check_piece("annotate", spec, have, {"policy"}, "demonstrate.annotate")
    for kind in ("sft", "reward"):
        wanted = getattr(recipe, kind)
        for spec in getattr(section, kind):
            _check_piece("select", spec, have, {"policy"}, f"demonstrate.{kind}")
        if wanted is None or (kind == "reward" and recipe.preferences):
            continue
        if not getattr(section, kind):
            raise RecipeError(f"demonstrate.{kind}: names no selector, but the section `{kind}` learns from what it makes; name one, "
                              f"or remove the section `{kind}`")
        if (wanted.data, wanted.validation or f"{kind}_validation") != (kind, f"{kind}_validation"):
            raise RecipeError(f"{kind}.data: with a `demonstrate` section expected {kind!r} and {kind + '_validation'!r}, "
                              f"got {wanted.data!r} and {wanted.validation!r}")


def _check_preferences(recipe: Recipe, section: Preferences) -> None:
    have = set(describe("rollout", section.rollout["name"]).named("writes", section.rollout))
    for spec in section.annotate:
        have = _check_piece("annotate", spec, have, {"policy"}, "preferences.annotate")
    for spec in section.select:
        _check_piece("select", spec, have, {"policy"}, "preferences.select")
    if recipe.reward is None:
        raise RecipeError("preferences: makes pairs that nothing reads; add a section `reward`, or leave `preferences` out")
    if (recipe.reward.data, recipe.reward.validation) != ("reward", "reward_validation"):
        raise RecipeError(f"reward.data: with a `preferences` section expected 'reward' and 'reward_validation', "
                          f"got {recipe.reward.data!r} and {recipe.reward.validation!r}")


def _check_reward(reward: Reward, demonstrate: Demonstrate | None, preferences: Preferences | None) -> None:
    source = preferences or demonstrate
    selectors = preferences.select if preferences else demonstrate.reward if demonstrate else []
    where = "preferences.select" if preferences else "demonstrate.reward"
    pieces = [spec["name"] for spec in selectors]
    if reward.certificate.min_contrast_accuracy is not None and "contrast" not in pieces:
        raise RecipeError(f"reward.certificate.min_contrast_accuracy: nothing makes contrast pairs; add {{name: contrast}} to {where} "
                          f"(now {pieces}), or leave the limit out")
    if reward.certificate.best_of_n_rises and (not source or source.rollout.get("responses_per_prompt", 1) < 2):
        raise RecipeError("reward.certificate.best_of_n_rises: best of n is measured on the verified answers of a `preferences` or `demonstrate` section; expected "
                          "one with rollout.responses_per_prompt of at least 2, " +
                          (f"got {source.rollout.get('responses_per_prompt', 1)}" if source else "got none") + ". Set it, or leave the limit out")
    probed = reward.linear_probe
    _check_fit(reward.fit, {"margin"}, "reward.fit", role="judge", untrained=probed, gives=("scores",))
    if not probed or reward.fit.epochs:
        return
    if reward.members > 1:
        raise RecipeError(f"reward.members: {reward.members} members that only a linear probe made are all the same; train them "
                          "(reward.fit.epochs over 0), start them without the probe, or ask for one")
    *more, last = reward.fit.updates["judge"]
    if more or (last["name"], last["weight"]) != ("ranking.bradley_terry", 1.0):
        raise RecipeError(f"reward.fit.updates.judge: {last['name']!r} as it stands there would change nothing: with reward.fit.epochs 0 the linear "
                          "probe is all, and it fits plain Bradley-Terry. Set reward.fit.epochs to 1 or more to train with it, or leave "
                          "ranking.bradley_terry alone, with weight 1")


def _check_gates(recipe: Recipe) -> None:
    """Every gate sets a bound on a metric that the evaluation of this recipe will measure."""
    gates = recipe.register.gates if recipe.register else {}
    if gates and recipe.evaluate is None:
        raise RecipeError("register.gates: nothing is measured without an `evaluate` section; add one, or leave the gates out")
    metrics = measured(recipe)
    for name, gate in gates.items():
        at = f"register.gates.{name}"
        if gate.over is None and gate.below is None:
            raise RecipeError(f"{at}: sets no bound; write `over: <number>` or `below: <number>`")
        base, _, end = name.rpartition(".")
        if name not in metrics and not (end in ENDS and metrics.get(base)):
            raise RecipeError(f"{at}: the evaluation of this recipe does not measure it (null leaves the gate out){nearest(name, metrics)}")
        if gate.interval and not metrics.get(name):
            raise RecipeError(f"{at}: is one number without an interval; leave `interval` out")


def _check_reward_models(recipe: Recipe) -> None:
    """Every reward model among `models` that training optimises against is declared as one, and there are pairs to certify it on."""
    trained = recipe.reward.judges if recipe.reward else ()
    for name in trained:
        if name in recipe.models:
            raise RecipeError(f"models.{name}: the section `reward` makes a model of that name; give this one another name, or set reward to null")
    for name in sorted(optimised_models(recipe) & set(recipe.models)):
        if recipe.models[name].role != "reward":
            raise RecipeError(f"models.{name}.role: training optimises against this model, so it needs a certificate; expected `role: reward`, got none")
    for name, source in recipe.models.items():
        if source.certificate is not None and source.role != "reward":
            raise RecipeError(f"models.{name}.certificate: only a reward model has one; expected `role: reward` beside it")
        limits, made = source.certificate, recipe.demonstrate
        if limits is not None and limits.best_of_n_rises and (not made or made.rollout.get("responses_per_prompt", 1) < 2):
            raise RecipeError(f"models.{name}.certificate.best_of_n_rises: expected a `demonstrate` section with rollout.responses_per_prompt of at "
                              "least 2, whose verified answers best of n is measured on; add one, or leave the limit out")
    splits = recipe.data.splits
    for name in sorted(certified(recipe)):
        if not (recipe.demonstrate and recipe.demonstrate.reward) and splits and "reward_validation" not in splits:
            raise RecipeError(f"models.{name}: there are no held-out pairs to certify this reward model on; expected `reward_validation` among "
                              f"data.splits, got {', '.join(splits)}. Give it a share there, or make pairs by demonstrate.reward")


def _check_independent(recipe: Recipe) -> None:
    """No reward model that training optimised against decides that the result is good: neither a gate that its scores must exceed,
    nor the comparison with the champion. A verifier may decide, for its scores are the truth; so may an upper bound on a gap."""
    if recipe.register is None or recipe.evaluate is None:
        return
    optimised = optimised_models(recipe)
    learned = {f"reward.{model}": model for model in optimised}
    learned |= {column: model for spec in recipe.evaluate.metrics for column in reward_columns([spec])
                for model in describe("annotate", spec["name"]).named("models", spec) & optimised}
    for column, model in learned.items():
        wins = f"win_rate_{column.removeprefix('reward.')}"
        names = re.compile(rf"(final\.{re.escape(column)}|{re.escape(column)}_gain_vs_\w+|{re.escape(wins)}(_lc)?_vs_\w+)(\.\w+)?")
        wrong = [f"gates.{name}" for name, gate in recipe.register.gates.items() if names.fullmatch(name) and gate is not None and gate.over is not None]
        wrong += ["champion.score"] if recipe.register.champion.score == column else []
        if wrong:
            raise RecipeError(f"register.{wrong[0]}: the policy is optimised against the reward model {model!r}, so its score rises whether or not the "
                              "answers improve; expected a measure that training did not use, such as a verifier, another reward model or the gold judge")


def _check_section(section: Offline | Online, models: set[str], where: str) -> None:
    have = set(describe("rollout", section.rollout["name"]).named("writes", section.rollout)) if isinstance(section, Online) else {
        "label" if kind_of(section.data) in SINGLE else "margin"}
    # What chooses the prompts stands where it learns from them: it reads what was scored.
    prompts = [section.prompts] if isinstance(section, Online) else []
    steps = isinstance(section, Online) and section.cadence == "step"
    for slot, specs in {"annotate": section.annotate, "prompts": prompts, "select": section.select, "prepare": section.prepare}.items():
        for spec in specs:
            kind = "annotate" if slot == "prepare" else slot
            have = _check_piece(kind, spec, have, models, f"{where}.{slot}")
            if describe(kind, spec["name"]).memory and not steps:
                raise RecipeError(f"{where}.{slot}: {spec['name']!r} remembers earlier steps, and each round runs in a process of its own; "
                                  "use it with `cadence: step`" + (", or `keep_earlier: true` in its place" if slot == "select" else ""))
    if isinstance(section, Online) and section.reference != "initial" and isinstance(section.reference, Mapping) != steps:
        raise RecipeError(f"{where}.reference: got {section.reference!r} with `cadence: {section.cadence}`; expected `initial`, or "
                          + ("an anchor such as {name: ema}" if steps else "`previous`"))
    gives = {"logprobs", "entropy"}
    if isinstance(section, Online):
        _check_watched(section, where)
        _check_sampling(section, where)
        if section.value_head and not steps:
            raise RecipeError(f"{where}.value_head: got true with `cadence: round`; only `cadence: step` trains a value head")
        gives |= {"values"} if section.value_head else set()
    _check_fit(section.fit, have, f"{where}.fit", gives=gives)


def _check_sampling(online: Online, where: str) -> None:
    """A policy gradient is one of the distribution that sampled; the learner's log-probs are those of temperature 1 with nothing cut off."""
    drawn = online.rollout
    if drawn.get("temperature") == 0 and drawn.get("responses_per_prompt", 1) > 1:
        raise RecipeError(f"{where}.rollout.temperature: 0 makes all {drawn['responses_per_prompt']} answers to a prompt the same; expected a number above 0")
    off = {name: drawn[name] for name, neutral in (("temperature", 1.0), ("top_p", 1.0), ("top_k", 0)) if drawn.get(name, neutral) != neutral}
    for spec in [spec for parts in online.fit.updates.values() for spec in parts] if off else ():
        description = describe("objective", spec["name"])
        if "advantages" in description.reads and "logprobs" in description.asks:
            name, value = next(iter(off.items()))
            raise RecipeError(f"{where}.rollout.{name}: got {value} with the policy gradient {spec['name']!r}, whose log-probs are those of temperature 1 "
                              "with nothing cut off; expected temperature 1, top_p 1 and top_k 0, or an objective that takes any answers (preference.dpo)")


def _check_watched(online: Online, where: str) -> None:
    """Every health rule is known, and what it judges by is measured."""
    known_keys(online.health, RULES, f"{where}.health")
    if isinstance(online.watch.gold, Mapping):
        named = describe("annotate", online.watch.gold["name"])
        written = sorted(c for c in named.named("writes", online.watch.gold) if c.startswith("reward.") and not c.endswith(".status"))
        if len(written) != 1:
            raise RecipeError(f"{where}.watch.gold: expected an annotator that writes one reward, got {online.watch.gold['name']!r}, which writes {written}")
    by_gold = next((rule for rule in ("reward_without_gold", "gold_drop") if rule in online.health), None)
    if online.cadence == "step":
        unseen = "the gold judge sees rounds, not steps; use it with `cadence: round`, or set it to"
        if by_gold:
            raise RecipeError(f"{where}.health.{by_gold}: {unseen} null")
        if online.watch.gold:
            raise RecipeError(f"{where}.watch.gold: {unseen} false")
    elif by_gold and not online.watch.gold:
        raise RecipeError(f"{where}.health.{by_gold}: nothing measures the gold score; set {where}.watch.gold to true, "
                          "or the rule to null")
    if "kl" in online.health and not online.watch.kl_prompts:
        raise RecipeError(f"{where}.health.kl: nothing measures the KL; say on how many prompts in {where}.watch.kl_prompts, "
                          "or set the rule to null")


def _check_piece(slot: str, spec: Spec, have: set[str], models: set[str], where: str) -> set[str]:
    description = describe(slot, spec["name"], where=where)
    _check_reads(description.named("reads", spec), have, spec["name"], where)
    writes = set(description.named("writes", spec))
    if slot == "annotate" and writes & have:
        raise RecipeError(f"{where}: {spec['name']!r} writes {sorted(writes & have)}, which is already written")
    for name in sorted(description.named("models", spec) - models):
        raise RecipeError(f"{where}: {spec['name']!r} wants model {name!r}, which nothing makes{nearest(name, models)}")
    return have | writes


def _check_fit(fit: Fit, have: set[str], where: str, *, role: str = "policy", untrained: bool = False,
               gives: Collection[str] = ("logprobs", "entropy")) -> None:
    known_keys(fit.updates, [role], f"{where}.updates")
    if fit.epochs < (0 if untrained else 1):
        raise RecipeError(f"{where}.epochs: {fit.epochs} passes over the data train nothing; use 1 or more"
                          f"{'' if untrained else ' (0 only for a reward model with linear_probe)'}")
    if not any(fit.updates.values()):
        raise RecipeError(f"{where}.updates: nothing to optimise; name at least one objective of components/objectives: `{role}: [...]`")
    for role, parts in fit.updates.items():
        labels = [spec["label"] for spec in parts]
        if twice := next((label for label in labels if labels.count(label) > 1), None):
            raise RecipeError(f"{where}.updates.{role}: two objectives have the label {twice!r}, by which metrics and states are kept; give each its own `label`")
        for spec in parts:
            description = describe("objective", spec["name"])
            at = f"{where}.updates.{role}"
            _check_reads(description.named("reads", spec), have, spec["name"], at)
            if missing := sorted(description.asks - set(gives)):
                hint = "; set online.value_head to true, with `cadence: step`" if missing == ["values"] else ""
                raise RecipeError(f"{at}: {spec['name']!r} learns from {', '.join(missing)}, and the {role} model gives {', '.join(sorted(gives))}{hint}")
            if "times" in spec:
                _check_reads(frozenset({spec["times"]}), have, f"{spec['name']}.times", at)
                if description.unit not in ("step", "row"):
                    raise RecipeError(f"{at}: {spec['name']!r} has a term a {description.unit}, and `times` multiplies steps or rows")
            try:
                problem = legal(spec["reduce"], description.unit)
            except RecipeError as unknown:
                problem = str(unknown)
            if problem:
                raise RecipeError(f"{at}: {spec['name']!r}: {problem}")


def _check_reads(reads: frozenset[str], have: set[str], name: str, where: str) -> None:
    missing = sorted(reads - have)
    if missing:
        writers = [f"{slot}: {other}" for slot in ("select", "annotate") for other, piece in catalogue(slot).items() if piece.writes & set(missing)]
        raise RecipeError(f"{where}: {name!r} reads {missing}, which nothing before it writes (have {sorted(have)})"
                          + (f"; {', '.join(writers)} would" if 0 < len(writers) < 4 else ""))
