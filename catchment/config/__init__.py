"""Experiment files: what they may say, and the objects that they describe."""
