"""Moves of all models to new runtime images and edited classes, and whose turn it is to create Jobs."""
