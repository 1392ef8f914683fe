"""Requests as jobs: the queue, batches, and the threads that run the model."""
