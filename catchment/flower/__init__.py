"""Federations over the network, carried by Flower."""
