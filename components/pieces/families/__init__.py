"""Model families other than language models: modules with actions of real numbers."""
