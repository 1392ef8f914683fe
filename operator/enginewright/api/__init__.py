"""The custom resources as frozen models, from which `crds/` is generated."""
