"""A real Kubernetes cluster of processes on this machine, without Docker or a registry.

Standard library only, as it has to run on a fresh machine before anything is installed.
"""
