"""Resolves names to values and their readers; changes and partitions models on that basis."""
