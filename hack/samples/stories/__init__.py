"""What the demo shows, a module a story."""
