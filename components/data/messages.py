"""Messages as others write them: OpenAI's objects, ShareGPT's `from`/`value`, transcripts in one text; as role and text."""

from __future__ import annotations

import contextlib
import json
import re
from collections.abc import Mapping, Sequence
from typing import Any, cast

from ratchet.components.data.groups import ROLES
from ratchet.components.types import Message

NAMES = {"human": "user", "prompter": "user", "instruction": "user", "input": "user", "gpt": "assistant", "chatgpt": "assistant",
         "bard": "assistant", "bing": "assistant", "model": "assistant", "response": "assistant", "function_call": "assistant",
         "developer": "system", "function": "tool", "function_response": "tool", "observation": "tool", "tool_response": "tool"}
"""Other names of our roles."""

TURNS = (re.compile(r"(?:\A|\n\n)(Human|Assistant): ?"),                                                  # HH-RLHF
         re.compile(r"\s*### ?(System|Human|User|Instruction|Input|Assistant|Response): ?"),              # Guanaco, Alpaca
         re.compile(r"(?:<\|im_end\|>)?\s*<\|im_start\|>(system|user|assistant|tool)\n"))                 # ChatML
"""Marks of turns in a transcript, which begins with one."""

PROMPTS = ("prompt", "question", "instruction", "conversations", "messages")
"""Columns that hold the prompt of a row, the first one present."""


def messages_of(value: Any, role: str) -> tuple[Message, ...]:
    """Messages of a text, which is one message of `role` unless it is a transcript, or of a list. `ValueError` says what is wrong."""
    if isinstance(value, str):
        return transcript(value) or (message(role, value),)
    if isinstance(value, Mapping):
        value = [value]
    if not isinstance(value, Sequence) or not value:
        raise ValueError(f"expected a text or a list of messages: got {_shown(value)}")
    return _joined([_message(one) for one in value])


def transcript(text: str) -> tuple[Message, ...]:
    """The turns of a text that begins with the mark of one and has an assistant's, such as HH-RLHF's "\\n\\nHuman: ... \\n\\nAssistant: ...";
    none of any other text. An empty answer at the end, which is still to come, is left out."""
    text = text.lstrip("\n")
    for marks in TURNS:
        if marks.match(text):
            _, *parts = marks.split(text.removesuffix("\n").removesuffix("<|im_end|>"))
            turns = [message(NAMES.get(name.lower(), name.lower()), said.strip()) for name, said in zip(parts[::2], parts[1::2], strict=True)]
            if all(turn["role"] != "assistant" for turn in turns):
                return ()
            return _joined(turns[:-1] if turns[-1] == message("assistant", "") else turns, every=True)
    return ()


def prompt_of(row: Mapping[str, Any]) -> tuple[Message, ...]:
    """The prompt of a row, with its column `system` before it; empty where the row has none."""
    found = next((row[name] for name in PROMPTS if row.get(name) is not None), None)
    return with_system(messages_of(found, "user"), row.get("system")) if found is not None else ()


def reply_of(value: Any) -> tuple[Message, ...]:
    """What follows a prompt: a text, one message, or a list of them."""
    reply = (message("assistant", value),) if isinstance(value, str) else messages_of(value, "assistant")
    if not reply[-1]["content"].strip():
        raise ValueError("the answer is empty")
    return reply


def label_of(value: Any) -> bool | None:
    """KTO's label, however a file writes true and false."""
    known = {"true": True, "1": True, "1.0": True, "false": False, "0": False, "0.0": False}
    if value is not None and str(value).lower() not in known:
        raise ValueError(f"the label is neither true nor false: {_shown(value)}")
    return None if value is None else known[str(value).lower()]


def with_system(messages: tuple[Message, ...], system: Any, tools: Any = None) -> tuple[Message, ...]:
    """`messages` after a system message of the text `system` and the functions `tools` (a list, or its JSON)."""
    tools = json.loads(tools) if isinstance(tools, str) and tools.strip() else tools
    given = [str(system)] if system else []
    if tools:
        given.append("These functions can be called. A call is a line of JSON with name and arguments between <tool_call> and </tool_call>.\n<tools>\n"
                     + "\n".join(json.dumps(tool, ensure_ascii=False) for tool in tools) + "\n</tools>")
    return _joined([*(message("system", text) for text in given), *messages])


def message(role: str, content: str) -> Message:
    return cast(Message, {"role": role, "content": content})


def _message(given: Any) -> Message:
    if not isinstance(given, Mapping):
        raise ValueError(f"expected a message with role and content: got {_shown(given)}")
    name = given.get("role") or given.get("from")
    role = NAMES.get(name, name)
    if role not in ROLES:
        raise ValueError(f"a message needs a role of {', '.join(ROLES)}: got {_shown(given)}")
    if given.get("weight") == 0:
        raise ValueError("a message has weight 0, and every assistant turn would be learned from")
    content = given.get("content", given.get("value"))
    calls = [call.get("function", call) for call in given.get("tool_calls") or ()]
    calls += [given["function_call"]] if given.get("function_call") else []
    if name == "function_call":
        content, calls = None, [json.loads(content) if isinstance(content, str) else content]
    texts = [_text(content if content is not None else given.get("refusal")), *map(_call, calls)]
    if not any(text is not None for text in texts):
        raise ValueError(f"a message needs a text: got {_shown(given)}")
    return message(role, "\n".join(text for text in texts if text))


def _text(content: Any) -> str | None:
    """A text, or OpenAI's list of parts joined by lines."""
    if content is None or isinstance(content, str):
        return content
    if not isinstance(content, Sequence):
        raise ValueError(f"a message needs a text: got {_shown(content)}")
    for part in content:
        if not isinstance(part, Mapping) or not isinstance(part.get("text"), str):
            kind = part.get("type") if isinstance(part, Mapping) else type(part).__name__
            raise ValueError(f"a message has a part of type {kind!r}, and only text is learned here")
    return "\n".join(part["text"] for part in content)


def _call(call: Mapping[str, Any]) -> str:
    """A function call as text, whatever the chat template: <tool_call>{"name": ..., "arguments": {...}}</tool_call>."""
    arguments = call.get("arguments")
    if isinstance(arguments, str):
        with contextlib.suppress(ValueError):  # a model wrote it: what is no JSON is kept as it is
            arguments = json.loads(arguments)
    return f"<tool_call>\n{json.dumps({'name': call['name'], 'arguments': arguments}, ensure_ascii=False)}\n</tool_call>"


def _joined(messages: Sequence[Message], every: bool = False) -> tuple[Message, ...]:
    """Neighbouring system messages as one, since templates know one; with `every` those of any one role."""
    out: list[Message] = []
    for one in messages:
        if out and out[-1]["role"] == one["role"] and (every or one["role"] == "system"):
            out[-1] = message(one["role"], f"{out[-1]['content']}\n\n{one['content']}")
        else:
            out.append(one)
    return tuple(out)


def _shown(value: Any) -> str:
    return str(value)[:120]
