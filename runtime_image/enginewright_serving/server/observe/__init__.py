"""Metrics, health and logs of the served model."""
