"""Other people's Triton kernels on virtual GPUs: make test-triton."""
