"""The waist between algorithm and world: method, client, server, fleet, and what they agree on."""
