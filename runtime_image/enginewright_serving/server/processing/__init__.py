"""Serving a model with steps before and after it: clients send and receive the chain's values."""
