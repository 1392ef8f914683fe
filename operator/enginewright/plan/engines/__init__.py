"""InferenceEngines: which ones a model needs, how one is built, and what serves in place of them."""
