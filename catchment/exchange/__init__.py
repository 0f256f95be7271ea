"""What travels between server and clients: payloads, messages, requests and responses."""
