"""What an experiment costs: bytes, multiply-accumulates, memory."""
