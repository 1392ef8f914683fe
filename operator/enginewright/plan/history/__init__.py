"""What is recorded of a model's revisions: which one served, and what became of the others."""
