"""Data sources, parsing, transforms, curation, splits, deduplication, decontamination, and groups on disk."""
