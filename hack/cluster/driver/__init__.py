"""A real Kubernetes out of processes of this machine, without Docker and without a registry.

Standard library only: it must run on a fresh machine before anything is installed.
"""
