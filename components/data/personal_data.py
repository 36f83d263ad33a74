"""Personal data in texts: e-mail, links, phone numbers (Google's rules in the package `phonenumbers`),
@handles.

Matches are replaced by a bracketed word, which keeps the sentence intact. Names of people are kept: no rule
finds them reliably, and a topic may be a person.
"""

from __future__ import annotations

import re

EMAIL = re.compile(r"[\w.+-]+@[\w-]+(?:\.[\w-]+)+")
URL = re.compile(r"(?:https?://|www\.)[^\s<>\"']*[^\s<>\"'.,;:!?)\]]", re.IGNORECASE)
HANDLE = re.compile(r"(?<![\w@.])@(?=\w*[A-Za-z])\w{2,}")
DIGITS = re.compile(r"\d(?:[\s().+-]*\d){6,}")


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
            text = text[: match.start] + "[phone]" + text[match.end :]
            kinds.append("phone")
    return text, kinds
