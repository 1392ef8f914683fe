"""Moves of all models to new runtime images, and whose turn it is to create Jobs."""
