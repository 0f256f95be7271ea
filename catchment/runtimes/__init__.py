"""Where handlers run. A runtime is the one part of a client that knows models, data and the method."""
