"""What PyTorch's CUDA build refuses, recorded without a card, and the same calls here."""
