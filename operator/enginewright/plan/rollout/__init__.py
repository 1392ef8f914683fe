"""Which revision the Deployments have, and how a new one replaces it."""
