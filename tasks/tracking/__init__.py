"""MLflow runs, metrics, and what a run reports while it goes on and at its end."""
