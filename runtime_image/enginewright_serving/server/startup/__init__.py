"""Loads and proves the model before it is served."""
