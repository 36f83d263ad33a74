"""Answers to prompts that a model seldom gets right, drawn with a verified answer to another prompt in sight."""

from __future__ import annotations

import hashlib
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from components.piece import build, piece
from components.rollouts.sample import sample
from components.types import Context, Group, Message, Prompt, Trajectory


@piece(paper="arXiv:2209.15189")
def by_example(prompts: Sequence[Prompt], ctx: Context, *, responses_per_prompt: int = 8, shown: int = 4, same: str = "instruction.family",
               verifier: str = "rewards.instructions", reward: str = "reward.instructions", max_tokens: int = 128, temperature: float = 1.0, top_p: float = 1.0,
               top_k: int = 0) -> list[Group]:
    """A group of `responses_per_prompt` answers a prompt, the last `shown` of them drawn after an example (prompt distillation; the
    verified ones teach the model to do without, as in STaR, arXiv 2203.14465).

    An example is another question and a verified answer to it, one turn earlier in the conversation: of those drawn without example in
    this call, one whose prompt has the same `same` (a key of its meta, dots for inner ones) and another `meta["question"]`. A prompt
    for which there is none gets all its answers without. Tokens and mask are those of the prompt without its example; an answer that
    saw one has no `logprobs`, for nobody drew it from that prompt. Which example follows from seed, round and prompt id.
    """
    decoding: dict[str, Any] = {"max_tokens": max_tokens, "temperature": temperature, "top_p": top_p, "top_k": top_k}
    groups = sample(prompts, ctx, responses_per_prompt=responses_per_prompt - shown, **decoding)
    scores = build("annotate", {"name": verifier})(groups, ctx)[reward]
    known: dict[str, list[tuple[Prompt, str]]] = defaultdict(list)
    for group, row in zip(groups, scores, strict=True):
        known[str(_at(group.prompt, same))] += [
            (group.prompt, t.text.strip()) for t, value in zip(group.trajectories, row, strict=True) if value is not None and value >= 1]
    asked = []
    for prompt in prompts:
        fitting = [one for one in known[str(_at(prompt, same))] if _question(one[0]) != _question(prompt)]
        ctx.counts["prompts with an example"] += bool(fitting)
        ctx.counts["prompts without an example"] += not fitting
        asked.append(_after(prompt, *_drawn(fitting, ctx, prompt)) if fitting else prompt)
    more = sample([replace(prompt, id=f"{prompt.id}/shown") for prompt in asked], ctx, responses_per_prompt=shown, **decoding)
    engine = ctx.models["policy"]
    return [Group(group.prompt, (*group.trajectories, *(
                t if prompt is group.prompt else _without(list(engine.encode_prompt(group.prompt.messages)), t) for t in extra.trajectories)))
            for group, prompt, extra in zip(groups, asked, more, strict=True)]


def _at(prompt: Prompt, key: str) -> Any:
    value: Any = prompt.meta
    for part in key.split("."):
        value = value.get(part) if isinstance(value, dict) else None
    return value


def _question(prompt: Prompt) -> str:
    return str(prompt.meta.get("question", prompt.id))


def _drawn(fitting: Sequence[tuple[Prompt, str]], ctx: Context, prompt: Prompt) -> tuple[Prompt, str]:
    def key(one: tuple[Prompt, str]) -> bytes:
        return hashlib.sha256(f"{ctx.seed}/{ctx.round}/{prompt.id}/{one[0].id}/{one[1]}".encode()).digest()

    return min(fitting, key=key)


def _after(prompt: Prompt, other: Prompt, answer: str) -> Prompt:
    """The prompt with the other's last question and its answer one turn before its own last question."""
    *before, last = prompt.messages
    turn: list[Message] = [other.messages[-1], {"role": "assistant", "content": answer}]
    return replace(prompt, messages=(*before, *turn, last))


def _without(tokens: list[int], answer: Trajectory) -> Trajectory:
    """The answer as one to the prompt of `tokens`, which does not hold the example."""
    own = [token for token, chosen in zip(answer.inputs["tokens"], answer.mask, strict=True) if chosen]
    return replace(answer, inputs={"tokens": [*tokens, *own]}, mask=[False] * len(tokens) + [True] * len(own), logprobs=None,
                   meta={**answer.meta, "example": True})
