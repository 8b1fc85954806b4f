"""Parts of the actor-critic frame: networks, losses, exploration, and what is remembered."""
