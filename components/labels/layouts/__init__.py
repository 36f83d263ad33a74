"""File layouts of labels. A module has `decode` (content of a file → items and labels) and `encode`."""
