"""Pure builders of Kubernetes objects: plain values in, plain dicts out."""
