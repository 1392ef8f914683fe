"""The stages of a prepare Job: fetch, validate, golden, publish. Each has `run`."""
