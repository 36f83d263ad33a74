"""Inference engines (PyTorch, vLLM) that generate and score."""
