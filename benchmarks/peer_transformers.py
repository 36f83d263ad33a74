"""The same tasks in plain transformers: padded batches, full logits, `generate`. Imports only the clock from
this project.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from transformers import AutoModelForCausalLM

from benchmarks.child import WARM_UP, Clock, device, main


def load(inputs: dict[str, Any], dtype: torch.dtype = torch.float32) -> Any:
    model: Any = AutoModelForCausalLM.from_pretrained(
        inputs["model"], dtype=dtype, attn_implementation="sdpa"
    )
    return model.eval().to(device())


def for_inference(inputs: dict[str, Any]) -> Any:
    """The model with weights in the precision of the inputs, on CPU in float32, as ours."""
    return load(inputs, torch.float32 if device() == "cpu" else getattr(torch, inputs["precision"]))


def padded(rows: list[list[int]], pad: int, *, left: bool = False) -> tuple[Tensor, Tensor]:
    """Padded tokens (B, T) and attention mask."""
    longest = max(map(len, rows))
    fill = [[pad] * (longest - len(row)) for row in rows]
    tokens = torch.tensor([f + row if left else row + f for row, f in zip(rows, fill, strict=True)])
    real = torch.tensor(
        [
            [0] * len(f) + [1] * len(row) if left else [1] * len(row) + [0] * len(f)
            for row, f in zip(rows, fill, strict=True)
        ]
    )
    return tokens, real


def token_logprobs(model: Any, rows: list[list[int]], pad: int) -> Tensor:
    """(B, T-1): log-prob of each token but the first, from the full logits of one forward pass."""
    tokens, real = (each.to(model.device) for each in padded(rows, pad))
    logits = model(input_ids=tokens, attention_mask=real, use_cache=False).logits[:, :-1]
    return logits.float().log_softmax(-1).gather(2, tokens[:, 1:, None])[..., 0]


def chosen(masks: list[list[int]], width: int) -> Tensor:
    """Loss mask (B, width): True where the next token counts."""
    return torch.tensor(
        [mask[1:] + [0] * (width - len(mask) + 1) for mask in masks], dtype=torch.bool, device=device()
    )


def mean_logprobs(model: Any, rows: list[dict[str, Any]], pad: int) -> list[float]:
    """Mean log-prob of the masked-in tokens of each row."""
    with torch.no_grad():
        logprobs = token_logprobs(model, [r["tokens"] for r in rows], pad)
    mask = chosen([r["mask"] for r in rows], logprobs.shape[1])
    return ((logprobs * mask).sum(1) / mask.sum(1)).tolist()


def sft(inputs: dict[str, Any], setting: str) -> dict[str, Any]:
    """A plain hand-written training loop."""
    model, clock = load(inputs), Clock()
    optimiser = torch.optim.AdamW(
        model.parameters(),
        lr=inputs["learning_rate"],
        betas=tuple(inputs["betas"]),
        eps=inputs["eps"],
        weight_decay=inputs["weight_decay"],
        fused=True,
    )
    losses, norms = [], []
    for rows in inputs["sft"]:
        with clock:
            with torch.autocast(device(), torch.bfloat16, enabled=inputs["precision"] == "bfloat16"):
                logprobs = token_logprobs(model, [r["tokens"] for r in rows], inputs["pad"])
            mask = chosen([r["mask"] for r in rows], logprobs.shape[1])
            loss = -logprobs[mask].mean()
            loss.backward()
            norms.append(float(torch.nn.utils.clip_grad_norm_(model.parameters(), inputs["max_grad_norm"])))
            optimiser.step()
            optimiser.zero_grad()
            losses.append(float(loss.detach()))
    return {
        "seconds": clock.seconds[WARM_UP:],
        "tokens": [sum(len(r["tokens"]) for r in rows) for rows in inputs["sft"]][WARM_UP:],
        "checks": {
            "loss": losses,
            "grad_norm": norms,
            "after": mean_logprobs(model, inputs["probe"], inputs["pad"]),
        },
    }


def score(inputs: dict[str, Any], setting: str) -> dict[str, Any]:
    rows = [
        (g["prompt"], answer) for step in inputs["groups"][:2] for g in step for answer in g["completions"]
    ]
    return _score(inputs, setting, rows)


def score_single(inputs: dict[str, Any], setting: str) -> dict[str, Any]:
    return _score(inputs, setting, [(p["prompt"], p["chosen"]) for step in inputs["pairs"] for p in step])


@torch.inference_mode()
def _score(inputs: dict[str, Any], setting: str, rows: list[tuple[list[int], list[int]]]) -> dict[str, Any]:
    """`setting` is the number of rows of a forward pass, or `one` for all."""
    model, clock = for_inference(inputs), Clock()
    size = len(rows) if setting == "one" else int(setting)
    for _ in range(1 + WARM_UP):
        sums: list[float] = []
        with clock:
            for at in range(0, len(rows), size):
                part = rows[at : at + size]
                logprobs = token_logprobs(model, [p + a for p, a in part], inputs["pad"])
                mask = chosen([[0] * len(p) + [1] * len(a) for p, a in part], logprobs.shape[1])
                sums += (logprobs * mask).sum(1).tolist()
    return {
        "seconds": clock.seconds[WARM_UP:],
        "tokens": [sum(len(p) + len(a) for p, a in rows)],
        "checks": {"logprobs": sums},
    }


@torch.inference_mode()
def sample(inputs: dict[str, Any], setting: str) -> dict[str, Any]:
    """`setting` is the number of completions sampled together."""
    model, clock = for_inference(inputs), Clock()
    greedy = [
        _generate(model, [tokens], inputs, max_new_tokens=16, do_sample=False)
        for tokens in inputs["asked"][:4]
    ]
    torch.manual_seed(0)
    at_once, drawn = int(setting) // inputs["completions"], 0
    with clock:
        for at in range(0, len(inputs["asked"]), at_once):
            answers = _generate(
                model,
                inputs["asked"][at : at + at_once],
                inputs,
                max_new_tokens=inputs["max_tokens"],
                do_sample=True,
                temperature=1.0,
                top_k=0,
                top_p=1.0,
                num_return_sequences=inputs["completions"],
            )
            drawn += sum(len(tokens) for tokens, _ in answers)
    return {
        "seconds": clock.seconds,
        "tokens": [drawn],
        "checks": {
            "greedy_tokens": [t for a in greedy for t in a[0][0]],
            "greedy_logprobs": [p for a in greedy for p in a[0][1]],
        },
    }


def _generate(
    model: Any, prompts: list[list[int]], inputs: dict[str, Any], **options: Any
) -> list[tuple[list[int], list[float]]]:
    """Tokens up to end-of-turn and their log-probs at temperature 1, per answer."""
    tokens, real = (each.to(model.device) for each in padded(prompts, inputs["pad"], left=True))
    out = model.generate(
        input_ids=tokens,
        attention_mask=real,
        return_dict_in_generate=True,
        output_logits=True,
        pad_token_id=inputs["pad"],
        eos_token_id=inputs["eos"],
        **options,
    )
    answers = out.sequences[:, tokens.shape[1] :]
    logprobs = torch.stack(
        [
            step.float().log_softmax(-1).gather(1, answers[:, i, None])[:, 0]
            for i, step in enumerate(out.logits)
        ],
        1,
    )
    lengths = ((answers == inputs["eos"]).cumsum(1) - (answers == inputs["eos"]).long() == 0).sum(1).tolist()
    return [(a[:n], p[:n]) for a, p, n in zip(answers.tolist(), logprobs.tolist(), lengths, strict=True)]


WORKS = {"sft": sft, "score": score, "score_single": score_single, "sample": sample}

if __name__ == "__main__":
    main(WORKS, ("torch", "transformers"))
