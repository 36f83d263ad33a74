"""Engines that sample and score."""
