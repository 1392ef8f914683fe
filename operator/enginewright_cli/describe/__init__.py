"""`enginewright describe`: a model in ten lines, none of which runs it."""
