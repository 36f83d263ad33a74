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

from ratchet.components.estimates.cost import Cost, seconds
from ratchet.components.estimates.memory import PROCESS, STATE, bounded, trained, training
from ratchet.components.estimates.observed import Observed
from ratchet.components.estimates.rates import Rates, adapter_key
from ratchet.components.estimates.shape import Shape
from ratchet.components.estimates.sizes import MAX_TOKENS, Sizes, at_most, earlier_turns, units
from ratchet.components.estimates.split import Split
from ratchet.components.recipes.phases import section_at
from ratchet.components.recipes.plan import Stage
from ratchet.components.recipes.profile import Profile
from ratchet.components.recipes.schema import Recipe

SAVED = 20.0  # bytes per token in a groups artifact: id, mask, log-prob and text, compressed


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


class StageCosts(Sizes):
    """Cost of each kind of stage; method names are those of `Stage.does`."""

    def other(self, stage: Stage) -> Cost:
        return Cost(stage, {"process": PROCESS})

    def fetch_model(self, stage: Stage) -> Cost:
        policy = stage.name == "model_policy"
        gguf = policy and self.recipe.models["policy"].format == "gguf"  # dequantised in float32
        memory = {"process": PROCESS, **({"weights": 4.0 * self.shape.parameters} if gguf else {})}
        return Cost(stage, memory, disk=self.saved_weight_bytes if policy else 0.0)

    make_tiny = make_tiny_vision = make_new = fetch_model

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
        cost = self.learned(stage, options["fit"], split, 2, self.reward_shape)
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
            cost = self.learned(stage, fit, self.prepared, 2, self.shape)
            cost.learn *= self.pairs(self.prepared) / (2 * self.prepared.groups * self.prepared.tokens or 1)
            return cost
        rows = self.trained_answers_per_prompt(fit["updates"], self.rollout_shape()[2])
        groups = Split(self.selected * self.rounds_kept(stage), self.longest_text())
        cost = self.learned(stage, fit, groups, rows, self.shape)
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

    def answers(self, stage: Stage) -> Cost:
        """Sampling of one arm; with best-of-n decoding, n times as many answers, each scored."""
        options, rollout, best_of = stage.options, stage.options["rollout"], stage.options.get("best_of")
        held_out = self.split(options["data"], options["prompts"], None)
        answer = self.observed.answer(stage.name, rollout.get("max_tokens", MAX_TOKENS))
        each = rollout.get("responses_per_prompt", 1)
        drawn, text = each * (best_of["n"] if best_of else 1), held_out.tokens + answer
        read = held_out.groups * (held_out.tokens + drawn * answer)
        chosen = read * self.passes(best_of["annotate"]) if best_of else 0.0
        return Cost(
            stage,
            self.sampling_memory(rollout, held_out, drawn),
            disk=held_out.groups * each * text * SAVED,
            score=held_out.groups * held_out.tokens + chosen,
            sample=float(held_out.groups * drawn * answer),
            models=1,
        )

    def evaluate(self, stage: Stage) -> Cost:
        """Scoring of every arm's answers by reward models and metrics, and of human replies by every arm. The
        model of one arm is loaded at a time, with the others that metrics and measures read.
        """
        options = stage.options
        measures = self.models_read("measure", options["measures"])
        others = self.models_read("annotate", options["metrics"]) | measures
        models = 1 + len(others - {"policy", *self.trained})
        of_measures = len(measures - {*self.recipe.models, *self.trained})  # no encoders: they are small
        score = 0.0
        for name, arm in options["arms"].items():
            held_out = self.split(arm["data"], options["prompts"], None)
            answer = self.observed.answer(f"answers_{name}", arm["rollout"].get("max_tokens", MAX_TOKENS))
            each = arm["rollout"].get("responses_per_prompt", 1)
            reads = (
                len(self.trained) * self.reward_layer_share + self.passes(options["metrics"]) + of_measures
            )
            human = min(options["perplexity_rows"], held_out.groups)
            score += held_out.groups * (held_out.tokens + each * answer) * reads
            score += human * (held_out.tokens + answer)
        memory = self.scoring_memory(len(self.trained), models=models, tokens=score)
        return Cost(stage, memory, score=score, models=len(options["arms"]))

    def learned(self, stage: Stage, fit: Mapping[str, Any], split: Split, rows: int, shape: Shape) -> Cost:
        """Cost of a fit on `split`, whose groups have `rows` texts each; texts of one unit go through the
        model together. Peak memory is reached in training or in saving: a checkpoint copies trained weights
        and Adam state to the host, and the final weights are reloaded in float32 by the inference engine
        while the learner exists.
        """
        read = units(fit["updates"])
        together = rows if "group" in read else min(rows, 2) if "pair" in read else 1
        packed = min(self.profile.tokens_per_microbatch, fit["batch"] * rows * split.tokens)
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
