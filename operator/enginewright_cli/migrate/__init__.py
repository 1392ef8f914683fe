"""`enginewright migrate`: InferenceModels out of the manifests of another server."""
