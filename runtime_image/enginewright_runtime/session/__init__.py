"""Runs models: one module per backend, each of which promises the provider that runs the nodes."""
