"""Brings a model into the form that a runtime takes, and proves that it still says the same."""
