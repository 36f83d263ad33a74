"""Images in the input of a vision-language model: the tokens that stand for an image get the features of the
vision encoder as their embeddings.
"""

from __future__ import annotations

import base64
import io
import json
from collections.abc import Sequence
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, final

import torch
from torch import Tensor, nn

from ratchet.components.errors import ContractError, SourceError
from ratchet.components.models.layers import backbone
from ratchet.components.recipes.families import MODELS

if TYPE_CHECKING:
    from ratchet.components.text.tokenizer import Tokenizer

ENCODED = 64
"""Images that the vision encoder reads at once when no gradient is needed."""


def takes_images(path: Path) -> bool:
    """Whether a model directory holds a vision-language model that `load_policy` can load."""
    return _config(path).get("model_type") in MODELS


def load_image_processor(path: Path) -> Any:
    """The image processor of a model directory, which scales, cuts and normalises, without torchvision.
    `SourceError` if there is none.
    """
    from transformers import AutoImageProcessor

    try:
        return AutoImageProcessor.from_pretrained(
            path, local_files_only=True, trust_remote_code=False, backend="pil"
        )
    except (OSError, ValueError) as error:
        raise SourceError(
            f"{path}: a vision-language model needs its image processor (preprocessor_config.json or "
            f"processor_config.json): {str(error).splitlines()[0]}"
        ) from error


def mark_tokenizer(tokenizer: Tokenizer, path: Path) -> Tokenizer:
    """The tokenizer of a vision-language model with the attribute `image_text`: its image token once for
    every place of an image. Any other tokenizer unchanged.
    """
    if takes_images(path):
        config = _config(path)
        number = config.get("image_token_index", config.get("image_token_id"))
        tokenizer.image_text = tokenizer.convert_ids_to_tokens(number) * config.get("image_seq_length", 576)  # pyright: ignore[reportAttributeAccessIssue, reportArgumentType]
    return tokenizer


def _config(path: Path) -> dict[str, Any]:
    file = Path(path) / "config.json"
    return json.loads(file.read_text()) if file.is_file() else {}


def opened(url: str) -> Any:
    """The image of a data URL, as `PIL.Image` in RGB. `ValueError` if it is not one."""
    from PIL import Image, UnidentifiedImageError

    head, _, content = url.partition(";base64,")
    if not head.startswith("data:image/") or not content:
        raise ValueError(f"expected a data URL of an image (data:image/png;base64,...), got {url[:60]!r}")
    try:
        return Image.open(io.BytesIO(base64.b64decode(content, validate=True))).convert("RGB")
    except (UnidentifiedImageError, OSError, SyntaxError, Image.DecompressionBombError) as error:
        raise ValueError(f"not an image: {str(error).splitlines()[0][:120]}") from error


@final
class ImageRows:
    """Token rows of one forward pass with the images they show, `images`: data URLs, one sequence per row.

    `rows`: the same rows, where each place of an image has a number of its own, beyond the vocabulary and
    equal for equal images, so that two rows have a prefix in common only if they show the same images there.
    The first image tokens of a row are its images' places. `ContractError` if there are fewer.
    """

    def __init__(self, model: nn.Module, rows: Sequence[Tensor], images: Sequence[Sequence[str]]) -> None:
        config: Any = model.config
        self.model = model
        self.token, self.places = int(config.image_token_id), int(config.image_seq_length)
        self.vocabulary = int(config.get_text_config().vocab_size)
        self.urls = list(dict.fromkeys(url for row in images for url in row))
        numbers = {url: i for i, url in enumerate(self.urls)}
        self.rows = [
            self._numbered(row, [numbers[url] for url in shown])
            for row, shown in zip(rows, images, strict=True)
        ]

    def _numbered(self, row: Tensor, shown: Sequence[int]) -> Tensor:
        where = (row == self.token).nonzero()[:, 0]
        needed = len(shown) * self.places
        if len(where) < needed or (not shown and len(where) >= self.places):
            raise ContractError(
                f"a row has {len(where)} image tokens and {len(shown)} images of {self.places} tokens each; "
                "encode the prompt with its images, and pass them on in `Request.images`"
            )
        numbered = row.clone()
        first = torch.tensor(shown, dtype=torch.long)[:, None] * self.places + self.vocabulary
        numbered[where[:needed]] = (first + torch.arange(self.places)).flatten()
        return numbered

    @cached_property
    def features(self) -> Tensor:
        """(images * places, H): the vision encoder's output, mapped to token embeddings."""
        encoder: Any = backbone(self.model)
        like = next(encoder.parameters())
        count = len(self.urls) if torch.is_grad_enabled() else ENCODED
        found = []
        for start in range(0, len(self.urls), count):
            images = [opened(url) for url in self.urls[start : start + count]]
            pixels = self.model.image_processor(images=images, return_tensors="pt")["pixel_values"]  # pyright: ignore[reportCallIssue]
            pixels = pixels.to(like.device, like.dtype)
            found += encoder.get_image_features(pixel_values=pixels, return_dict=True).pooler_output
        if any(len(image) != self.places for image in found):
            raise ContractError(
                f"the vision encoder gives {len(found[0])} features for an image, and config.json says "
                f"image_seq_length {self.places}"
            )
        return torch.cat(found)

    def embed(self, tokens: Tensor) -> Tensor:
        """Embeddings (1, N, H) of a flat row (1, N) with numbered places."""
        embedding: Any = self.model.get_input_embeddings()  # pyright: ignore[reportCallIssue]
        flat = tokens[0].to(next(embedding.parameters()).device)
        places = flat >= self.vocabulary
        found = embedding(flat.masked_fill(places, self.token))
        if not places.any():
            return found[None]
        features = self.features[flat[places] - self.vocabulary].to(found.dtype)
        return found.index_put((places.nonzero()[:, 0],), features)[None]


def image_rows(model: nn.Module, rows: Sequence[Tensor], images: Sequence[Sequence[str]]) -> ImageRows | None:
    """The rows with their images; None for a model that takes text only, which must be given none."""
    if hasattr(model, "image_processor"):
        return ImageRows(model, rows, images or [()] * len(rows))
    if any(images):
        raise ContractError("the prompts show images, and the model takes text only")
    return None
