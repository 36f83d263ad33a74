"""Check of verifiers on the data's reference answers: a verifier that rejects them would give no training
signal.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from ratchet.components.errors import GateError
from ratchet.components.piece import build, describe
from ratchet.components.recipes.arms import arms
from ratchet.components.recipes.changed_rounds import with_rounds
from ratchet.components.recipes.schema import Recipe
from ratchet.components.types import Context, Group, Prompt, Trajectory

MIN_RIGHT = 0.95
SCORED = 512
"""Maximum number of prompts scored (the first ones)."""


def verifiers(recipe: Recipe) -> list[dict[str, Any]]:
    """Verifiers by which the annotators, rollouts and metrics of a recipe compare an answer with the prompt's
    reference answer, without repeats.
    """
    used: list[tuple[str, Any]] = []
    for _, section in with_rounds(recipe):
        used += [("annotate", spec) for spec in getattr(section, "annotate", ())]
        used.append(("rollout", getattr(section, "rollout", None)))
    used += [("annotate", spec) for spec in (recipe.evaluate.metrics if recipe.evaluate else ())]
    used += [("rollout", arm.rollout) for arm in arms(recipe).values()]
    found: list[dict[str, Any]] = []
    for slot, spec in used:
        found += [one for one in verifiers_of(slot, spec) if one not in found] if spec else []
    return found


def verifiers_of(slot: str, spec: Mapping[str, Any]) -> list[dict[str, Any]]:
    """The piece itself if it is a verifier (`gold`), and those that its options name: the verifier of an
    environment, and of a rollout in it.
    """
    described = describe(slot, spec["name"])
    nested = [
        one
        for option in described.options.values()
        if option.nested and (inner := spec.get(option.name, option.default))
        for one in verifiers_of(option.nested, inner)
    ]
    return [dict(spec), *nested] if described.gold else nested


def unscored(groups: Sequence[Group], spec: Mapping[str, Any]) -> list[Prompt]:
    """Prompts without a reference answer that the verifier `spec` cannot score."""
    asked = [group.prompt for group in groups if group.prompt.answer is None]
    reply = Trajectory(({"role": "assistant", "content": "0"},))
    columns = (
        build("annotate", spec)([Group(prompt, (reply,)) for prompt in asked], Context()) if asked else {}
    )
    scores = next((column for name, column in columns.items() if not name.endswith(".status")), [])
    return [prompt for prompt, score in zip(asked, scores, strict=True) if score[0] is None]


def check_gold(groups: Sequence[Group], specs: Sequence[Mapping[str, Any]]) -> dict[str, list[int]]:
    """For each verifier, [reference answers with full reward, prompts checked]. `GateError` with three
    examples if the share is below `MIN_RIGHT`; prompts without a reference answer are skipped.
    """
    answered = [group.prompt for group in groups if group.prompt.answer is not None][:SCORED]
    right: dict[str, list[int]] = {}
    for spec in specs if answered else ():
        gold = [
            Group(prompt, (Trajectory(({"role": "assistant", "content": str(prompt.answer)},)),))
            for prompt in answered
        ]
        columns = build("annotate", spec)(gold, Context())
        (name,) = (column for column in columns if not column.endswith(".status"))
        scores = [column[0] for column in columns[name]]
        wrong = [i for i, score in enumerate(scores) if score is None or score < 1]
        right[spec["name"]] = [len(scores) - len(wrong), len(scores)]
        if len(wrong) > (1 - MIN_RIGHT) * len(scores) + 1e-9:
            shown = "; ".join(
                f"{answered[i].messages[-1]['content'][:80]!r}, answer {str(answered[i].answer)[-80:]!r}: "
                + (f"{scores[i]:g}" if scores[i] is not None else columns[f"{name}.status"][i][0])
                for i in wrong[:3]
            )
            raise GateError(
                f"{spec['name']} gives the data's own answer full reward for {len(scores) - len(wrong)} "
                f"of {len(scores)} prompts "
                f"({1 - len(wrong) / len(scores):.1%}), expected at least {MIN_RIGHT:.1%}, so its rewards "
                f"are not valid on this data: {shown}. Use "
                "another verifier, or set `answer` to what it compares with (options of `data.parser`, "
                "`data.columns`)"
            )
    return right
