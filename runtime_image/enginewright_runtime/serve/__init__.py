"""What runs in a serving pod: the server, and the sidecar that keeps proving what it serves."""
