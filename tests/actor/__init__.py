"""The actor of a rollout."""
