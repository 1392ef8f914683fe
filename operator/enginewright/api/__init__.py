"""The custom resources as frozen models. `crds/` is generated from them, so they are the one truth."""
