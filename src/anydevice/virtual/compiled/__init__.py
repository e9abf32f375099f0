"""torch.compile and Triton on a virtual GPU."""
