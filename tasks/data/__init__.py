"""Data operations: validation (Great Expectations), versioning (DVC), drift, garbage collection."""
