"""What leaves a device, and what a curious server could rebuild from it."""
