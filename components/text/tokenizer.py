"""Protocol of a tokenizer."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol


class Tokenizer(Protocol):
    """The part of a Hugging Face tokenizer that this package uses. transformers looks up special tokens by
    name at run time, so a type checker does not find them in its own `PreTrainedTokenizerBase`.

    The special tokens are None where they are not set, which `contract` refuses of a policy. The tokenizer of
    a vision-language model also has `image_text`, see `mark_tokenizer`.
    """

    chat_template: Any  # str; a dict for several templates by name; None without one
    eos_token: str
    eos_token_id: int
    pad_token: str
    pad_token_id: int
    padding_side: str

    @property
    def added_tokens_decoder(self) -> Mapping[int, Any]:
        """Id -> added token."""
        ...

    @property
    def all_special_tokens(self) -> Sequence[str]: ...

    def __len__(self) -> int: ...

    def __call__(self, text: str | list[str], **options: Any) -> Mapping[str, Any]:
        """`input_ids` of a text, or of each of several texts, and other inputs of a model by name."""
        ...

    def apply_chat_template(self, conversation: Sequence[Mapping[str, object]], **options: Any) -> Any:
        """The rendering of messages as text; as token ids unless `tokenize=False`."""
        ...

    def add_tokens(self, new_tokens: list[str], *, special_tokens: bool = False) -> int: ...

    def convert_ids_to_tokens(self, ids: int) -> str: ...

    def convert_tokens_to_ids(self, tokens: str) -> int: ...

    def decode(self, token_ids: list[int], **options: Any) -> str: ...

    def get_vocab(self) -> Mapping[str, int]: ...

    def pad(self, encoded_inputs: Mapping[str, Any], **options: Any) -> Mapping[str, Any]:
        """Rows of one length, with their `attention_mask`."""
        ...

    def save_pretrained(self, save_directory: Path) -> Any: ...
