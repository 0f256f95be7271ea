"""A device: one client that answers the server's messages, over any network layer, within its owner's policy."""

from catchment.device.answering import RealDevice

__all__ = ["RealDevice"]
