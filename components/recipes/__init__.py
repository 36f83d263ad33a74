"""Recipes: schema, loading, checks, plan."""
