"""Checks whether the runtime image can run the model, before it is converted."""
