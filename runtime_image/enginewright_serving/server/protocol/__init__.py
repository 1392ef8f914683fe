"""The Open Inference Protocol: tensors in JSON and in binary form, and checks of requests."""
