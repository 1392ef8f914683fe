"""What runs in Job and serving pods: stages, store, backends and server."""
