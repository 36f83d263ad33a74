"""Answers to prompts that a model seldom gets right, drawn with a verified answer to another prompt in sight."""

from __future__ import annotations

import hashlib
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from ratchet.components.data.instructions.examples import EXAMPLE_QUESTION, EXAMPLES
from ratchet.components.data.instructions.families import instruction_text
from ratchet.components.piece import build, piece
from ratchet.components.pieces.rollouts.sample import sample
from ratchet.components.recipes.ranges import Count, Natural, PositiveShare, Temperature
from ratchet.components.stages.progress import uncounted
from ratchet.components.types import Context, Group, Message, Prompt, Trajectory


@piece(writes=("logprobs.sampled",), paper="arXiv:2209.15189")
def by_example(prompts: Sequence[Prompt], ctx: Context, *, responses_per_prompt: Count = 8, shown: Count = 4, same: str = "instruction.family",
               written: bool = True, verifier: str = "rewards.instructions", reward: str = "reward.instructions", max_tokens: Count = 128,
               temperature: Temperature = 1.0, top_p: PositiveShare = 1.0, top_k: Natural = 0) -> list[Group]:
    """A group of `responses_per_prompt` answers a prompt, the last `shown` of them drawn after an example (prompt distillation; the
    verified ones teach the model to do without, as in STaR, arXiv 2203.14465).

    An example is another question and a verified answer to it, one turn earlier in the conversation: of those drawn before, one whose
    prompt has the same `same` (a key of its meta, dots for inner ones) and another `meta["question"]`. As long as there is none it is, if
    `written`, the one that `rewards.instructions` holds for this family, else nothing. The answers after an example are drawn one by one,
    so that what the first finds helps the next. Tokens and mask are those of the prompt without its example, and the log-probs are None,
    the policy did not draw the answer from that prompt. Which example follows from seed, round and prompt id.
    """
    decoding: dict[str, Any] = {"max_tokens": max_tokens, "temperature": temperature, "top_p": top_p, "top_k": top_k}
    engine, verify = ctx.models["policy"], build("annotate", {"name": verifier})
    known: dict[str, list[tuple[Prompt, str]]] = defaultdict(list)
    drawn = sample(prompts, ctx, responses_per_prompt=responses_per_prompt - shown, **decoding)
    paths = [list(group.trajectories) for group in drawn]
    for number in range(shown):
        with uncounted():
            verified = verify(drawn, ctx)[reward]
        for group, row in zip(drawn, verified, strict=True):
            known[str(_at(group.prompt, same))] += [
                (group.prompt, t.text.strip()) for t, value in zip(group.trajectories, row, strict=True) if value is not None and value >= 1]
        asked = [_shown(prompt, known[str(_at(prompt, same))], ctx, written) for prompt in prompts]
        again = sample([replace(prompt, id=f"{prompt.id}/again-{number}") for prompt in asked], ctx, responses_per_prompt=1, **decoding)
        drawn = [Group(prompt, tuple(t if after is prompt else _without(list(engine.encode_prompt(prompt.messages)), t) for t in group.trajectories))
                 for prompt, after, group in zip(prompts, asked, again, strict=True)]
        for path, group in zip(paths, drawn, strict=True):
            path += group.trajectories
    return [Group(prompt, tuple(path)) for prompt, path in zip(prompts, paths, strict=True)]


def _shown(prompt: Prompt, known: Sequence[tuple[Prompt, str]], ctx: Context, written: bool) -> Prompt:
    """The prompt with another question and its verified answer one turn before its own question; itself where none is known."""
    def key(one: tuple[Prompt, str]) -> bytes:
        return hashlib.sha256(f"{ctx.seed}/{ctx.round}/{prompt.id}/{one[0].id}/{one[1]}".encode()).digest()

    fitting = [one for one in known if _question(one[0]) != _question(prompt)]
    kind = "found" if fitting else "written" if written and _at(prompt, "instruction.family") in EXAMPLES else "no"
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
    """The answer as one to the prompt of `tokens`, which does not hold the example."""
    own = [token for token, chosen in zip(answer.inputs["tokens"], answer.mask, strict=True) if chosen]
    return replace(answer, inputs={"tokens": [*tokens, *own]}, mask=[False] * len(tokens) + [True] * len(own), logprobs=None,
                   meta={**answer.meta, "example": True})
