"""The narrow interface between algorithms and engines: method, client, server, fleet, and what they agree on."""
