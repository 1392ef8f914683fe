"""Loading and proving the model before it is served."""
