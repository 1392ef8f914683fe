"""Driver of the local cluster: standard library only, so that it runs before anything is installed."""
