"""Transform `scrub`: replaces personal data by placeholders (`components/data/personal_data.py`)."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from ratchet.components.data.personal_data import scrubbed
from ratchet.components.data.records import Conversation, CountTokens, FilterResult
from ratchet.components.piece import piece

KINDS = ("email", "link", "phone", "handle")


@piece()
def scrub(records: Sequence[Conversation], count_tokens: CountTokens, *, region: str = "US") -> FilterResult:
    """Replace personal data by [email], [link], [phone], [handle]. `region`: default country of phone numbers
    without +. A reference answer is kept, since a verifier compares replies with it.
    """
    found: Counter[str] = Counter()

    def clean(text: str) -> str:
        text, kinds = scrubbed(text, region)
        found.update(kinds)
        return text

    kept = [record.rewritten(clean) for record in records]
    return FilterResult(kept, [], {f"{kind} replaced": found[kind] for kind in KINDS if found[kind]})
