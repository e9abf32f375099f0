"""What is measured while training: summed on the device, read once an epoch."""
