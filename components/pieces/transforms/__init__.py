"""Transforms of raw records before they are split: deduplication, filters, normalisation."""
