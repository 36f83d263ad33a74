"""Tokenisation of conversations through the model's chat template, with the loss mask.

A conversation is rendered once and split before and after each assistant message, so the prompt's tokens are
the same for every answer. The concatenated parts always decode to the template's own rendering. A special
token that a message spells (`<|im_end|>`) is encoded as text: only the template opens and closes turns.
"""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Literal

from ratchet.components.errors import ContractError
from ratchet.components.text.images import placed, placed_marks
from ratchet.components.text.no_tokenizer import NoTokenizer
from ratchet.components.text.rendering import Piece, render, rendered_pieces, rendered_tokens, with_marks
from ratchet.components.types import Group, Message, Prompt, Trajectory

if TYPE_CHECKING:
    from ratchet.components.text.tokenizer import Tokenizer


def encode(tokenizer: Tokenizer, prompt: Prompt, trajectory: Trajectory) -> Trajectory:
    """Tokenise a trajectory: `inputs["tokens"]` (T) and loss mask `mask` (T), True on its assistant content
    and end-of-turn tokens.

    Text after the last end-of-turn token is dropped, as in sampling. A trajectory with tokens or actions is
    returned unchanged.
    """
    if has_steps(trajectory):
        return trajectory
    pieces = rendered_pieces(tokenizer, [*placed(tokenizer, prompt), *trajectory.messages], prompt.id)
    return _join(tokenizer, prompt, trajectory, pieces)


def has_steps(trajectory: Trajectory) -> bool:
    """Whether the steps are there: tokens, or actions."""
    return "tokens" in trajectory.inputs or "actions" in trajectory.inputs


def encode_whole(tokenizer: Tokenizer, prompt: Prompt, trajectory: Trajectory) -> Trajectory:
    """As `encode`, but tokenises the template's whole rendering in one piece, text after the last end of turn
    included: identical to `apply_chat_template`, the format that published reward models were trained on.
    """
    if has_steps(trajectory):
        return trajectory
    shown = placed(tokenizer, prompt)
    whole, prompt_tokens = (
        rendered_tokens(tokenizer, messages, generation=generation)
        for messages, generation in (([*shown, *trajectory.messages], False), (shown, True))
    )
    return dataclasses.replace(
        trajectory,
        inputs={**trajectory.inputs, "tokens": whole},
        mask=[i >= len(prompt_tokens) for i in range(len(whole))],
    )


def encode_prompt(tokenizer: Tokenizer, prompt: Prompt) -> list[int]:
    """Token ids of a prompt with the generation prompt; a prefix of every `encode` of a continuation."""
    pieces = rendered_pieces(tokenizer, placed(tokenizer, prompt), prompt.id, generation=True)
    return [token for piece in pieces for token in piece.tokens]


def count_tokens(tokenizer: Tokenizer, messages: Sequence[Message]) -> int:
    """Number of tokens of `encode_prompt`, without its round-trip check; for filtering thousands of
    records. For a model without tokens, the number of words.
    """
    if isinstance(tokenizer, NoTokenizer):
        return tokenizer.count(messages)
    return len(rendered_tokens(tokenizer, placed_marks(tokenizer, messages), generation=True))


def decode_answer(tokenizer: Tokenizer, tokens: Sequence[int]) -> str:
    """Text of sampled tokens, without special tokens."""
    return tokenizer.decode(list(tokens), skip_special_tokens=True)


CONTEXTS: tuple[tuple[Message, ...], ...] = (
    ({"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}),
    (
        {"role": "user", "content": "a"},
        {"role": "assistant", "content": "b"},
        {"role": "user", "content": "c"},
        {"role": "assistant", "content": "d"},
    ),
)
"""Conversations after which `encode_reply` requires equal renderings."""


def encode_reply(tokenizer: Tokenizer, messages: Sequence[Message], *, ended: bool = True) -> list[int]:
    """Token ids from an answer's end-of-turn token (without it; with `ended=False`, from and including it)
    to the place of the next answer, with `messages` in between. Tokens so far + these + the next answer are
    what `encode` gives for the whole conversation, if the answers survive decoding and encoding.

    `ContractError` if the template renders the messages differently after another conversation, for then no
    suffix is right for all.
    """
    messages, mark = with_marks(tokenizer, messages)
    first, *others = [_suffix(tokenizer, context, messages) for context in CONTEXTS]
    for other in others:
        if other != first:
            raise ContractError(
                f"the chat template renders a turn differently after a longer conversation: {first[:200]!r} "
                f"and {other[:200]!r}, so the tokens of a next turn cannot be appended to the sampled ones. "
                "Use a template that renders each turn on its own, or a rollout with one turn"
            )
    parts, first = first.split(mark), first.replace(mark, "")
    tokens = [t for ids in tokenizer(parts, add_special_tokens=False)["input_ids"] for t in ids]
    back = tokenizer.decode(tokens, skip_special_tokens=False, clean_up_tokenization_spaces=False)
    if back != first:
        raise ContractError(
            f"the tokens of a turn do not decode to the template's rendering: expected {first[:200]!r}, got "
            f"{back[:200]!r}. The tokenizer is lossy (a normaliser?); use a lossless one"
        )
    return tokens if ended else [tokenizer.eos_token_id, *tokens]


def _suffix(tokenizer: Tokenizer, context: Sequence[Message], messages: Sequence[Message]) -> str:
    """What the template writes after the end-of-turn token of the last answer of `context`."""
    head = render(tokenizer, context[:-1], generation=True)
    full = render(tokenizer, [*context, *messages], generation=True)
    stop = full.find(tokenizer.eos_token, len(head))
    if not full.startswith(head + context[-1]["content"]) or stop < 0:
        raise ContractError(
            "the chat template renders an answer differently when another turn follows, or writes no "
            f"eos_token {tokenizer.eos_token!r} after it: expected {head[-200:] + context[-1]['content']!r}, "
            f"got {full[: len(head) + 100][-300:]!r}. Use a template that renders each turn on its own, or a "
            "rollout with one turn"
        )
    return full[stop + len(tokenizer.eos_token) :]


def offsets(tokenizer: Tokenizer, tokens: Sequence[int]) -> list[tuple[int, int]]:
    """First and last character (exclusive) of each token in `decode_answer`. Of the tokens that share a
    character the last one has it; special tokens have none.
    """
    whole, ends = decode_answer(tokenizer, tokens), [0]
    for i in range(1, len(tokens) + 1):
        part = decode_answer(tokenizer, tokens[:i])
        same = (a == b for a, b in zip(part, whole, strict=False))
        ends.append(sum(1 for _ in itertools.takewhile(bool, same)))
    return list(itertools.pairwise(ends))


def ends_with(tokens: Sequence[int], strings: Sequence[str], decode: Callable[[Sequence[int]], str]) -> bool:
    """Whether the last token completes one of `strings` in the text of `tokens`."""
    if not strings:
        return False
    tail = list(tokens[-max(len(s.encode()) for s in strings) - 8 :])
    now, before = decode(tail), decode(tail[:-1])
    return any(now.count(s) > before.count(s) for s in strings)


def encode_group(
    tokenizer: Tokenizer, group: Group, max_tokens: int
) -> tuple[Group | None, Literal["kept", "cut", "dropped"]]:
    """Tokenise a group, and report the outcome. A trajectory over `max_tokens` is truncated after its last
    assistant message that fits, if it is the only one of its group. Otherwise, or if none fits, the whole
    group is dropped (None): its columns would no longer apply, nor would the sides of a pair compare.
    """
    outcome: Literal["kept", "cut"] = "kept"
    done = []
    for trajectory in group.trajectories:
        if has_steps(trajectory):
            if len(trajectory.mask) > max_tokens:
                return None, "dropped"
            done.append(trajectory)
            continue
        shown = placed(tokenizer, group.prompt)
        pieces = rendered_pieces(tokenizer, [*shown, *trajectory.messages], group.prompt.id)
        whole = _join(tokenizer, group.prompt, trajectory, pieces)
        if len(whole.mask) > max_tokens:
            alone = len(group.trajectories) == 1
            whole = _cut(tokenizer, group.prompt, trajectory, pieces, max_tokens) if alone else None
            if whole is None:
                return None, "dropped"
            outcome = "cut"
        done.append(whole)
    return group.replace(done), outcome


def _cut(
    tokenizer: Tokenizer, prompt: Prompt, trajectory: Trajectory, pieces: Sequence[Piece], max_tokens: int
) -> Trajectory | None:
    length, keep = 0, 0
    for i, piece in enumerate(pieces):
        length += len(piece.tokens)
        if length <= max_tokens and piece.message is not None and piece.message >= len(prompt.messages):
            keep = i + 1
    if not keep:
        return None
    last = pieces[keep - 1].message
    assert last is not None
    shorter = dataclasses.replace(
        trajectory, messages=trajectory.messages[: last + 1 - len(prompt.messages)], stop="length"
    )
    return _join(tokenizer, prompt, shorter, pieces[:keep])


def _join(
    tokenizer: Tokenizer, prompt: Prompt, trajectory: Trajectory, pieces: Sequence[Piece]
) -> Trajectory:
    own = [p.message is not None and p.message >= len(prompt.messages) for p in pieces]
    if not any(own):
        text = "".join(p.text for p in pieces)
        raise ContractError(
            f"prompt {prompt.id!r}: no trainable tokens: the loss mask is empty because no message after "
            "the prompt "
            f"has the role assistant; check the roles. The sample:\n{text[:2000]}"
        )
    if trajectory.messages and trajectory.messages[-1]["role"] == "assistant":
        last = max(i for i, mine in enumerate(own) if mine)
        pieces, own = pieces[: last + 1], own[: last + 1]
    tokens = [token for piece in pieces for token in piece.tokens]
    mask = [mine for piece, mine in zip(pieces, own, strict=True) for _ in piece.tokens]
    return dataclasses.replace(trajectory, inputs={**trajectory.inputs, "tokens": tokens}, mask=mask)
