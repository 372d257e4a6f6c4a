"""The HTTP server: who may ask, bounds on requests, answers, endpoints and server-sent events."""
