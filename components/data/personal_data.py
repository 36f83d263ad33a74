"""Transform `scrub`: removes personal data (e-mail, links, phone numbers by Google's package `phonenumbers`, @handles).

Matches are replaced by a bracketed word, which keeps the sentence intact. Names of people are kept: no rule finds
them reliably, and a topic may be a person.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence

from ratchet.components.data.records import Conversation, CountTokens, FilterResult
from ratchet.components.piece import piece

EMAIL = re.compile(r"[\w.+-]+@[\w-]+(?:\.[\w-]+)+")
URL = re.compile(r"(?:https?://|www\.)[^\s<>\"']*[^\s<>\"'.,;:!?)\]]", re.IGNORECASE)
HANDLE = re.compile(r"(?<![\w@.])@(?=\w*[A-Za-z])\w{2,}")
DIGITS = re.compile(r"\d(?:[\s().+-]*\d){6,}")
KINDS = ("email", "link", "phone", "handle")


@piece()
def scrub(records: Sequence[Conversation], count_tokens: CountTokens, *, region: str = "US") -> FilterResult:
    """Replace personal data by [email], [link], [phone], [handle]. `region`: default country of phone numbers without
    +.
    """
    found: Counter[str] = Counter()

    def clean(text: str) -> str:
        text, kinds = scrubbed(text, region)
        found.update(kinds)
        return text

    kept = [record.rewritten(clean) for record in records]
    return FilterResult(kept, [], {f"{kind} replaced": found[kind] for kind in KINDS if found[kind]})


def scrubbed(text: str, region: str = "US") -> tuple[str, list[str]]:
    """The text without personal data, and the kinds found."""
    kinds: list[str] = []
    if "@" in text or "://" in text or "www." in text.lower():
        for kind, pattern in (("email", EMAIL), ("link", URL), ("handle", HANDLE)):
            text, count = pattern.subn(f"[{kind}]", text)
            kinds += [kind] * count
    if DIGITS.search(text):
        from phonenumbers import PhoneNumberMatcher

        for match in reversed(list(PhoneNumberMatcher(text, region))):
            text = text[:match.start] + "[phone]" + text[match.end:]
            kinds.append("phone")
    return text, kinds
