"""Sizes that the costs of a recipe are counted with: data sets and answers in tokens, optimiser steps, and
memory of models in bytes.
"""

from __future__ import annotations

import ast
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ratchet.components.estimates.memory import (
    ENGINE,
    PROCESS,
    TOKENIZER,
    Layout,
    Parts,
    inference_bytes,
    sampling,
    scoring,
)
from ratchet.components.estimates.observed import Observed
from ratchet.components.estimates.shape import Shape
from ratchet.components.estimates.split import Split
from ratchet.components.piece import describe
from ratchet.components.recipes.check_models import prompt_tokens
from ratchet.components.recipes.phases import sections
from ratchet.components.recipes.plain_values import plain
from ratchet.components.recipes.plan import Stage
from ratchet.components.recipes.profile import Profile, engine_processes
from ratchet.components.recipes.schema import Recipe, Reward

MAX_TOKENS = 128
"""Maximum length of an answer in tokens, for a rollout without the option `max_tokens`."""
MAPPED = ("weights", "reward models")
"""Parts that engine processes of a machine share: weights are mapped from their files."""


@dataclass(frozen=True)
class Answered:
    """Tokens of the data that a stage makes by answering prompts: of a prompt in the mean, of an answer at
    most; and the number of answers to a prompt.
    """

    prompt: float
    answer: int
    each: int

    @property
    def text(self) -> float:
        return self.prompt + self.answer

    @property
    def all_texts(self) -> float:
        """Tokens of a prompt with all its answers, which share it."""
        return self.prompt + self.each * self.answer


class Sizes:
    """Sizes of a recipe on a profile. `phase`: section of the stage whose cost is counted, None outside of
    phases. Tokens count answers at their `observed` mean length, memory at their maximum length.
    """

    def __init__(
        self,
        recipe: Recipe,
        profile: Profile,
        shape: Shape,
        splits: Mapping[str, Split],
        observed: Observed | None = None,
    ) -> None:
        self.recipe, self.profile, self.shape, self.splits = recipe, profile, shape, splits
        self.observed = observed or Observed()
        self.phase: Any = None
        self.answer = 0.0  # mean tokens of the answers of the round whose stages are counted
        self.selected = 0.0  # and the number of groups that it keeps
        self.prepared = Split(math.nan, 0.0)  # what an offline phase learns from
        self.prepared_unit = 0.0  # and the tokens of one of its groups, if they are all pairs of a prompt
        self.answered: dict[str, Answered] = {}  # by the stage that made the data
        self.layout = Layout.of(profile)
        rewards = [one for one in sections(recipe) if isinstance(one.section, Reward)]
        self.trained = [model for one in rewards for model in one.models]
        depths: list[int | None] = [getattr(one.section, "layers", None) for one in rewards]
        self.reward_shape = shape.first(max((n or shape.layers for n in depths), default=None))
        self.reward_layer_share = self.reward_shape.layers / shape.layers
        self.saved_weight_bytes = float(self.layout.weight * shape.parameters)

    def rollout_shape(self) -> tuple[int, int, int]:
        """(prompts per round, maximum answer length, answers per prompt)."""
        rollout = self.phase.rollout
        return (
            self.phase.prompts_per_round,
            rollout.get("max_tokens", MAX_TOKENS),
            rollout.get("responses_per_prompt", 1),
        )

    def prompt_tokens(self) -> float:
        """Mean tokens of a prompt of the phase, the maximum while they are unknown."""
        return self.prompt_split().tokens

    def prompt_split(self) -> Split:
        """The split whose prompts the phase samples."""
        return self.split(self.phase.data, None, None)

    def longest_text(self) -> float:
        """Tokens of a prompt of mean length with an answer of maximum length."""
        return self.prompt_tokens() + self.rollout_shape()[1]

    def texts(self, prompts: float, each: int) -> float:
        """Tokens of prompts with `each` answers of the round whose cost is counted. A model reads a prompt
        once.
        """
        return prompts * (self.prompt_tokens() + each * self.answer)

    def pairs(self, split: Split) -> float:
        """Tokens of the pairs of a data set, whose answers share a prompt; an answer may be all of a text."""
        return split.groups * (split.tokens + self.observed.answer("", split.tokens))

    def split(self, name: str, limit: int | None, longest: int | None, source: str = "curated") -> Split:
        """The split that the stage `source` made if known, else the recipe's bounds: `limit` groups of the
        maximum length, or of the longest answers that `source` can have sampled.
        """
        made = self.splits.get(name) if source == "curated" else self.observed.data.get(source, {}).get(name)
        bound = prompt_tokens(self.recipe, name) or longest or 0
        if source in self.answered:
            bound = min(bound or math.inf, self.answered[source].text)
        groups, tokens = (made.groups, made.tokens) if made else (math.nan, float(bound))
        most = max(made.longest, tokens) if made else tokens
        if limit is not None:
            groups = at_most(groups, limit)
        return Split(groups, *((min(n, longest) if longest else n) for n in (tokens, most)))

    def steps(self, fit: Mapping[str, Any], groups: float) -> float:
        """Optimiser steps of a fit on `groups` groups; nan if these are unknown and nothing bounds them."""
        steps = parts_of(groups, fit["batch"]) * fit["epochs"]
        return at_most(steps, fit["max_steps"]) if fit["max_steps"] else steps

    def sampling_memory(self, rollout: Mapping[str, Any], prompts: Split, each: int | None = None) -> Parts:
        """Bytes of a stage that answers `prompts` by a rollout, `each` answers a prompt if not the rollout's
        own number.
        """
        rows: int = each or rollout.get("responses_per_prompt", 1)
        slices = parts_of(prompts.groups * rows, self.profile.max_num_seqs)
        return self.on_engines(self.engine_memory(rollout, prompts, rows), slices)

    def engine_memory(self, rollout: Mapping[str, Any], prompts: Split, each: int) -> Parts:
        """Bytes of one engine that answers `prompts`. A rollout that puts earlier turns into its prompts
        (`earlier_turns`) has longer ones, no two of which need be equal.
        """
        answer, earlier = rollout.get("max_tokens", MAX_TOKENS), earlier_turns(rollout)
        mean, longest = (
            n + earlier * (n + answer) for n in (prompts.tokens, max(prompts.tokens, prompts.longest))
        )
        most = max(self.profile.max_num_seqs, each)
        rows = most if math.isnan(prompts.groups) else min(most, max(prompts.groups, 1) * each)
        same = 1 if earlier else each
        return sampling(
            self.shape, self.profile, prompt=mean, longest=longest, answer=answer, rows=rows, each=same
        )

    def on_engines(self, parts: Parts, slices: float) -> Parts:
        """`parts` of one engine as those of one device. Engines that share the memory of a machine (no
        `memory_gb`) take them as many times as there are engines, and a process each; the weights are mapped
        from one file and counted once. At most `slices` of them work (nan: all).
        """
        count = engine_processes(plain(self.profile))
        alone = count == 1 and self.profile.machines == 1  # the stage's process computes
        if self.profile.hardware.memory_gb is not None or alone:
            return {"process": PROCESS, **parts}
        busy = at_most(slices, float(count))
        each = {name: size * (1 if name in MAPPED else busy) for name, size in parts.items()}
        return {"process": PROCESS + busy * (ENGINE + TOKENIZER * self.shape.vocabulary), **each}

    def scoring_memory(self, reward_models: int, *, tokens: float, models: int = 1) -> Parts:
        """Bytes of a stage that scores `tokens` tokens (nan: unknown) with `models` models of the policy's
        size and with reward models.
        """
        one = scoring(self.shape, self.profile, self.profile.tokens_per_microbatch, reward=not models)
        reward_bytes = inference_bytes(self.profile) * self.reward_shape.parameters * reward_models
        parts = {
            **{name: size * (1 if name == "activations" else models) for name, size in one.items()},
            **({"reward models": float(reward_bytes)} if reward_bytes else {}),
        }
        batches = parts_of(tokens, self.profile.tokens_per_microbatch)
        return self.on_engines(parts, max(batches, 1))  # few of them are a slice each (stages/shards.py)

    def by_prompt(self, *sources: str) -> float:
        """Most tokens of a group of all pairs of a prompt that these stages sampled; 0 if unknown."""
        return max((self.answered[one].all_texts for one in sources if one in self.answered), default=0.0)

    def rounds_kept(self, stage: Stage) -> int:
        """Rounds whose groups a round trains on: with `keep_earlier`, those before it too."""
        return stage.round or 1 if self.phase.keep_earlier else 1

    def other_models(self, stage: Stage) -> float:
        """Bytes of the models that an online phase in memory holds besides its learners and the policy's
        engine: the engines and targets of its roles, the reference, reward models and others that its pieces
        read.
        """
        options, names = stage.options, {"reference"} if stage.options["watch"].get("kl_prompts") else set()
        slots = {"annotate": "annotate", "prepare": "annotate", "fresh": "annotate", "select": "select"}
        for section in (options, *options["roles"].values()):
            for key, slot in slots.items():
                names |= self.models_read(slot, section.get(key, ()))
        moves = options["reference"] != "initial"  # then the reference is an engine of its own, in `exact`
        if options["fit"]["adapter"]["name"] == "lora" and not moves:  # the policy with its adapter disabled
            names -= {"reference"}
        names |= self.models_read("rollout", [options["rollout"]])
        names &= {*stage.inputs} - {"policy", *options["roles"], *(["reference"] if moves else [])}
        targets = sum(role["target"] is not None for role in options["roles"].values())
        exact = 4.0 * self.shape.parameters * (targets + moves)  # in float32, as updates are small
        rewards = names & {*self.trained}
        loaded = len(options["roles"]) + len(names - rewards)
        engine = scoring(self.shape, self.profile, 0)
        return (
            exact
            + loaded * (engine["weights"] + engine["output layer"])
            + len(rewards) * float(inference_bytes(self.profile) * self.reward_shape.parameters)
        )

    def models_read(self, slot: str, specs: Sequence[Mapping[str, Any]]) -> set[str]:
        """Names of the models that pieces read."""
        return {model for spec in specs for model in describe(slot, spec["name"]).named("models", spec)}

    def passes(self, specs: Sequence[Mapping[str, Any]]) -> float:
        """Forward passes of the full model that these annotators make: one per model used; reward models
        count by their share of the layers.
        """
        return sum(
            self.reward_layer_share if model in self.trained else 1.0
            for spec in specs
            for model in describe("annotate", spec["name"]).named("models", spec)
        )

    def groups_kept(self, stage: Stage, groups: float) -> float:
        """Number of groups that a stage keeps of `groups`."""
        return min(groups, self.observed.groups.get(stage.name, groups))

    def trained_answers_per_prompt(
        self, updates: Mapping[str, Sequence[Mapping[str, Any]]], each: int
    ) -> int:
        """Answers to a prompt that are trained on: two for a pairwise objective, else all `each`."""
        return min(2, each) if "pair" in units(updates) else each


def units(updates: Mapping[str, Sequence[Mapping[str, Any]]]) -> set[str]:
    """Units (row, pair, group) of the objectives of a fit."""
    return {describe("objective", part["name"]).unit for parts in updates.values() for part in parts}


def parts_of(count: float, size: float) -> float:
    """Number of parts of at most `size` that `count` is divided into; nan if `count` is unknown."""
    return -(-count // size)


def at_most(number: float, bound: float) -> float:
    """The smaller one of a number, which may be unknown (nan), and its bound."""
    return bound if math.isnan(number) else min(bound, number)


def earlier_turns(rollout: Mapping[str, Any]) -> int:
    """Number of earlier exchanges (a prompt and its answer) in the longest prompts of a rollout: `EXCHANGES`
    in the file of the piece, without which it is 0.
    """
    return _constant("rollout", rollout["name"], "EXCHANGES", 0) if rollout.get("name") else 0


def joins_prompts(specs: Sequence[Mapping[str, Any]]) -> bool:
    """Whether a selector joins all pairs of a prompt to one group: `ALL_PAIRS` in the file of the piece."""
    return any(_constant("select", spec["name"], "ALL_PAIRS", False) for spec in specs)


def _constant(slot: str, name: str, constant: str, default: Any) -> Any:
    for node in ast.parse(describe(slot, name).path.read_text()).body:
        if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == constant:
            return ast.literal_eval(node.value)
    return default
