"""A durable store for the token ids and log probabilities of reinforcement-learning rollouts."""
