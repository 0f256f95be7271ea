"""A device: one client that answers the server's messages, on any carrier, within its owner's policy."""

from catchment.device.answering import RealDevice

__all__ = ["RealDevice"]
