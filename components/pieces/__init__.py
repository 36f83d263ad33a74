"""What a recipe names: one folder a kind of piece, one file a piece (see `components/piece.py`)."""
