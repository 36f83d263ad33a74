"""Testbed `refinements`: openers, and demonstrations of how an answer is refined after feedback in words."""

from __future__ import annotations

import random
from collections.abc import Iterator
from typing import Any

from ratchet.components.piece import piece
from ratchet.components.pieces.rewards.critique import CHECKS, feedback_to, subject
from ratchet.components.pieces.testbeds.tiny_openers import tiny_openers
from ratchet.components.recipes.ranges import Natural, Share

ANSWERS = (
    "Yes, I like {} a lot. Do you?",
    "So do I! What do you like about {}?",
    "There is a lot to say about {}. Where shall we start?",
    "Oh, why do you not like {}?",
    "Bye! It was nice to talk about {}.",
    "The topic is {}.",
    "I am glad you think so.",
    "I am fine, thank you. How are you?",
    "Hello! How are you?",
    "Good night, sleep well.",
    "I have no name yet.",
    "Hi! What would you like to talk about?",
)
"""Answers of the tiny model's small talk, with the subject at {}."""


@piece(paper="arXiv:2303.16755")
def refinements(*, size: Natural = 600, seed: Natural = 0, followed: Share = 0.5) -> Iterator[dict[str, Any]]:
    """The prompts {id, prompt, split} of `tiny_openers` with the split `train`, and `size` demonstrations
    {id, prompt, completion, split} with the split `refine` (read it with `data.columns: {split: split}`): a
    prompt of an opener, an answer and what the critic of `rewards.critique` says of it, and a refinement. A
    share `followed` of the refinements are drawn from the answers that have what the feedback asked for, the
    others from all answers.

    Shows: whether a policy learns from feedback in words that a model makes use of, as that model does one
    thing at a time and half of the times. Does not show: feedback of people, or what a model makes of
    feedback of a kind that it was not shown.
    """
    openers = list(tiny_openers(seed=seed))
    yield from ({**row, "split": "train"} for row in openers)
    rng = random.Random(f"refinements {seed}")
    for number in range(size):
        (message,) = rng.choice(openers)["prompt"]
        question = message["content"]
        answers = [answer.format(subject(question)) for answer in ANSWERS]
        draft = rng.choice([one for one in answers if feedback_to(question, one)])
        words = feedback_to(question, draft)
        asked = [one for one in answers if CHECKS[words](question, one)]
        final = rng.choice(asked if rng.random() < followed else answers)
        yield {
            "id": f"refinement-{seed}-{number}",
            "prompt": [
                message,
                {"role": "assistant", "content": draft},
                {"role": "user", "content": words},
            ],
            "completion": [{"role": "assistant", "content": final}],
            "split": "refine",
        }
