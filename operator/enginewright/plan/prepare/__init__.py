"""Prepared models: the Jobs that prepare them, and those that models share."""
