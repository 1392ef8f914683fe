"""`enginewright plan`: what applying InferenceModels would do, by the operator's own pure functions."""
