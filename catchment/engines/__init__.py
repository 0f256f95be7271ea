"""Transports inside one process, and the devices that they simulate."""
