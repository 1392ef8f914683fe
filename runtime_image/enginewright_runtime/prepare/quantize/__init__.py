"""Changes a model's precision, and proves the outputs: docs/precision.md."""
