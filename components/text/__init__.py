"""Chat templates, tokenisation and the token contract between models."""
