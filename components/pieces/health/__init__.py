"""Health rules of online training, by the names that `online.health` gives limits and actions to."""
