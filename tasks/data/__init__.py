"""Data on its way: validation (Great Expectations), versions (DVC), drift, garbage collection."""
