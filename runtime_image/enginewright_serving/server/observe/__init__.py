"""Metrics, health and logs of what is served."""
