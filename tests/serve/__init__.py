"""The capture proxy, its client, and the middleware."""
