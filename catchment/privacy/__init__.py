"""What a device sends, and what a curious server could rebuild from it."""
