"""Model registry: registration, promotion, lineage, export."""
