"""Brings the model and what belongs to it into the work folder."""
