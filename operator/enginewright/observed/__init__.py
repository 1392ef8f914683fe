"""Typed, frozen views of Kubernetes objects, so that only this package reads their JSON."""
