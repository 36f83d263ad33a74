"""A vision-language model of about 1.2 million parameters, for tests and first runs: the tiny language model
with a vision encoder that has learnt nothing yet, in the architecture of LLaVA (arXiv 2304.08485).
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch

from ratchet.components.models.load import load_policy, load_tokenizer, save_model
from ratchet.components.models.tiny import train_tiny

IMAGE_TOKEN = "<|image|>"


def train_tiny_vision(
    out: Path, *, seed: int = 0, side: int = 8, patch: int = 2, width: int = 96, depth: int = 2, **tiny: Any
) -> dict[str, float]:
    """Train the tiny language model (`train_tiny` with the options `tiny`) and save it with a new vision
    encoder.
    """
    found = train_tiny(out, seed=seed, **tiny)
    count = add_vision(out, out, seed=seed, side=side, patch=patch, width=width, depth=depth)
    return {**found, "parameters": float(count)}


def add_vision(
    language: Path,
    out: Path,
    *,
    seed: int = 0,
    side: int = 8,
    patch: int = 2,
    width: int = 96,
    depth: int = 2,
) -> int:
    """Save a Llama with a new vision encoder: images of `side` x `side` pixels in patches of `patch` x
    `patch`, `depth` layers of `width`. Returns the number of parameters.
    """
    from transformers import CLIPVisionConfig, LlavaConfig, LlavaForConditionalGeneration
    from transformers.models.clip.image_processing_pil_clip import CLIPImageProcessorPil

    tokenizer, llama = load_tokenizer(language), load_policy(language, attention="sdpa")
    # the folder it was read from would be part of the saved model
    llama.config.name_or_path = ""  # pyright: ignore[reportAttributeAccessIssue, reportArgumentType]
    tokenizer.add_tokens([IMAGE_TOKEN], special_tokens=True)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        llama.resize_token_embeddings(len(tokenizer))  # pyright: ignore[reportCallIssue]
        model = LlavaForConditionalGeneration(
            LlavaConfig(
                text_config=llama.config,  # pyright: ignore[reportArgumentType]
                vision_config=CLIPVisionConfig(
                    hidden_size=width,
                    intermediate_size=width * 3,
                    num_hidden_layers=depth,
                    num_attention_heads=width // 32,
                    image_size=side,
                    patch_size=patch,
                ),
                image_token_index=tokenizer.convert_tokens_to_ids(IMAGE_TOKEN),
                image_seq_length=(side // patch) ** 2,
                vision_feature_layer=-1,
                pad_token_id=tokenizer.pad_token_id,  # pyright: ignore[reportCallIssue]
                eos_token_id=tokenizer.eos_token_id,  # pyright: ignore[reportCallIssue]
            )
        )
    model.model.language_model.load_state_dict(llama.model.state_dict())  # pyright: ignore[reportCallIssue, reportAttributeAccessIssue, reportArgumentType]
    model.tie_weights()
    model.generation_config = llama.generation_config  # pyright: ignore[reportAttributeAccessIssue]
    half = [0.5, 0.5, 0.5]
    processor: Any = CLIPImageProcessorPil(
        size={"height": side, "width": side}, do_center_crop=False, image_mean=half, image_std=half
    )
    model.image_processor = processor
    save_model(model.eval(), tokenizer, out)
    return sum(p.numel() for p in model.parameters())
