"""Conversion of message formats (OpenAI objects, ShareGPT `from`/`value`, plain-text transcripts) to role and
text.
"""

from __future__ import annotations

import contextlib
import json
import math
import re
from collections.abc import Mapping, Sequence
from typing import Any, cast

from ratchet.components.data.group_rows import ROLES
from ratchet.components.types import Message

NAMES = {
    "human": "user",
    "prompter": "user",
    "instruction": "user",
    "input": "user",
    "gpt": "assistant",
    "chatgpt": "assistant",
    "bard": "assistant",
    "bing": "assistant",
    "model": "assistant",
    "bot": "assistant",
    "ai": "assistant",
    "response": "assistant",
    "function_call": "assistant",
    "developer": "system",
    "function": "tool",
    "function_response": "tool",
    "observation": "tool",
    "tool_response": "tool",
}
"""Aliases of roles."""

TURNS = (
    re.compile(r"(?:\A|\n\n)(Human|Assistant): ?"),  # HH-RLHF
    re.compile(r"\s*### ?(System|Human|User|Instruction|Input|Assistant|Response): ?"),  # Guanaco, Alpaca
    re.compile(r"(?:<\|im_end\|>)?\s*<\|im_start\|>(system|user|assistant|tool)\n"),
)  # ChatML
"""Turn markers of transcripts; a transcript starts with one."""

PROMPTS = ("prompt", "question", "instruction", "conversations", "messages")
"""Prompt columns, in order of precedence."""


MISSING = frozenset({"", "-", "n/a", "na", "none", "null"})
"""Spellings of a missing number, in lower case."""


def text_of(value: Any) -> str:
    """A text, or a number as its text. `ValueError` for anything else."""
    if isinstance(value, (int, float)) and not isinstance(value, bool):
        return str(value)
    if not isinstance(value, str):
        raise ValueError(f"expected a text, got {_shown(value)}")
    return value


def messages_of(value: Any, role: str) -> tuple[Message, ...]:
    """Messages from a list, its JSON, or a text (one message of `role`, unless it is a transcript).
    `ValueError` describes the problem.
    """
    if isinstance(value, (int, float)) and not isinstance(value, bool):
        value = text_of(value)
    if isinstance(value, str):
        value = from_json(value)
    if isinstance(value, str):
        return transcript(value) or (message(role, value),)
    if isinstance(value, Mapping):
        value = [value]
    if not isinstance(value, Sequence) or isinstance(value, bytes) or not value:
        raise ValueError(f"expected a text or a list of messages, got {_shown(value)}")
    return _joined([_message(one) for one in value])


def decoded(value: Any) -> Any:
    """What a text that is the JSON of a list or an object says; any other value as it is."""
    if isinstance(value, str) and value.lstrip().startswith(("[", "{")):
        with contextlib.suppress(ValueError, RecursionError):
            return json.loads(value)
    return value


def from_json(text: str) -> Any:
    """The messages of a text that is the JSON of a message or of a list of them, as in CSV and some Parquet
    files; else the text.
    """
    found = decoded(text)
    listed = [found] if isinstance(found, Mapping) else found
    messages = isinstance(listed, list) and all(
        isinstance(one, Mapping) and ({"role", "content"} <= set(one) or {"from", "value"} <= set(one))
        for one in listed
    )
    return found if messages and found else text


def transcript(text: str) -> tuple[Message, ...]:
    r"""Turns of a text that starts with a turn marker and has an assistant turn, e.g. HH-RLHF's "\n\nHuman:
    ... \n\nAssistant: ..."; () for any other text. An empty final answer is dropped.
    """
    text = text.lstrip("\n")
    for marks in TURNS:
        if marks.match(text):
            _, *parts = marks.split(text.removesuffix("\n").removesuffix("<|im_end|>"))
            turns = [
                message(NAMES.get(name.lower(), name.lower()), content.strip())
                for name, content in zip(parts[::2], parts[1::2], strict=True)
            ]
            if all(turn["role"] != "assistant" for turn in turns):
                return ()
            return _joined(turns[:-1] if turns[-1] == message("assistant", "") else turns, every=True)
    return ()


def prompt_of(row: Mapping[str, Any]) -> tuple[Message, ...]:
    """The prompt of a row, with its column `system` as system message; empty if the row has none."""
    name = next((name for name in PROMPTS if row.get(name) is not None), None)
    if name is None:
        return ()
    if name == "instruction" and (row.get("input") not in (None, "") or row.get("history")):
        return instruction_of(row)
    return with_system(messages_of(row[name], "user"), row.get("system"))


def instruction_of(row: Mapping[str, Any]) -> tuple[Message, ...]:
    """Alpaca's prompt: `system`, `history` (earlier pairs of instruction and output), `instruction` with
    `input`.
    """
    if any(isinstance(pair, str) or len(pair) != 2 for pair in row.get("history") or ()):
        raise ValueError("history: expected pairs of an instruction and its output")
    earlier = [
        message(role, text)
        for pair in row.get("history") or ()
        for role, text in zip(("user", "assistant"), map(text_of, pair), strict=True)
    ]
    question = "\n\n".join(
        text_of(text) for text in (row["instruction"], row.get("input")) if text not in (None, "")
    )
    return with_system((*earlier, message("user", question)), row.get("system"))


def reply_of(value: Any) -> tuple[Message, ...]:
    """The reply to a prompt, from a text, one message, or a list of them."""
    single = isinstance(value, (str, int, float))
    reply = (message("assistant", text_of(value)),) if single else messages_of(value, "assistant")
    if not reply[-1]["content"].strip():
        raise ValueError("the answer is empty")
    return reply


def label_of(value: Any) -> bool | None:
    """Parse a desirability label in any usual spelling of true and false."""
    known = {"true": True, "1": True, "1.0": True, "false": False, "0": False, "0.0": False}
    text = str(value).strip().lower()
    if value is not None and text not in known:
        raise ValueError(
            f"label: expected true or false (whether the answer is desirable), got {_shown(value)}; if the "
            "column says something else, rename it, as in `data.columns: {class: label}`"
        )
    return None if value is None else known[text]


def answer_of(value: Any) -> str | None:
    """A reference answer, from a text or a number; None where the row has none."""
    if isinstance(value, (list, tuple, Mapping, bytes)):
        raise ValueError(
            f"answer: expected a text or a number, got {_shown(value)}; name the part of it in "
            "data.columns, as in `{answer: answer.value}`, or use another column"
        )
    return None if value is None else str(value)


def number(name: str, value: Any) -> float:
    """A rating, a score or a margin, as a number or its text. `ValueError` unless it is finite."""
    try:
        found = float(value)
    except (TypeError, ValueError, OverflowError):
        found = math.nan
    if not math.isfinite(found):
        raise ValueError(f"{name}: expected a finite number, got {_shown(value)!r}")
    return found


def score_of(name: str, value: Any) -> float | None:
    """A rating, a score or a margin; None where the row has none (null, N/A)."""
    if value is None or (isinstance(value, str) and value.strip().lower() in MISSING):
        return None
    return number(name, value)


def with_system(messages: tuple[Message, ...], system: Any, tools: Any = None) -> tuple[Message, ...]:
    """`messages` preceded by a system message with the text `system` and the function definitions `tools` (a
    list, or its JSON).
    """
    if isinstance(tools, str) and tools.strip():
        try:
            tools = json.loads(tools)
        except ValueError as error:
            raise ValueError(
                f"tools: expected a list of functions or its JSON, got {_shown(tools)}"
            ) from error
    given = [str(system)] if system else []
    if tools:
        given.append(
            "These functions can be called. A call is a line of JSON with name and arguments between "
            "<tool_call> and </tool_call>.\n<tools>\n"
            + "\n".join(json.dumps(tool, ensure_ascii=False) for tool in tools)
            + "\n</tools>"
        )
    return _joined([*(message("system", text) for text in given), *messages])


def message(role: str, content: str) -> Message:
    return cast(Message, {"role": role, "content": content})


def _message(given: Any) -> Message:
    if not isinstance(given, Mapping):
        raise ValueError(f"expected a message with role and content, got {_shown(given)}")
    name = str(given.get("role") or given.get("from") or "").lower()
    role = NAMES.get(name, name)
    if role not in ROLES:
        raise ValueError(f"a message needs a role ({', '.join(ROLES)}), got {_shown(given)}")
    if given.get("weight") == 0:
        raise ValueError("a message has weight 0, which is not supported: all assistant turns are trained on")
    content = given.get("content", given.get("value"))
    made = given.get("tool_calls")
    if made and (isinstance(made, str) or not all(isinstance(call, Mapping) for call in made)):
        raise ValueError(f"tool_calls: expected a list of objects with a function, got {_shown(made)}")
    calls = [call.get("function", call) for call in made or ()]
    calls += [given["function_call"]] if given.get("function_call") else []
    if name == "function_call":
        content, calls = None, [json.loads(content) if isinstance(content, str) else content]
    texts = [_text(content if content is not None else given.get("refusal")), *map(_call, calls)]
    if not any(text is not None for text in texts):
        raise ValueError(f"a message needs a text, got {_shown(given)}")
    return message(role, "\n".join(text for text in texts if text))


def _text(content: Any) -> str | None:
    """A text, or OpenAI's list of parts joined by newlines."""
    if content is None or isinstance(content, (str, int, float)):
        return None if content is None else text_of(content)
    if not isinstance(content, Sequence):
        raise ValueError(f"a message needs a text, got {_shown(content)}")
    for part in content:
        if not isinstance(part, Mapping) or not isinstance(part.get("text"), str):
            kind = part.get("type") if isinstance(part, Mapping) else type(part).__name__
            if isinstance(part, Mapping) and "text" in part:
                raise ValueError(f"a part of a message needs a text, got {_shown(part)}")
            raise ValueError(f"a message has a part of type {kind!r}; only text is supported")
    return "\n".join(part["text"] for part in content)


def _call(call: Mapping[str, Any]) -> str:
    """A function call as text, independent of the chat template: <tool_call>{"name": ..., "arguments":
    {...}}</tool_call>.
    """
    if not isinstance(call, Mapping) or not isinstance(call.get("name"), str):
        raise ValueError(f"a tool call needs the name of its function, got {_shown(call)}")
    arguments = call.get("arguments")
    if isinstance(arguments, str):
        with contextlib.suppress(ValueError):  # model output: invalid JSON is kept as text
            arguments = json.loads(arguments)
    called = json.dumps({"name": call["name"], "arguments": arguments}, ensure_ascii=False)
    return f"<tool_call>\n{called}\n</tool_call>"


def _joined(messages: Sequence[Message], every: bool = False) -> tuple[Message, ...]:
    """Merge adjacent system messages, since templates allow one; with `every`, adjacent messages of any
    role.
    """
    out: list[Message] = []
    for one in messages:
        if out and out[-1]["role"] == one["role"] and (every or one["role"] == "system"):
            out[-1] = message(one["role"], f"{out[-1]['content']}\n\n{one['content']}")
        else:
            out.append(one)
    return tuple(out)


def _shown(value: Any) -> str:
    return str(value)[:120]
