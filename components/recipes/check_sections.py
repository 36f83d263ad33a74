"""Static checks of training sections: columns are written before they are read, objectives get groups of the
right kind.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ratchet.components.errors import RecipeError, nearest
from ratchet.components.evaluation.health import RULES
from ratchet.components.labels.scores import SCORE
from ratchet.components.models.outputs import OUTPUTS
from ratchet.components.piece import catalogue, describe
from ratchet.components.recipes.conform import known_keys
from ratchet.components.recipes.phases import asks_people
from ratchet.components.recipes.schema import Fit, Learn, Online, Spec
from ratchet.components.training.reduce import legal


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
                    f"{where}: {spec['name']!r} compares answers to one prompt, but each prompt has a "
                    "single answer; expected "
                    "responses_per_prompt of 2 or more, and no earlier selector that keeps a single answer"
                )
            if description.makes:
                self.pairs = description.makes == "pairs"
                self.answers = 2 if self.pairs else min(self.answers, spec.get("keep", self.answers))


def check_section(section: Learn | Online, models: set[str], where: str, flow: Flow | None = None) -> None:
    """`flow`: the groups that a phase reads; an online phase samples its own."""
    if isinstance(section, Online):
        check_piece("rollout", section.rollout, set(), models, f"{where}.rollout")
        flow = sampled(section.rollout)
        if asked := asks_people(section):
            _check_people(section, asked, f"{where}.annotate")
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
        for spec in specs:
            if describe("annotate" if slot == "prepare" else slot, spec["name"]).memory and not steps:
                raise RecipeError(
                    f"{where}.{slot}: {spec['name']!r} is stateful, but each round runs in its own process; "
                    "use it with `cadence: step`"
                    + (", or use `keep_earlier: true` instead" if slot == "select" else "")
                )
    if (
        isinstance(section, Online)
        and section.reference != "initial"
        and isinstance(section.reference, Mapping) != steps
    ):
        raise RecipeError(
            f"{where}.reference: got {section.reference!r} with `cadence: {section.cadence}`; expected "
            "`initial`, or " + ("a reference update such as {name: ema}" if steps else "`previous`")
        )
    gives = OUTPUTS["policy"]
    if isinstance(section, Online):
        _check_watched(section, where)
        _check_sampling(section, where)
        if section.value_head and not steps:
            raise RecipeError(
                f"{where}.value_head: got true with `cadence: round`; only `cadence: step` trains a value "
                "head"
            )
        gives = OUTPUTS["policy_with_value"] if section.value_head else gives
    check_fit(section.fit, flow, f"{where}.fit", gives=gives)


def sampled(rollout: Spec) -> Flow:
    """Groups as a rollout returns them."""
    return Flow(
        set(describe("rollout", rollout["name"]).named("writes", rollout)),
        rollout.get("responses_per_prompt", 1),
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
                "arbitrary answers (preference.dpo)"
            )
        for name, value in older.items():
            if "logprobs.sampled" not in description.named("reads", spec) and "weight_column" not in spec:
                raise RecipeError(
                    f"{where}.{name}: got {str(value).lower()} with the policy gradient {spec['name']!r}, "
                    "which assumes on-policy answers; "
                    "use an objective with importance ratios to the sampler ({name: clip, old: "
                    "sampled}), or one for arbitrary answers "
                    "(preference.dpo)"
                )


def _check_watched(online: Online, where: str) -> None:
    """Every health rule exists, and its metric is measured."""
    known_keys(online.health, RULES, f"{where}.health")
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
            f"{where}.watch.kl_prompts, "
            "or the rule to null"
        )


def check_piece(slot: str, spec: Spec, have: set[str], models: set[str], where: str) -> set[str]:
    description = describe(slot, spec["name"], where=where)
    _check_reads(description.named("reads", spec), have, spec["name"], where)
    writes = set(description.named("writes", spec))
    if slot == "annotate" and writes & have:
        raise RecipeError(
            f"{where}: {spec['name']!r} writes {sorted(writes & have)}, which is already written"
        )
    for name in sorted(description.named("models", spec) - models):
        raise RecipeError(
            f"{where}: {spec['name']!r} needs the model {name!r}, which does not exist{nearest(name, models)}"
        )
    return have | writes


def check_fit(
    fit: Fit,
    flow: Flow,
    where: str,
    *,
    role: str = "policy",
    untrained: bool = False,
    gives: Collection[str] = OUTPUTS["policy"],
) -> None:
    known_keys(fit.updates, [role], f"{where}.updates")
    if fit.epochs < (0 if untrained else 1):
        raise RecipeError(
            f"{where}.epochs: expected 1 or more, got {fit.epochs}"
            f"{'' if untrained else ' (0 only for a reward model with linear_probe)'}"
        )
    if not any(fit.updates.values()):
        known = catalogue("objective").items()
        fitting = sorted(name for name, one in known if one.outputs <= frozenset(gives))
        raise RecipeError(
            f"{where}.updates: no objective; write `{role}: [{{name: ...}}]` with one of {', '.join(fitting)}"
        )
    for role, parts in fit.updates.items():
        labels = [spec["label"] for spec in parts]
        if twice := next((label for label in labels if labels.count(label) > 1), None):
            raise RecipeError(
                f"{where}.updates.{role}: two objectives have the label {twice!r}, which identifies "
                "metrics and state; give each its own `label`"
            )
        for spec in parts:
            description = describe("objective", spec["name"])
            at = f"{where}.updates.{role}"
            _check_reads(description.named("reads", spec), flow.columns, spec["name"], at)
            if missing := sorted(description.outputs - set(gives)):
                hint = (
                    "; set online.value_head to true, with `cadence: step`" if missing == ["values"] else ""
                )
                raise RecipeError(
                    f"{at}: {spec['name']!r} needs {', '.join(missing)}, but the "
                    f"{role.removesuffix('_model')} model outputs {', '.join(sorted(gives))}{hint}"
                )
            if description.readers and "logprobs" not in gives:
                raise RecipeError(
                    f"{at}: {spec['name']!r} reads {', '.join(sorted(description.readers))} from a language "
                    f"model, but this trains a {role.removesuffix('_model')} model"
                )
            if "weight_column" in spec:
                _check_reads(
                    frozenset({spec["weight_column"]}), flow.columns, f"{spec['name']}.weight_column", at
                )
                if description.unit == "group":
                    raise RecipeError(
                        f"{at}: {spec['name']!r} has one term per group, but `weight_column` weights steps, "
                        "rows or pairs"
                    )
            if "where" in spec:
                _check_reads(frozenset({spec["where"]}), flow.columns, f"{spec['name']}.where", at)
                if description.means:
                    raise RecipeError(
                        f"{at}: {spec['name']!r} reads means over other answers, which `where` does not "
                        "restrict; remove it, or use a selector"
                    )
            try:
                problem = legal(spec["reduce"], description.unit)
            except RecipeError as unknown:
                problem = str(unknown)
            if problem:
                raise RecipeError(f"{at}: {spec['name']!r}: {problem}")
            if description.unit == "pair" and not flow.pairs:
                raise RecipeError(
                    f"{at}: {spec['name']!r} compares a chosen with a rejected answer, but its input has "
                    "no pairs; add a "
                    "selector that makes pairs, such as best_worst, or use a split of pairs"
                )
            if (
                flow.pairs
                and ("logprobs" in description.outputs or description.readers)
                and description.unit != "pair"
                and not description.reads
            ):
                raise RecipeError(
                    f"{at}: {spec['name']!r} would also train on the rejected answers of the pairs; use "
                    "'preference.chosen', "
                    "or a selector such as best_of_n instead of one that makes pairs"
                )


def _check_people(online: Online, asked: Mapping[str, Any], where: str) -> None:
    """People are asked once a round, compare two answers to a prompt, and are either real or simulated."""
    if online.cadence == "step":
        raise RecipeError(
            f"{where}: {asked['name']!r} asks people, who answer once a round; expected `cadence: round`"
        )
    if online.rollout.get("responses_per_prompt", 1) < 2:
        raise RecipeError(
            f"{where}: {asked['name']!r} needs two answers to compare; expected responses_per_prompt of 2 or "
            "more"
        )
    simulated, verifier = asked.get("simulated") or (), asked.get("verifier", "")
    if bool(simulated) != bool(verifier):
        raise RecipeError(
            f"{where}: got simulated {list(simulated)} with verifier {verifier!r}; simulated annotators need "
            "both their error rates and the reward piece that knows the better answer"
        )
    if simulated and asked.get("overlap", 0) > 0 and len(simulated) < 2:
        raise RecipeError(f"{where}: overlap {asked['overlap']} needs two simulated annotators, got one")
    if verifier and not describe("annotate", verifier, where=f"{where}.verifier").writes:
        raise RecipeError(f"{where}.verifier: {verifier!r} writes no reward")


def _check_reads(reads: frozenset[str], have: set[str], name: str, where: str) -> None:
    missing = sorted(reads - have)
    if missing:
        writers = [
            f"{slot}: {other}"
            for slot in ("select", "annotate")
            for other, piece in catalogue(slot).items()
            if piece.writes & set(missing)
        ]
        raise RecipeError(
            f"{where}: {name!r} reads {missing}, which no earlier piece writes (available: {sorted(have)})"
            + (f"; {', '.join(writers)} would" if 0 < len(writers) < 4 else "")
        )
