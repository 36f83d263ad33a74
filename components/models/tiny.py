"""A language model of about one million parameters, trained from scratch in about a minute, for tests and
first runs.
"""

from __future__ import annotations

import random
from pathlib import Path

import torch
from torch import Tensor

from ratchet.components.models.attention import register
from ratchet.components.models.forward import model_outputs
from ratchet.components.models.load import save_model
from ratchet.components.text.chat import encode
from ratchet.components.training.packing import pack
from ratchet.components.types import Group, Message, Prompt, Trajectory

TEMPLATE = (
    "{% for message in messages %}{{ '<|im_start|>' + message['role'] + '\\n' + message['content'] + "
    "'<|im_end|>' + '\\n' }}"
    "{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}"
)
SPECIAL = ["<|pad|>", "<|im_start|>", "<|im_end|>"]

THINGS = (
    "music",
    "films",
    "books",
    "football",
    "cooking",
    "travel",
    "games",
    "dogs",
    "cats",
    "the sea",
    "rain",
    "coffee",
)
TALK = (
    ("hi", "Hello! How are you?"),
    ("hello there", "Hi! What would you like to talk about?"),
    ("how are you?", "I am fine, thank you. How are you?"),
    ("what is your name?", "I have no name yet."),
    ("do you like {x}?", "Yes, I like {x} a lot. Do you?"),
    ("i love {x}", "So do I! What do you like about {x}?"),
    ("tell me about {x}", "There is a lot to say about {x}. Where shall we start?"),
    ("i hate {x}", "Oh, why do you not like {x}?"),
    ("good night", "Good night, sleep well."),
    ("bye", "Bye! It was nice to talk about {x}."),
    ("what is the topic?", "The topic is {x}."),
    ("that is great", "I am glad you think so."),
)

SUM = "State the final answer to the following arithmetic problem:"  # wording of reasoning-gym's chain_sum


def train_tiny(
    out: Path,
    *,
    seed: int = 0,
    steps: int = 160,
    hidden: int = 160,
    layers: int = 4,
    batch: int = 48,
    learning_rate: float = 3e-3,
) -> dict[str, float]:
    """Train and save a Llama with ChatML tokenizer that answers small talk and sums such as "What is 3 + 4?"
    and emits end-of-turn tokens.

    Deterministic for a seed and a number of threads. Returns the final training loss (nats per token) and the
    parameter count.
    """
    from transformers import GenerationConfig, LlamaConfig, LlamaForCausalLM

    register()
    tokenizer = _tokenizer(seed)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        model = LlamaForCausalLM(
            LlamaConfig(
                vocab_size=len(tokenizer),
                hidden_size=hidden,
                intermediate_size=hidden * 3,
                num_hidden_layers=layers,
                num_attention_heads=hidden // 32,
                num_key_value_heads=hidden // 32,
                head_dim=32,
                max_position_embeddings=1024,
                tie_word_embeddings=True,
                pad_token_id=tokenizer.pad_token_id,
                eos_token_id=tokenizer.eos_token_id,
                bos_token_id=None,
                attn_implementation="ratchet",  # pyright: ignore[reportCallIssue]
                initializer_range=0.05,
            )
        )
    model.generation_config = GenerationConfig(
        eos_token_id=tokenizer.eos_token_id, pad_token_id=tokenizer.pad_token_id
    )
    optimiser = torch.optim.AdamW(
        model.parameters(), lr=learning_rate, betas=(0.9, 0.98), weight_decay=0.01, fused=True
    )
    warmup = max(steps // 20, 1)
    schedule = torch.optim.lr_scheduler.LambdaLR(
        optimiser, lambda s: min((s + 1) / warmup, max((steps - s) / steps, 0.02))
    )
    rng = random.Random(seed)
    loss = torch.zeros(())
    for _ in range(steps):
        loss = _loss(model, [_encoded(tokenizer, conversation(rng), i) for i in range(batch)])
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimiser.step()
        schedule.step()
        optimiser.zero_grad(set_to_none=True)
    save_model(model.eval(), tokenizer, out)  # pyright: ignore[reportArgumentType]
    return {"loss": float(loss.detach()), "parameters": float(sum(p.numel() for p in model.parameters()))}


def conversation(rng: random.Random) -> list[Message]:
    """A generated conversation: a sum, or one to three turns of small talk, sometimes with a topic as system
    message.
    """
    if rng.random() < 0.6:
        a, b = (
            (rng.randrange(10), rng.randrange(10))
            if rng.random() < 0.8
            else (rng.randrange(100), rng.randrange(10))
        )
        if rng.random() < 0.3 and a >= b:
            return [
                {"role": "user", "content": f"{SUM} {a} - {b} ="},
                {"role": "assistant", "content": str(a - b)},
            ]
        question = rng.choice((f"What is {a} + {b}?", f"{a} + {b} =", f"{SUM} {a} + {b} ="))
        return [{"role": "user", "content": question}, {"role": "assistant", "content": str(a + b)}]
    thing = rng.choice(THINGS)
    messages: list[Message] = [{"role": "system", "content": f"Topic: {thing}"}] if rng.random() < 0.7 else []
    for _ in range(rng.randint(1, 3)):
        question, answer = rng.choice(TALK)
        messages.append({"role": "user", "content": question.format(x=thing)})
        messages.append({"role": "assistant", "content": answer.format(x=thing)})
    return messages


def _encoded(tokenizer, messages: list[Message], number: int) -> Group:
    first = next(i for i, message in enumerate(messages) if message["role"] == "assistant")
    prompt = Prompt(str(number), tuple(messages[:first]))
    return Group(prompt, (encode(tokenizer, prompt, Trajectory(tuple(messages[first:]))),))


def _loss(model: torch.nn.Module, groups: list[Group]) -> Tensor:
    batch = pack(groups, unit="row", tokens=1 << 30)[0]
    return -model_outputs(model, "policy", batch, frozenset({"logprobs"})).logprobs.sum() / batch.mask.sum()


def _tokenizer(seed: int):
    """Byte-level BPE with at most 512 tokens. Digits are single tokens, so that arithmetic can be learnt."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
    from transformers import PreTrainedTokenizerFast

    rng = random.Random(seed + 1)
    corpus = [message["content"] for _ in range(2000) for message in conversation(rng)] + [
        "system",
        "user",
        "assistant",
    ]
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Digits(individual_digits=True),
            pre_tokenizers.ByteLevel(add_prefix_space=False),
        ]
    )
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=512,
        special_tokens=SPECIAL,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(corpus, trainer)
    fast = PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        pad_token=SPECIAL[0],
        eos_token=SPECIAL[2],
        additional_special_tokens=[SPECIAL[1]],
        clean_up_tokenization_spaces=False,
    )
    fast.chat_template = TEMPLATE
    return fast
