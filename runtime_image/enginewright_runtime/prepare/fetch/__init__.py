"""Fetches the model and its other inputs into the work folder."""
