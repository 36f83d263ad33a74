"""Transform `questions`: extracts stand-alone questions from conversations as prompts."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import replace

from ratchet.components.data.records import Conversation, CountTokens, FilterResult, Rejected
from ratchet.components.piece import piece
from ratchet.components.recipes.ranges import Count, Natural

END = re.compile(r"\?[\s?!]*\Z")
START = re.compile(
    r"(?:(?:what|who|where|when|how)(?:'?s)?|whose|whom|why|which|if|do|does|did|don't|doesn't|didn't|are|aren't|is|"
    r"isn't|was|were|have|haven't|has|can|could|would|wouldn't|will|should)\b",
    re.IGNORECASE,
)
FILLER = re.compile(
    r"(?:(?:so|oh|ooh|ah|ahh|haha\w*|hehe\w*|lol|well|ok|okay|k|cool|nice|wow|yeah|yes|yep|ya|no|nope|hmm*|umm*|and|"
    r"but|or|also|anyways?|then|wait|dang|gotcha|sweet|awesome|true|right|sure|hey|hi|hello|man|dude|by "
    r"the way|btw|"
    r"good|interesting|out of curiosity|just curious|really|alright|now|great)\b[\s,.:;-]*)+",
    re.IGNORECASE,
)
RUN_ON = re.compile(
    r"(?<=[\w)]) "
    r"(?=(?:What|Who|Where|When|Why|How|Which|If|Do|Does|Did|Are|Is|Was|Were|Have|Has|Can|Could|Would|Will|"
    r"Should|So|But|And|Oh|Haha|Well|Cool|Nice)\b)"
)
CONTEXT = re.compile(
    r"\b(?:it|its|it's|they|they're|theyre|them|their|theirs|he|he's|him|his|she|she's|her|hers|this|these|those|there|"
    r"here|then|yours?elf|yours|mine|too|else|either|neither|others?|another|ones|same|such|so|instead|again|still|yet|"
    r"tho|though|what about|how about|you mean|you saying|you say|thats|that's|which "
    r"one|prompts?|chat\w*|scoreboard|"
    r"the question|my "
    r"answer|(?:like|about|of|with|for|in|to|at|from|by|is|was|did|do|does|are|on|see|know|figure|"
    r"tell me) that|that "
    r"(?:one|was|is|show|movie))\b|\b(?:that|any|more|left)\s*\?|\b(?:lol|(?:ha|he){2,}\w*)\b",
    re.IGNORECASE,
)


@piece()
def questions(
    records: Sequence[Conversation],
    count_tokens: CountTokens,
    *,
    min_words: Natural = 5,
    max_words: Count = 25,
) -> FilterResult:
    """Every message (of either speaker) that ends in a question becomes a record `<conversation>-<n>` with
    one user
    message: the last sentence without leading interjections, of `min_words` to `max_words` words.

    A question must start with a question word (what, do, is, ...) and contain no reference to earlier turns
    (it, they, that one, how about, ...); the rule also drops some good ones. Repeats, ignoring case and
    punctuation, are dropped as copies; conversations without a question are dropped. Ratings belong to the
    conversation and are removed.
    """
    kept: list[Conversation] = []
    dropped: list[Rejected] = []
    known: set[str] = set()
    unusable = 0
    for record in records:
        found = False
        for number, message in enumerate(record.messages):
            if message["role"] not in ("user", "assistant") or not END.search(message["content"]):
                continue
            question = final_question(message["content"])
            if not question or not min_words <= len(question.split()) <= max_words:
                unusable += 1
                continue
            found = True
            key, same = (
                f"{record.id}-{number}",
                " ".join(re.findall(r"\w+", question.lower().replace("'", ""))),
            )
            if same in known:
                dropped.append(Rejected(key, "repeated question", question, copy=True))
                continue
            known.add(same)
            kept.append(
                replace(
                    record,
                    id=key,
                    messages=({"role": "user", "content": question},),
                    opening=1,
                    rating=None,
                    ratings={},
                    rejected=(),
                    answer=None,
                    topic_as_system=False,
                    meta={**record.meta, "question": key, "conversation": record.id},
                )
            )
        if not found:
            dropped.append(Rejected(record.id, "no stand-alone question", record.as_json()))
    return FilterResult(
        kept, dropped, {"questions too short, too long or in need of their context": unusable}
    )


def final_question(text: str) -> str:
    """The final question of a message if it stands alone, else ""."""
    text = text.rstrip(" \t\n?!") + "?"
    last = re.split(r"(?<=[.!?])[\"')]*\s+|\n+|(?<=\s)[:;=]-?[()DP]\s+", text)[-1]
    last = RUN_ON.split(last)[-1]
    last = FILLER.sub("", last, count=1) if FILLER.match(last) else last
    if (
        not START.match(last)
        or CONTEXT.search(last)
        or re.search(r"[^\x20-\x7e]|[*_<>{}\[\]\"]|https?:", last)
    ):
        return ""
    return last[0].upper() + " ".join(last.split())[1:]
