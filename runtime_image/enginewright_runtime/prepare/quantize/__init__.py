"""Gives a model another precision, and proves what that does to its outputs: docs/precision.md."""
