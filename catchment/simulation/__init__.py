"""Clients in this process and on other ranks, and the devices that they stand for."""
