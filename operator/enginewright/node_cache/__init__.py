"""The cache of a node: files of artefacts for its serving pods. It knows no store and has no credentials."""
