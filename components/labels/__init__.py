"""Preference labels by people: records, the queue of comparisons."""
