"""Catchment on Flower: its apps, the processes of a federation, a warm client, and keys."""
