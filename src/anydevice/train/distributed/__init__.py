"""One training run on several devices: DDP, FSDP2, and how its ranks end together."""
