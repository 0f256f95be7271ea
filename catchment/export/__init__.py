"""Models as files that other programs run, and what such files say of images. Knows nothing of federation."""

from catchment.export.formats import FORMATS, Written, write_model
from catchment.export.opening import Opened, open_model

__all__ = ["FORMATS", "Opened", "Written", "open_model", "write_model"]
