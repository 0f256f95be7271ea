"""Training, losses, optimisers, evaluation and means. Knows nothing of federation."""
