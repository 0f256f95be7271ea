"""What carries messages inside this process, and the devices that it simulates."""
