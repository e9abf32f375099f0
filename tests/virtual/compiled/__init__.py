"""torch.compile and Triton on virtual GPUs."""
