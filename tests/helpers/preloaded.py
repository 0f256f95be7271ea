"""What a run imports sooner or later, so that a process forked from here begins at once."""

import sklearn.datasets
import torch._dynamo
import torch.utils.flop_counter

import catchment
import sketches
import worlds

__all__ = ["catchment", "sketches", "sklearn", "torch", "worlds"]
