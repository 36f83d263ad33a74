"""Evaluation: bootstrap intervals, certificates, gates, health rules, win rates, diversity, report."""
