"""The training loop: what is done for each batch, and for each epoch."""
