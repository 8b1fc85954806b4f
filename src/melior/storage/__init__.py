"""What a run leaves on disk: checkpoints, metrics, rollouts, and what trackers are told."""
