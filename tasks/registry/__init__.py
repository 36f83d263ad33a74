"""Model versions: registration, promotion, lineage, export."""
