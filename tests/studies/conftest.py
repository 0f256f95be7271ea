"""Runs that are written by hand."""

from run_directories import make_run

__all__ = ["make_run"]
