"""Cost of the stages of the evaluation."""

from __future__ import annotations

from ratchet.components.estimates.cost import SAVED, Cost
from ratchet.components.estimates.sizes import MAX_TOKENS, Sizes
from ratchet.components.recipes.plan import Stage


class EvaluationCosts(Sizes):
    """Cost of each kind of stage; method names are those of `Stage.does`."""

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
