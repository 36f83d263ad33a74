"""MLflow runs and metrics, the Prefect run page, alerts, results of runs."""
