"""The stages of a prepare Job, in their order: fetch, validate, convert, golden, quantize, publish."""
