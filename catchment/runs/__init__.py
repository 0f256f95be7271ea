"""A run from its first round to its result: the loop, checkpoints, and the finished run."""
