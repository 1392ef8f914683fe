"""What a spec means on this cluster: classes, backend, image, recipe and sources."""
