"""Whether the runtime image can run the model, before anything is made of it."""
