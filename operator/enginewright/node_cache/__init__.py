"""The cache of a node: files of artefacts for its serving pods, in the operator's image.

It knows no store and has no credentials: pods offer what they have fetched, and ask for it again.
"""
