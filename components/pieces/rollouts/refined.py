"""Rollout `refined`: the policy's answer, refined by a model that reads feedback in words."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from ratchet.components.inference.answers import encoded_anew
from ratchet.components.piece import piece
from ratchet.components.pieces.rewards.critique import feedback_to
from ratchet.components.pieces.rollouts.sample import sample
from ratchet.components.recipes.ranges import Count, PositiveShare, Temperature
from ratchet.components.types import Context, Group, Message, Prompt

EXCHANGES = 1
"""Earlier exchanges (a prompt and its answer) in the longest prompts; estimates read it from the source."""


@piece(models=("{refiner}",), paper="arXiv:2303.16755")
def refined(
    prompts: Sequence[Prompt],
    ctx: Context,
    *,
    refiner: str,
    responses_per_prompt: Count = 5,
    max_tokens: Count = 128,
    temperature: Temperature = 1.0,
    top_p: PositiveShare = 0.95,
) -> list[Group]:
    """Step 1 of imitation learning from language feedback (ILF): the policy answers once, the critic of
    `rewards.critique` says what the answer lacks, and the model `refiner`, which sees prompt, answer and
    feedback as three turns, writes `responses_per_prompt` refinements. They are returned as answers to the
    prompt alone, since neither the answer nor the feedback may be in the input that the policy learns from:
    tokens and mask are those of prompt and refinement, without log-probs. An answer that lacks nothing
    stands for all of its refinements. `meta["feedback"]` has the feedback, `meta["draft"]` the answer before.
    """
    policy, given = (
        ctx.models["policy"],
        {"max_tokens": max_tokens, "temperature": temperature, "top_p": top_p},
    )
    drafts = [group.trajectories[0] for group in sample(prompts, ctx, responses_per_prompt=1, **given)]
    feedback = [
        feedback_to(prompt.messages[-1]["content"], draft.text)
        for prompt, draft in zip(prompts, drafts, strict=True)
    ]
    asked = [
        replace(prompt, id=f"{prompt.id}/refined", messages=(*prompt.messages, *turns(draft.text, words)))
        for prompt, draft, words in zip(prompts, drafts, feedback, strict=True)
        if words
    ]
    ctx.counts["answers that need no refinement"] += len(prompts) - len(asked)
    model = replace(ctx, models={"policy": ctx.models[refiner]})
    made = iter(sample(asked, model, responses_per_prompt=responses_per_prompt, **given) if asked else [])
    groups = []
    for prompt, draft, words in zip(prompts, drafts, feedback, strict=True):
        meta = {"feedback": words, "draft": draft.text}
        found = next(made).trajectories if words else [draft] * responses_per_prompt
        answers = tuple(replace(one, meta={**one.meta, **meta}) for one in found)
        groups.append(encoded_anew(policy, Group(prompt, answers)))
    return groups


def turns(draft: str, feedback: str) -> tuple[Message, Message]:
    """The answer before and the feedback to it, as the refiner sees them."""
    return {"role": "assistant", "content": draft}, {"role": "user", "content": feedback}
