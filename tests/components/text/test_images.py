"""Marks of images in messages, and what the tokeniser makes of them."""

from __future__ import annotations

import pytest

from ratchet.components.errors import ContractError
from ratchet.components.models.load import load_tokenizer
from ratchet.components.text.chat import count_tokens, encode, encode_prompt
from ratchet.components.text.images import digest_of, images_of, mark_of, placed, showing
from ratchet.components.types import Prompt, Trajectory

RED, BLUE = "data:image/png;base64,AAAA", "data:image/png;base64,BBBB"
ANSWER = Trajectory(({"role": "assistant", "content": "ok"},))


def asked(text: str, *images: str) -> Prompt:
    return Prompt(
        "p", ({"role": "user", "content": text},), inputs={"images": {digest_of(u): u for u in images}}
    )


def test_images_are_in_the_order_of_their_marks() -> None:
    text = f"{mark_of(BLUE)} and {mark_of(RED)} and {mark_of(BLUE)}"
    assert images_of(asked(text, RED, BLUE)) == (BLUE, RED, BLUE)
    assert images_of(Prompt("p", ({"role": "user", "content": text},))) == ()
    assert images_of(showing("p", [RED, BLUE])) == (RED, BLUE) and showing("p", ()) == Prompt("p", ())


def test_an_image_is_as_many_tokens_as_the_model_has_places(tiny_vision_model) -> None:
    tokenizer = load_tokenizer(tiny_vision_model)
    image = tokenizer.convert_tokens_to_ids("<|image|>")
    with_image, without = (
        encode_prompt(tokenizer, prompt)
        for prompt in (asked(f"See {mark_of(RED)}?", RED), Prompt("p", asked("See ?").messages))
    )
    assert with_image.count(image) == 16 and image not in without
    at = with_image.index(image)
    assert with_image[at : at + 16] == [image] * 16
    whole = encode(tokenizer, asked(f"See {mark_of(RED)}?", RED), ANSWER)
    assert list(whole.inputs["tokens"])[: len(with_image)] == with_image
    assert not any(whole.mask[: len(with_image)]) and all(whole.mask[len(with_image) :])
    assert count_tokens(tokenizer, asked(f"See {mark_of(RED)}?").messages) == len(with_image)


def test_a_spelled_image_token_is_text(tiny_vision_model) -> None:
    """A user cannot make places of images by writing the model's image token."""
    tokenizer = load_tokenizer(tiny_vision_model)
    prompt = asked(f"<|image|> {mark_of(RED)}", RED)
    assert encode_prompt(tokenizer, prompt).count(tokenizer.convert_tokens_to_ids("<|image|>")) == 16


def test_images_that_the_model_cannot_take_are_an_error(tiny_model, tiny_vision_model) -> None:
    with pytest.raises(ContractError, match="takes text only"):
        placed(load_tokenizer(tiny_model), asked(mark_of(RED), RED))
    with pytest.raises(ContractError, match="not the image"):
        placed(load_tokenizer(tiny_vision_model), asked(mark_of(BLUE), RED))
    plain = asked(mark_of(BLUE)).messages
    assert placed(load_tokenizer(tiny_model), Prompt("p", plain)) == plain
