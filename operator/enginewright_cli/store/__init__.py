"""`enginewright store`: lists and verifies what is in an artefact store."""
