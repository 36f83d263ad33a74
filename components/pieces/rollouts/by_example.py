"""Rollout `by_example`: answers to hard prompts, some sampled with a verified example in the prompt."""

from __future__ import annotations

import hashlib
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from ratchet.components.data.instructions.examples import EXAMPLE_QUESTION, EXAMPLES
from ratchet.components.data.instructions.families import instruction_text
from ratchet.components.errors import RecipeError
from ratchet.components.piece import build, piece
from ratchet.components.pieces.rollouts.sample import sample
from ratchet.components.recipes.ranges import Count, Natural, PositiveShare, Temperature
from ratchet.components.stages.progress import uncounted
from ratchet.components.types import Context, Group, Message, Prompt, Trajectory

EXCHANGES = 1
"""Earlier exchanges (a prompt and its answer) in the longest prompts; estimates read it from the source."""


@piece(writes=("logprobs.sampled",), paper="arXiv:2209.15189")
def by_example(
    prompts: Sequence[Prompt],
    ctx: Context,
    *,
    responses_per_prompt: Count = 8,
    shown: Count = 4,
    same: str = "instruction.family",
    written: bool = True,
    verifier: str = "rewards.instructions",
    reward: str = "reward.instructions",
    max_tokens: Count = 128,
    temperature: Temperature = 1.0,
    top_p: PositiveShare = 1.0,
    top_k: Natural = 0,
) -> list[Group]:
    """Groups of `responses_per_prompt` answers, the last `shown` of them sampled after an example (prompt
    distillation; training on the verified ones teaches the model to do without, as in STaR, arXiv
    2203.14465).

    An example is another question with a verified answer, one turn earlier: from earlier samples, with the
    same `same` (a key of the prompt's meta, dotted for nested ones) and another `meta["question"]`; if there
    is none and `written` is set, the hand-written one of `rewards.instructions` for this family; else no
    example. Answers with examples are sampled one at a time, so that early successes help later ones, and
    because answers after one example are alike. Their tokens and mask are those of the prompt without its
    example, and their log-probs are None, since the policy did not sample them from that prompt. The choice
    of examples depends on seed, round and prompt id.
    """
    decoding: dict[str, Any] = {
        "max_tokens": max_tokens,
        "temperature": temperature,
        "top_p": top_p,
        "top_k": top_k,
    }
    engine, verify = ctx.models["policy"], build("annotate", {"name": verifier})
    known: dict[str, list[tuple[Prompt, str]]] = defaultdict(list)
    first = responses_per_prompt - shown
    if first < 0:
        raise RecipeError(
            f"by_example: shown is {shown}, expected at most responses_per_prompt, {responses_per_prompt}"
        )
    drawn = [Group(prompt, ()) for prompt in prompts]
    if first:
        drawn = sample(prompts, ctx, responses_per_prompt=first, **decoding)
    paths = [list(group.trajectories) for group in drawn]
    for number in range(shown):
        with uncounted():
            verified = verify(drawn, ctx)[reward]
        for group, row in zip(drawn, verified, strict=True):
            known[str(_at(group.prompt, same))] += [
                (group.prompt, t.text.strip())
                for t, value in zip(group.trajectories, row, strict=True)
                if value is not None and value >= 1
            ]
        with_examples = [_shown(prompt, known[str(_at(prompt, same))], ctx, written) for prompt in prompts]
        again = sample(
            [replace(prompt, id=f"{prompt.id}/again-{number}") for prompt in with_examples],
            ctx,
            responses_per_prompt=1,
            **decoding,
        )
        drawn = [
            Group(
                prompt,
                tuple(
                    t if after is prompt else _without(list(engine.encode_prompt(prompt)), t)
                    for t in group.trajectories
                ),
            )
            for prompt, after, group in zip(prompts, with_examples, again, strict=True)
        ]
        for path, group in zip(paths, drawn, strict=True):
            path += group.trajectories
    return [Group(prompt, tuple(path)) for prompt, path in zip(prompts, paths, strict=True)]


def _shown(prompt: Prompt, known: Sequence[tuple[Prompt, str]], ctx: Context, written: bool) -> Prompt:
    """The prompt preceded by a turn with an example; unchanged if there is none."""

    def key(one: tuple[Prompt, str]) -> bytes:
        return hashlib.sha256(f"{ctx.seed}/{ctx.round}/{prompt.id}/{one[0].id}/{one[1]}".encode()).digest()

    fitting = [one for one in known if _question(one[0]) != _question(prompt)]
    kind = (
        "found"
        if fitting
        else "written"
        if written and _at(prompt, "instruction.family") in EXAMPLES
        else "no"
    )
    ctx.counts[f"answers with {kind} example"] += 1
    if kind == "no":
        return prompt
    if fitting:
        other, answer = min(fitting, key=key)
        question = other.messages[-1]["content"]
    else:
        family = _at(prompt, "instruction.family")
        params, answer = EXAMPLES[family]
        question = f"{EXAMPLE_QUESTION} {instruction_text(family, 0, params)}"
    *before, last = prompt.messages
    turn: list[Message] = [{"role": "user", "content": question}, {"role": "assistant", "content": answer}]
    return replace(prompt, messages=(*before, *turn, last))


def _at(prompt: Prompt, key: str) -> Any:
    value: Any = prompt.meta
    for part in key.split("."):
        value = value.get(part) if isinstance(value, dict) else None
    return value


def _question(prompt: Prompt) -> str:
    return str(prompt.meta.get("question", prompt.id))


def _without(tokens: list[int], answer: Trajectory) -> Trajectory:
    """The answer re-attached to the prompt tokens without the example."""
    own = [token for token, chosen in zip(answer.inputs["tokens"], answer.mask, strict=True) if chosen]
    return replace(
        answer,
        inputs={"tokens": [*tokens, *own]},
        mask=[False] * len(tokens) + [True] * len(own),
        logprobs=None,
        meta={**answer.meta, "example": True},
    )
