"""Cost of each stage of a recipe on a profile: memory, disk, tokens, and time from measured or stated
throughput.

Tokens count answers at the mean length of an earlier run (`Observed`), without one at their maximum length
(`max_tokens`), an upper bound. Sizes of data sets come from curation if it has run, else from the recipe's
limits, else they are unknown (nan).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from ratchet.components.estimates.cost import SAVED, Cost, seconds
from ratchet.components.estimates.evaluation_costs import EvaluationCosts
from ratchet.components.estimates.memory import PROCESS, STATE, bounded, trained, training
from ratchet.components.estimates.observed import Observed
from ratchet.components.estimates.rates import Rates, adapter_key
from ratchet.components.estimates.shape import Shape
from ratchet.components.estimates.sizes import (
    MAX_TOKENS,
    Answered,
    at_most,
    earlier_turns,
    joins_prompts,
    units,
)
from ratchet.components.estimates.split import Split
from ratchet.components.recipes.phases import section_at
from ratchet.components.recipes.plan import Stage
from ratchet.components.recipes.profile import Profile
from ratchet.components.recipes.schema import Recipe


def estimate(
    recipe: Recipe,
    profile: Profile,
    stages: Mapping[str, Stage],
    shape: Shape,
    splits: Mapping[str, Split],
    rates: Rates | None,
    observed: Observed | None = None,
) -> list[Cost]:
    """Cost of every stage."""
    known = StageCosts(recipe, profile, shape, splits, observed)
    costs = []
    for stage in stages.values():
        known.phase = section_at(recipe, stage.phase) if stage.phase else None
        cost = getattr(known, stage.does, known.other)(stage)
        cost.memory = bounded(cost.memory, shape, profile)
        cost.seconds = seconds(cost, rates)
        costs.append(cost)
    return costs


class StageCosts(EvaluationCosts):
    """Cost of each kind of stage; method names are those of `Stage.does`."""

    def other(self, stage: Stage) -> Cost:
        return Cost(stage, {"process": PROCESS})

    def fetch_model(self, stage: Stage) -> Cost:
        policy = stage.name == "model_policy"
        gguf = policy and self.recipe.models["policy"].format == "gguf"  # dequantised in float32
        memory = {"process": PROCESS, **({"weights": 4.0 * self.shape.parameters} if gguf else {})}
        return Cost(stage, memory, disk=self.saved_weight_bytes if policy else 0.0)

    make_tiny = make_tiny_vision = make_new = fetch_model

    def validate(self, stage: Stage) -> Cost:
        if (drafts := stage.inputs["drafts"]) in self.answered:
            self.answered[stage.name] = self.answered[drafts]
        return self.other(stage)

    def sft(self, stage: Stage) -> Cost:
        options = stage.options
        source, most = stage.inputs["data"], options["max_tokens"]
        split = self.split(options["data"], options["limit"], most, source)
        cost = self.learned(stage, options["fit"], split, 1, self.shape)
        if options["validation"] and options["fit"]["validate_every"]:
            source = stage.inputs.get("validation_data", source)
            validation = self.split(options["validation"], options["limit_validation"], most, source)
            times = self.steps(options["fit"], split.groups) // options["fit"]["validate_every"] + 1
            cost.score = times * validation.groups * validation.tokens
        return cost

    def reward(self, stage: Stage) -> Cost:
        options = stage.options
        source, most = stage.inputs["data"], options["max_tokens"]
        split = self.split(options["data"], options["limit"], most, source)
        if options.get("also"):
            split = split + self.split(options["also"], None, most, stage.inputs["also"])
        group = self.by_prompt(source, stage.inputs.get("also", "")) if options["by_prompt"] else 0.0
        cost = self.learned(stage, options["fit"], split, 2, self.reward_shape, group)
        cost.learn *= self.reward_layer_share * self.pairs(split) / (2 * split.groups * split.tokens or 1)
        if options["by_prompt"] and (steps := self.observed.steps.get(stage.name)):
            fit, answer = options["fit"], self.observed.answer("", split.tokens)
            shared = steps * fit["batch"] * (split.tokens - answer)  # each prompt once, with all its pairs
            passed = self.reward_layer_share * (shared + fit["epochs"] * split.groups * 2 * answer)
            cost.learn, cost.updates = min(cost.learn, passed), min(cost.updates, steps)
        cost.updates *= self.reward_layer_share
        source = stage.inputs.get("validation_data", source)
        validation = self.split(options["validation"], options["limit_validation"], most, source)
        read = [validation, split] if options["linear_probe"] else [validation]
        cost.score = self.reward_layer_share * sum(map(self.pairs, read))
        return cost

    def demonstrate(self, stage: Stage) -> Cost:
        """Sampling and scoring of a training and a validation split."""
        options, rollout = stage.options, stage.options["rollout"] or {"max_tokens": 0}
        answer, each = rollout.get("max_tokens", MAX_TOKENS), rollout.get("responses_per_prompt", 1)
        splits = [self.split(options[name], None, None) for name in ("data", "validation") if options[name]]
        known, tokens = sum(split.known for split in splits), max(split.tokens for split in splits)
        prompts, usual = sum(split.groups for split in splits), self.observed.answer(stage.name, answer)
        text, earlier = tokens + usual, earlier_turns(rollout)
        all_prompts = Split(prompts, tokens, max(split.longest for split in splits))
        if options["rollout"]:
            self.answered[stage.name] = Answered(tokens, answer, each)
        read = prompts * (each * (earlier * text + tokens) if earlier else tokens)
        score = read + prompts * (tokens + each * usual) * self.passes(options["annotate"])
        return Cost(
            stage,
            self.sampling_memory(rollout, all_prompts)
            if options["rollout"]
            else self.scoring_memory(0, tokens=score),
            disk=known * each * text * SAVED,
            score=score,
            sample=float(prompts * each * usual),
            models=1,
        )

    def prepare_offline(self, stage: Stage) -> Cost:
        options = stage.options
        split = self.split(options["data"], options["limit"], options["max_tokens"], stage.inputs["data"])
        self.prepared = split
        self.prepared_unit = self.by_prompt(stage.inputs["data"]) if joins_prompts(options["select"]) else 0.0
        score = self.passes([*options["annotate"], *options["prepare"]]) * self.pairs(split)
        return Cost(
            stage,
            self.scoring_memory(0, tokens=score),
            disk=split.known * 2 * split.tokens * SAVED,
            score=score,
            models=1,
        )

    def optimise(self, stage: Stage) -> Cost:
        fit = stage.options["fit"]
        if stage.round is None:
            cost = self.learned(stage, fit, self.prepared, 2, self.shape, self.prepared_unit)
            cost.learn *= self.pairs(self.prepared) / (2 * self.prepared.groups * self.prepared.tokens or 1)
            return cost
        _, answer, each = self.rollout_shape()
        rows = self.trained_answers_per_prompt(fit["updates"], each)
        groups = Split(self.selected * self.rounds_kept(stage), self.longest_text())
        joined = joins_prompts(self.phase.select)
        group = Answered(self.prompt_tokens(), answer, each).all_texts if joined else 0.0
        cost = self.learned(stage, fit, groups, rows, self.shape, group)
        cost.learn *= self.texts(1, rows) / (rows * self.longest_text())
        return cost

    def rollout(self, stage: Stage) -> Cost:
        prompts, most, each = self.rollout_shape()
        self.answer, self.selected = self.observed.answer(stage.name, most), prompts
        return Cost(
            stage,
            self.sampling_memory(self.phase.rollout, replace(self.prompt_split(), groups=prompts)),
            disk=prompts * each * self.longest_text() * SAVED,
            score=prompts * self.prompt_tokens(),
            sample=float(prompts * each * self.answer),
            models=1,
        )

    def annotate(self, stage: Stage) -> Cost:
        prompts, _, each = self.rollout_shape()
        passes = self.passes(stage.options["annotate"])
        watched = stage.options["watch"].get("kl_prompts", 0) if (stage.round or 0) > 1 else 0
        names = self.models_read("annotate", stage.options["annotate"]) | ({"policy"} if watched else set())
        score = self.texts(prompts, each) * passes + self.texts(watched, 1)
        rewards = names & {*self.trained}
        return Cost(
            stage,
            self.scoring_memory(len(rewards), models=len(names - rewards), tokens=score),
            disk=prompts * each * self.longest_text() * SAVED,
            score=score,
            models=1,
        )

    def propose(self, stage: Stage) -> Cost:
        prompts, _, each = self.rollout_shape()
        score = self.texts(prompts, each) * self.passes(stage.options["annotate"])
        memory = self.scoring_memory(len(self.trained), tokens=score)
        return Cost(stage, memory, disk=prompts * each * self.longest_text() * SAVED, score=score, models=1)

    def select(self, stage: Stage) -> Cost:
        prompts, _, each = self.rollout_shape()
        self.selected = self.groups_kept(stage, prompts)
        rows = self.trained_answers_per_prompt(self.phase.fit.updates, each)
        groups = self.selected * self.rounds_kept(stage)
        score = self.texts(groups, rows) * self.passes(stage.options["prepare"])
        return Cost(
            stage,
            self.scoring_memory(0, tokens=score),
            disk=groups * rows * self.longest_text() * SAVED,
            score=score,
            models=1,
        )

    def improve(self, stage: Stage) -> Cost:
        prompts, most, each = self.rollout_shape()
        self.answer = self.observed.answer(stage.name, most)
        options, groups = stage.options, Split(prompts * stage.options["rounds"], self.longest_text())
        cost, *roles = [
            self.learned(stage, one["fit"], groups, each, self.shape)
            for one in (options, *options["roles"].values())
        ]
        engine = self.engine_memory(self.phase.rollout, replace(self.prompt_split(), groups=prompts), each)
        cost.memory = {
            **cost.memory,
            "activations": max(one.memory["activations"] for one in (cost, *roles)),
            "roles": sum(one.memory[part] for one in roles for part in STATE),
            "engine": sum(engine.values()) - engine["KV cache"],
            "KV cache": engine["KV cache"],
            "other models": self.other_models(stage),
        }
        for one in roles:
            cost.host, cost.disk, cost.learn, cost.updates = (
                cost.host + one.host,
                cost.disk + one.disk,
                cost.learn + one.learn,
                cost.updates + one.updates,
            )
        asked, passes = prompts * options["rounds"], self.passes([*options["annotate"], *options["prepare"]])
        cost.learn *= self.texts(1, each) / (each * self.longest_text())
        cost.score = self.texts(asked, each) * passes + asked * self.prompt_tokens()
        cost.sample, cost.models = float(asked * each * self.answer), 2
        return cost

    def learned(
        self,
        stage: Stage,
        fit: Mapping[str, Any],
        split: Split,
        rows: int,
        shape: Shape,
        group: float = 0.0,
    ) -> Cost:
        """Cost of a fit on `split`, whose groups have `rows` texts each, or up to `group` tokens if that is
        more; texts of one unit go through the model together. Peak memory is reached in training or in
        saving: a checkpoint copies trained weights and Adam state to the host, and the final weights are
        reloaded in float32 by the inference engine while the learner exists.
        """
        read = units(fit["updates"])
        together = rows if "group" in read else min(rows, 2) if "pair" in read else 1
        tokens = fit["batch"] * max(rows * split.tokens, group)
        packed = min(self.profile.tokens_per_microbatch, tokens)
        parts, host = training(shape, fit["adapter"], self.layout, max(packed, together * split.tokens))
        memory = {"process": PROCESS, **parts}
        gpu = self.profile.hardware.memory_gb is not None
        if gpu or not self.layout.loaded:
            learns, _ = trained(shape, fit["adapter"])
            saving = max(
                0 if gpu else (self.layout.weight + self.layout.optimiser) * learns, 4.0 * shape.parameters
            )
            memory["saving"] = max(0.0, saving - parts["activations"] - parts["gradients"])
        steps = self.steps(fit, split.groups)
        passed = at_most(split.groups * fit["epochs"], steps * fit["batch"])
        return Cost(
            stage,
            memory,
            host,
            disk=4.0 * shape.parameters,
            learn=passed * rows * split.tokens,
            updates=steps,
            adapter=adapter_key(fit["adapter"]),
            models=3,
        )
