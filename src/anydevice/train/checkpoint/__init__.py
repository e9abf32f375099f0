"""What survives a kill: checkpoints, whole or in shards, and how a run resumes from them."""
