"""The steps before and after the model."""
