"""What a store must keep, what it has lost, and what is removed from it."""
