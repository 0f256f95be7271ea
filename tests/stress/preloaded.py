"""What a run imports sooner or later, so that a process forked from here begins at once."""

import lives
import sklearn.datasets
import torch._dynamo
import torch.utils.flop_counter
import worlds

import catchment

__all__ = ["catchment", "lives", "sklearn", "torch", "worlds"]
