"""Loading and saving of models, packed forward pass, attention, reward and value heads, LoRA."""
