"""What carries messages: this process, or a network."""
