"""What runs inside vLLM's worker processes, in an environment without Ratchet."""
