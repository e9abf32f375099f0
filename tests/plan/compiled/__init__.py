"""Programs that call torch.compile, planned with the kernels that Inductor makes for a card."""
