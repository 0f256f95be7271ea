"""A device: one client that answers the server's messages, on any carrier, within its owner's policy."""

from catchment.device.answering import RealDevice
from catchment.device.disk import StoredVersions

__all__ = ["RealDevice", "StoredVersions"]
