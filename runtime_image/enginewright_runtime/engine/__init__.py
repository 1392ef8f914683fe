"""The stages of an engine Job: is it there, build it, prove it, measure it, store it."""
