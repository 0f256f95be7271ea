"""Runs while they run: what is done and what is left, who is there, as a page and in a terminal."""
