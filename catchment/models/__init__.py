"""Models by name, most of them in two parts: an extractor makes features, a classifier makes logits."""

from catchment.models.catalog import FORMS, MODELS, build, is_half
from catchment.models.generator import GENERATORS, build_generator
from catchment.models.kgf import with_base_kernels
from catchment.models.modules import modules_of
from catchment.models.pretrained import fitting, read_weights
from catchment.models.servers import server_for
from catchment.models.split import SplitModel, check_pair, feature_shape, is_split, parameters

__all__ = [
    "FORMS",
    "GENERATORS",
    "MODELS",
    "SplitModel",
    "build",
    "build_generator",
    "check_pair",
    "feature_shape",
    "fitting",
    "is_half",
    "is_split",
    "modules_of",
    "parameters",
    "read_weights",
    "server_for",
    "with_base_kernels",
]
