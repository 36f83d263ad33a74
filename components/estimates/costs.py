"""Cost of each stage of a recipe on a profile: memory, disk, tokens, and time from measured or stated
throughput.

Answers are counted at their maximum length (`max_tokens`), so token counts are upper bounds. Data set sizes
come from curation if it has run, else from the recipe's limits; without either they are unknown (None).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from ratchet.components.estimates.memory import (
    PROCESS,
    SCORED,
    Layout,
    Parts,
    inference_bytes,
    sampling,
    scoring,
    trained,
    training,
)
from ratchet.components.estimates.rates import Rates, adapter_key
from ratchet.components.estimates.shape import Shape
from ratchet.components.piece import describe
from ratchet.components.recipes.check_models import prompt_tokens
from ratchet.components.recipes.phases import section_at, sections
from ratchet.components.recipes.plan import Stage
from ratchet.components.recipes.profile import Profile
from ratchet.components.recipes.schema import Recipe, Reward

SAVED = 20.0  # bytes per token in a groups artifact: id, mask, log-prob and text, compressed


@dataclass(frozen=True)
class Split:
    """Size of a curated data set: number of groups, and the mean over groups of the longest trajectory's
    length in tokens.
    """

    groups: int | None
    tokens: float


@dataclass
class Cost:
    """Cost of one stage. `memory`: peak bytes on one device by part; `host`: bytes of host memory; tokens by
    kind of work.
    """

    stage: Stage
    memory: Parts = field(default_factory=dict)
    host: float = 0.0
    disk: float = 0.0
    learn: float | None = 0.0
    score: float | None = 0.0
    sample: float | None = 0.0
    adapter: str = ""
    models: int = 0
    seconds: float | None = None

    @property
    def bytes(self) -> float:
        return sum(self.memory.values())

    @property
    def tokens(self) -> float | None:
        parts = (self.learn, self.score, self.sample)
        return None if any(p is None for p in parts) else sum(p for p in parts if p is not None)


def estimate(
    recipe: Recipe,
    profile: Profile,
    stages: Mapping[str, Stage],
    shape: Shape,
    splits: Mapping[str, Split],
    rates: Rates | None,
    last: Mapping[str, float],
) -> list[Cost]:
    """Cost of every stage. `last`: seconds that the same stage took in an earlier run of the same model and
    data, used for stages without token counts or with unknown throughput.
    """
    known = _Known(recipe, profile, shape, splits)
    costs = []
    for stage in stages.values():
        known.phase = section_at(recipe, stage.phase) if stage.phase else None
        cost = getattr(known, stage.does, known.other)(stage)
        cost.seconds = seconds(cost, rates)
        if (not cost.tokens and cost.tokens is not None) or cost.seconds is None:
            cost.seconds = last.get(stage.name)
        costs.append(cost)
    return costs


def seconds(cost: Cost, rates: Rates | None) -> float | None:
    """Seconds from tokens, throughput and model loads; None if any is unknown. A stage that trains (it has a
    `fit`) samples and scores on all ranks, any other one on the engines of one machine.
    """
    if rates is None or cost.learn is None or cost.score is None or cost.sample is None:
        return None
    learning = cost.learn / rates.learn[cost.adapter] if cost.learn else 0.0
    inference = cost.score / rates.score + cost.sample / rates.sample
    spread = rates.spread if "fit" in cost.stage.options else 1.0
    return learning + inference / spread + cost.models * rates.load


class _Known:
    """Cost of each kind of stage; method names are those of `Stage.does`."""

    def __init__(self, recipe: Recipe, profile: Profile, shape: Shape, splits: Mapping[str, Split]) -> None:
        self.recipe, self.profile, self.shape, self.splits = recipe, profile, shape, splits
        self.phase: Any = None
        self.layout = Layout.of(profile)
        rewards = [one for one in sections(recipe) if isinstance(one.section, Reward)]
        self.trained = [model for one in rewards for model in one.models]
        depths: list[int | None] = [getattr(one.section, "layers", None) for one in rewards]
        self.reward_shape = shape.first(max((n or shape.layers for n in depths), default=None))
        self.depth = self.reward_shape.layers / shape.layers
        self.saved = float(self.layout.weight * shape.parameters)

    def other(self, stage: Stage) -> Cost:
        return Cost(stage, {"process": PROCESS})

    def fetch_model(self, stage: Stage) -> Cost:
        return Cost(stage, {"process": PROCESS}, disk=self.saved if stage.name == "model_policy" else 0.0)

    make_tiny = fetch_model

    def sft(self, stage: Stage) -> Cost:
        options = stage.options
        split = self.split(options["data"], options["limit"], options["max_tokens"])
        cost = self.learned(stage, options["fit"], split, 1, self.shape)
        if options["validation"] and options["fit"]["validate_every"] and split.groups is not None:
            validation = self.split(options["validation"], options["limit_validation"], options["max_tokens"])
            times = self.steps(options["fit"], split.groups) // options["fit"]["validate_every"] + 1
            cost.score = _times(cost.score, times, validation, 1)
        return cost

    def reward(self, stage: Stage) -> Cost:
        options = stage.options
        split = self.split(options["data"], options["limit"], options["max_tokens"])
        cost = self.learned(stage, options["fit"], split, 2, self.reward_shape)
        validation = self.split(options["validation"], options["limit_validation"], options["max_tokens"])
        cost.score = _times(0.0, 1, validation, 2)
        if options["linear_probe"] and cost.score is not None:
            cost.score = _times(cost.score, 1, split, 2)
        cost.score = None if cost.score is None else cost.score * self.depth
        cost.learn = None if cost.learn is None else cost.learn * self.depth
        return cost

    def demonstrate(self, stage: Stage) -> Cost:
        """Sampling and scoring of a training and a validation split."""
        options, rollout = stage.options, stage.options["rollout"] or {"max_tokens": 0}
        answer, each = rollout.get("max_tokens", 128), rollout.get("responses_per_prompt", 1)
        splits = [self.split(options[name], None, None) for name in ("data", "validation") if options[name]]
        prompts, tokens = sum(split.groups or 0 for split in splits), max(split.tokens for split in splits)
        memory = self.sampled(max(prompts, 1), answer, each, tokens)
        if any(split.groups is None for split in splits):
            return Cost(stage, memory, score=None, sample=None, models=1)
        scored = prompts * tokens + prompts * each * (tokens + answer) * self.passes(options["annotate"])
        return Cost(
            stage,
            memory,
            disk=prompts * each * (tokens + answer) * SAVED,
            score=scored,
            sample=float(prompts * each * answer),
            models=1,
        )

    def prepare_offline(self, stage: Stage) -> Cost:
        options = stage.options
        split = self.split(options["data"], options["limit"], options["max_tokens"])
        passes = self.passes([*options["annotate"], *options["prepare"]])
        return Cost(
            stage, self.scored(0), disk=_all(split, 2) * SAVED, score=_times(0.0, passes, split, 2), models=1
        )

    def optimise(self, stage: Stage) -> Cost:
        fit = stage.options["fit"]
        if stage.round is None:
            section = self.phase
            return self.learned(
                stage, fit, self.split(section.data, section.limit, section.max_tokens), 2, self.shape
            )
        prompts, _, each = self.rollout_shape()
        return self.learned(
            stage, fit, Split(prompts, self.length()), self.chosen(fit["updates"], each), self.shape
        )

    def rollout(self, stage: Stage) -> Cost:
        prompts, answer, each = self.rollout_shape()
        return Cost(
            stage,
            self.sampled(prompts, answer, each),
            disk=prompts * each * self.length() * SAVED,
            score=prompts * self.prompt(),
            sample=float(prompts * each * answer),
            models=1,
        )

    def annotate(self, stage: Stage) -> Cost:
        prompts, _, each = self.rollout_shape()
        passes = self.passes(stage.options["annotate"])
        watched = (
            stage.options["watch"].get("kl_prompts", 0) if (stage.round or 0) > 1 else 0
        ) * self.length()
        return Cost(
            stage,
            self.scored(len(self.trained)),
            disk=prompts * each * self.length() * SAVED,
            score=prompts * each * self.length() * passes + watched,
            models=1,
        )

    def select(self, stage: Stage) -> Cost:
        prompts, _, each = self.rollout_shape()
        rows = prompts * self.chosen(self.online.fit.updates, each)
        passes = self.passes(stage.options["prepare"])
        return Cost(
            stage,
            self.scored(0),
            disk=rows * self.length() * SAVED,
            score=rows * self.length() * passes,
            models=1,
        )

    def improve(self, stage: Stage) -> Cost:
        prompts, answer, each = self.rollout_shape()
        options = stage.options
        cost = self.learned(
            stage, options["fit"], Split(prompts * options["rounds"], self.length()), each, self.shape
        )
        engine = self.sampled(prompts, answer, each)
        cost.memory = {
            **cost.memory,
            "engine": sum(engine.values()) - engine["KV cache"] - engine["process"],
            "KV cache": engine["KV cache"],
        }
        rows = prompts * each * options["rounds"]
        cost.score = (
            rows * self.length() * self.passes([*options["annotate"], *options["prepare"]])
            + rows / each * self.prompt()
        )
        cost.sample, cost.models = float(rows * answer), 2
        return cost

    def answers(self, stage: Stage) -> Cost:
        """Sampling of one arm; with best-of-n decoding, n times as many answers, each scored."""
        options, rollout, best_of = stage.options, stage.options["rollout"], stage.options.get("best_of")
        held_out = self.split(options["data"], options["prompts"], None)
        answer, each = rollout.get("max_tokens", 128), rollout.get("responses_per_prompt", 1)
        drawn = each * (best_of["n"] if best_of else 1)
        if held_out.groups is None:
            return Cost(stage, self.sampled(options["prompts"], answer, drawn), score=None, sample=None)
        text = held_out.tokens + answer
        chosen = held_out.groups * drawn * text * self.passes(best_of["annotate"]) if best_of else 0.0
        return Cost(
            stage,
            self.sampled(held_out.groups, answer, drawn, held_out.tokens),
            disk=held_out.groups * each * text * SAVED,
            score=held_out.groups * held_out.tokens + chosen,
            sample=float(held_out.groups * drawn * answer),
            models=1,
        )

    def evaluate(self, stage: Stage) -> Cost:
        """Scoring of every arm's answers by reward models and metrics, and of human replies by every arm."""
        options, memory = stage.options, self.scored(len(self.trained))
        score = 0.0
        for arm in options["arms"].values():
            held_out = self.split(arm["data"], options["prompts"], None)
            if held_out.groups is None:
                return Cost(stage, memory, score=None)
            answer = arm["rollout"].get("max_tokens", 128)
            rows = held_out.groups * arm["rollout"].get("responses_per_prompt", 1)
            reads = len(self.trained) * self.depth + self.passes(options["metrics"])
            human = min(options["perplexity_rows"], held_out.groups)
            score += (rows * reads + human) * (held_out.tokens + answer)
        return Cost(stage, memory, score=score, models=len(options["arms"]))

    # --- shared helpers
    # ---------------------------------------------------------------------------------------------

    @property
    def online(self) -> Any:
        return self.phase

    def rollout_shape(self) -> tuple[int, int, int]:
        """(prompts per round, maximum answer length, answers per prompt)."""
        rollout = self.online.rollout
        return (
            self.online.prompts_per_round,
            rollout.get("max_tokens", 128),
            rollout.get("responses_per_prompt", 1),
        )

    def prompt(self) -> float:
        return self.split(self.online.data, None, None).tokens

    def length(self) -> float:
        return self.prompt() + self.rollout_shape()[1]

    def split(self, name: str, limit: int | None, longest: int | None) -> Split:
        """The curated split if known, else the recipe's bounds: `limit` groups of the maximum length."""
        made = self.splits.get(name)
        bound = prompt_tokens(self.recipe, name) or longest or 0
        groups, tokens = (made.groups, made.tokens) if made else (None, float(bound))
        if limit is not None:
            groups = min(limit, groups) if groups is not None else limit
        return Split(groups, min(tokens, longest) if longest else tokens)

    def steps(self, fit: Mapping[str, Any], groups: int) -> int:
        steps = -(-groups // fit["batch"]) * fit["epochs"]
        return min(steps, fit["max_steps"]) if fit["max_steps"] else steps

    def learned(self, stage: Stage, fit: Mapping[str, Any], split: Split, rows: int, shape: Shape) -> Cost:
        """Cost of a fit on `split`, whose groups have `rows` texts each; texts of one unit go through the
        model together. Peak memory is reached in training or in saving: a checkpoint copies trained weights
        and Adam state to the host, and the final weights are reloaded in float32 by the inference engine
        while the learner exists.
        """
        units = {
            describe("objective", part["name"]).unit for parts in fit["updates"].values() for part in parts
        }
        together = rows if "group" in units else min(rows, 2) if "pair" in units else 1
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
        groups = split.groups
        passed = (
            None
            if groups is None
            else min(groups * fit["epochs"], self.steps(fit, groups) * fit["batch"]) * rows * split.tokens
        )
        return Cost(
            stage,
            memory,
            host,
            disk=4.0 * shape.parameters,
            learn=passed,
            adapter=adapter_key(fit["adapter"]),
            models=3,
        )

    def sampled(self, prompts: int, answer: int, each: int, prompt: float | None = None) -> Parts:
        rows = min(max(self.profile.max_num_seqs, each), prompts * each)
        prompt = self.prompt() if prompt is None else prompt
        return {
            "process": PROCESS,
            **sampling(self.shape, self.profile, prompt=prompt, answer=answer, rows=rows, each=each),
        }

    def scored(self, reward_models: int) -> Parts:
        """Memory of one scoring model and of reward models."""
        return {
            "process": PROCESS,
            **scoring(self.shape, self.profile, min(SCORED, self.profile.tokens_per_microbatch)),
            **(
                {
                    "reward models": float(
                        inference_bytes(self.profile) * self.reward_shape.parameters * reward_models
                    )
                }
                if reward_models
                else {}
            ),
        }

    def passes(self, specs: Sequence[Mapping[str, Any]]) -> float:
        """Forward passes of the full model that these annotators make: one per model used; reward models
        count by their depth.
        """
        return sum(
            self.depth if model in self.trained else 1.0
            for spec in specs
            for model in describe("annotate", spec["name"]).named("models", spec)
        )

    def chosen(self, updates: Mapping[str, Sequence[Mapping[str, Any]]], each: int) -> int:
        """Trained texts per prompt: two for a pairwise objective, else all."""
        units = {describe("objective", part["name"]).unit for parts in updates.values() for part in parts}
        return min(2, each) if "pair" in units else each


def _times(before: float | None, times: float, split: Split, rows: int) -> float | None:
    return (
        None
        if before is None or split.groups is None
        else before + times * split.groups * rows * split.tokens
    )


def _all(split: Split, rows: int) -> float:
    return (split.groups or 0) * rows * split.tokens
