"""GGUF files converted to Hugging Face model directories."""

from __future__ import annotations

import contextlib
import functools
import json
from collections.abc import Iterator
from pathlib import Path

import torch

from ratchet.components.errors import SourceError
from ratchet.components.models.load import PADS, save_model


def convert_gguf(file: Path, out: Path) -> None:
    """Convert a GGUF file to a Hugging Face directory: float32 weights, pad token ≠ eos token. `SourceError`
    if it cannot be read.

    Conversion does not undo quantisation: Q4_1 has about 4.5 bits per weight.
    """
    from transformers import AutoModelForCausalLM, AutoTokenizer, GenerationConfig

    file = Path(file)
    if not file.is_file():
        raise SourceError(f"{file}: GGUF file not found")
    try:
        with _read_once():
            model = AutoModelForCausalLM.from_pretrained(
                file.parent, gguf_file=file.name, dtype=torch.float32, trust_remote_code=False
            )
            tokenizer = AutoTokenizer.from_pretrained(
                file.parent, gguf_file=file.name, trust_remote_code=False
            )
    except Exception as error:  # untrusted input: any exception may be raised, by tokenizers a bare Exception
        raise SourceError(
            f"{file}: transformers cannot read this GGUF file ({type(error).__name__}: {error}); "
            "use an architecture that transformers can convert, or the model's safetensors"
        ) from error
    if not tokenizer.chat_template:
        raise SourceError(f"{file}: its metadata has no chat template; use an instruct model")
    vocabulary = {
        token for token, number in tokenizer.get_vocab().items() if number < model.config.vocab_size
    }
    taken = {tokenizer.eos_token, tokenizer.bos_token}
    pad = next((t for t in (*PADS, tokenizer.unk_token) if t in vocabulary and t not in taken), None)
    if pad is None:
        raise SourceError(
            f"{file}: no special token is available as pad token (eos {tokenizer.eos_token!r}); tried "
            f"{', '.join(PADS)}"
        )
    tokenizer.pad_token = pad
    config = model.config
    if hasattr(config, "quantization_config"):
        del config.quantization_config  # pyright: ignore[reportAttributeAccessIssue]
    model.hf_quantizer = None  # pyright: ignore[reportArgumentType]
    model.is_quantized = False  # pyright: ignore[reportArgumentType]
    if hasattr(model, "quantization_method"):
        del model.quantization_method
    config.rms_norm_eps = float(
        f"{config.rms_norm_eps:.6g}"
    )  # GGUF stores 1e-5 as the float32 9.999999747e-06
    config.pad_token_id, config.eos_token_id, config.bos_token_id = (
        tokenizer.pad_token_id,
        tokenizer.eos_token_id,
        tokenizer.bos_token_id,
    )
    config.dtype = torch.float32
    config._name_or_path = file.stem
    model.generation_config = GenerationConfig(
        eos_token_id=config.eos_token_id, pad_token_id=config.pad_token_id, bos_token_id=config.bos_token_id
    )
    save_model(model, tokenizer, out)
    if len(tokenizer) > config.vocab_size:
        _drop_tokens(Path(out) / "tokenizer.json", config.vocab_size)


def _drop_tokens(file: Path, size: int) -> None:
    """Remove added tokens beyond the embedding: transformers adds <|endoftext|> to every GPT-2 vocabulary,
    even if the file lacks it.
    """
    tokenizer = json.loads(file.read_text(encoding="utf-8"))
    tokenizer["added_tokens"] = [token for token in tokenizer["added_tokens"] if token["id"] < size]
    file.write_text(json.dumps(tokenizer, indent=2, ensure_ascii=False), encoding="utf-8")


@contextlib.contextmanager
def _read_once() -> Iterator[None]:
    """Cache `GGUFReader`: transformers opens the file for config, weights and tokenizer, and its index takes
    five seconds to parse.
    """
    import gguf

    plain = gguf.GGUFReader
    gguf.GGUFReader = functools.cache(plain)  # type: ignore[misc, assignment]
    try:
        yield
    finally:
        gguf.GGUFReader = plain  # type: ignore[misc]
