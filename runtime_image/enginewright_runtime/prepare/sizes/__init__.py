"""Sizes of a model's dynamic dimensions, found by running it."""
