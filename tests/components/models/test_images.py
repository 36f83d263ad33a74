"""Vision-language models: packed training, sampling and saving against transformers' own forward pass."""

from __future__ import annotations

import base64
import io
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from PIL import Image

from ratchet.components.errors import ContractError, SourceError
from ratchet.components.inference.torch import TorchEngine
from ratchet.components.models.images import opened, takes_images
from ratchet.components.models.load import load_model, load_tokenizer, new_reward, save_model
from ratchet.components.stages import reward
from ratchet.components.stages.probe import SavedReward, pixels, verify_saved
from ratchet.components.text.chat import encode
from ratchet.components.text.images import digest_of, images_of, mark_of
from ratchet.components.training.packing import pack
from ratchet.components.training.torch import TorchLearner
from ratchet.components.types import Group, Prompt, Request, Trajectory

ANSWERS = ("seven", "a three")


def grey(value: int) -> str:
    """The data URL of an 8x8 picture with one brighter pixel."""
    image, file = Image.new("L", (8, 8), value), io.BytesIO()
    image.putpixel((value % 8, 3), 255)
    image.save(file, "PNG")
    return f"data:image/png;base64,{base64.b64encode(file.getvalue()).decode()}"


def showing(name: str, *images: str) -> Prompt:
    text = "What is this? " + " ".join(map(mark_of, images))
    return Prompt(
        name, ({"role": "user", "content": text},), inputs={"images": {digest_of(u): u for u in images}}
    )


PROMPTS = (showing("a", grey(10)), showing("b", grey(20), grey(10)), showing("c", grey(20)), showing("d"))


@pytest.fixture
def groups(tiny_vision_model: Path) -> list[Group]:
    tokenizer = load_tokenizer(tiny_vision_model)
    return [
        Group(
            p,
            tuple(encode(tokenizer, p, Trajectory(({"role": "assistant", "content": a},))) for a in ANSWERS),
        )
        for p in PROMPTS
    ]


def test_packed_log_probs_are_those_of_transformers(tiny_vision_model, groups) -> None:
    """Rows with different images in the same places share no prefix; rows with the same one do."""
    learner = TorchLearner(tiny_vision_model)
    assert verify_saved(tiny_vision_model, learner, groups, kind="policy", tokens=10_000) < 1e-5
    (batch,) = pack(groups, unit="group", tokens=10_000)
    assert batch.inputs["images"][2] == (grey(20), grey(10)) and batch.inputs["images"][6] == ()
    first = learner(batch, frozenset({"logprobs"})).logprobs
    other = [replace(g, prompt=replace(PROMPTS[2], id="a")) if g.prompt.id == "a" else g for g in groups]
    exchanged = learner(pack(other, unit="group", tokens=10_000)[0], frozenset({"logprobs"})).logprobs
    assert (first[0] - exchanged[0]).abs().max() > 1e-4 and torch.equal(first[2:], exchanged[2:])


def test_sampled_log_probs_are_those_of_the_learner(tiny_vision_model) -> None:
    """Prompts with other images in the same places do not share their keys and values in the cache."""
    engine = TorchEngine(tiny_vision_model, rows=3)
    requests = [
        Request(engine.encode_prompt(p), count=2, max_tokens=8, seed=i, images=images_of(p))
        for i, p in enumerate(PROMPTS)
    ]
    together = engine.generate(requests)
    assert [[s.tokens for s in one] for one in together] == [
        [s.tokens for s in engine.generate([r])[0]] for r in requests
    ]
    rows = [
        Group(
            p,
            tuple(
                Trajectory(
                    (),
                    {"tokens": [*r.tokens, *s.tokens]},
                    [False] * len(r.tokens) + [True] * len(s.tokens),
                )
                for s in samples
            ),
        )
        for p, r, samples in zip(PROMPTS, requests, together, strict=True)
    ]
    for r, samples, scored in zip(
        requests, together, engine.score(rows, frozenset({"logprobs"})), strict=True
    ):
        for sample, logprobs in zip(samples, scored["logprobs"], strict=True):
            assert logprobs[len(r.tokens) :] == pytest.approx(sample.logprobs, abs=1e-4)


def test_the_model_does_not_say_where_its_language_model_was(tiny_vision_model, tiny_model) -> None:
    assert str(tiny_model.resolve()) not in (tiny_vision_model / "config.json").read_text()
    assert str(tiny_model) not in (tiny_vision_model / "config.json").read_text()


def test_the_vision_encoder_is_trained_and_saved(tiny_vision_model, groups, tmp_path) -> None:
    learner = TorchLearner(tiny_vision_model, learning_rate=1e-2)
    name = "model.vision_tower.embeddings.patch_embedding.weight"
    before = learner.parameters[name].detach().clone()
    (batch,) = pack(groups, unit="group", tokens=10_000)
    learner.backward(-learner(batch, frozenset({"logprobs"})).logprobs.sum())
    learner.step()
    assert not torch.equal(learner.parameters[name], before)
    learner.save(tmp_path / "saved")
    assert takes_images(tmp_path / "saved")
    assert verify_saved(tmp_path / "saved", learner, groups, kind="policy", tokens=10_000) < 1e-5
    later = learner(batch, frozenset({"logprobs"})).logprobs  # the learner still works after saving
    assert torch.equal(
        later, TorchLearner(tmp_path / "saved")(batch, frozenset({"logprobs"})).logprobs.to(later.dtype)
    )


def test_a_reward_model_reads_the_image(tiny_vision_model, groups, tmp_path) -> None:
    model = new_reward(tiny_vision_model, pool="mean", layers=2)
    with torch.no_grad():
        model.score.weight.normal_(generator=torch.Generator().manual_seed(0))  # pyright: ignore[reportAttributeAccessIssue, reportCallIssue]
    save_model(model, load_tokenizer(tiny_vision_model), tmp_path)
    engine, saved = TorchEngine(tmp_path, kind="reward"), SavedReward(tmp_path)
    scores = [row["scores"][0] for row in engine.score(groups, frozenset({"scores"}))]
    for group, score in zip(groups, scores, strict=True):
        path = group.trajectories[0]
        theirs = saved(
            torch.tensor(path.inputs["tokens"]),
            torch.tensor(path.mask),
            pixels(tmp_path, images_of(group.prompt)),
        )
        assert score == pytest.approx(float(theirs.detach()), abs=1e-4)
    assert abs(scores[0] - scores[2]) > 1e-4
    again: Any = load_model(tmp_path, "reward")
    assert again.config.get_text_config().num_hidden_layers == 2
    with pytest.raises(SourceError, match="pool: mean"):
        new_reward(tiny_vision_model, pool="last")


def test_a_certificate_scores_each_pair_with_its_own_image(tiny_vision_model, tmp_path) -> None:
    """Also of pairs with equal texts, which are one text only if they are about the same image."""
    model, tokenizer = new_reward(tiny_vision_model, pool="mean", layers=2), load_tokenizer(tiny_vision_model)
    with torch.no_grad():
        model.score.weight.normal_(generator=torch.Generator().manual_seed(0))  # pyright: ignore[reportAttributeAccessIssue, reportCallIssue]
    save_model(model, tokenizer, tmp_path)
    engine = TorchEngine(tmp_path, kind="reward")
    prompts = [showing("a", grey(10)), showing("b", grey(200)), showing("c", grey(10))]
    pairs = [engine.encode(Group(p, tuple(map(answering, ANSWERS)))) for p in prompts]
    expected = [row["scores"] for row in engine.score(pairs, frozenset({"scores"}))]
    assert abs(expected[0][0] - expected[1][0]) > 1e-2
    found = reward.score(engine, pairs)
    for one, other in zip(found, expected, strict=True):
        assert one == pytest.approx(other, abs=1e-4)
    families, rows = reward.texts_of(pairs)
    assert len(families) == 4 and rows.tolist() == [[0, 1], [2, 3], [0, 1]]
    assert reward.linear_probe(model, pairs[:2], tokens=100)["texts"] == 4


def answering(text: str) -> Trajectory:
    return Trajectory(({"role": "assistant", "content": text},))


def test_places_without_images_are_an_error(tiny_vision_model, tiny_model) -> None:
    engine = TorchEngine(tiny_vision_model)
    tokens = engine.encode_prompt(PROMPTS[0])
    with pytest.raises(ContractError, match="16 image tokens and 0 images"):
        engine.generate([Request(tokens, max_tokens=1)])
    with pytest.raises(ContractError, match="16 image tokens and 2 images"):
        engine.generate([Request(tokens, max_tokens=1, images=(grey(1), grey(2)))])
    with pytest.raises(ContractError, match="takes text only"):
        TorchEngine(tiny_model).generate([Request([5, 6], max_tokens=1, images=(grey(1),))])


@pytest.mark.parametrize(
    "url",
    [
        "https://example.org/a.png",
        "data:image/png;base64,",
        "data:image/png;base64,AAAA",
        "data:text/plain;base64,AAAA",
    ],
)
def test_what_is_no_image_is_an_error(url: str) -> None:
    with pytest.raises(ValueError, match="image"):
        opened(url)
    assert opened(grey(7)).size == (8, 8)
