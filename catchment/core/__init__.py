"""The narrow interface between algorithms and transports: method, client, server, fleet, and what they agree on."""
