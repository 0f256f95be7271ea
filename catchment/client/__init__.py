"""A client's side of a request: decode, let a runtime do the work, encode, keep what it remembers.

The same for a simulated client, a rank and a device. It knows messages and codecs, and neither models nor data.
"""
