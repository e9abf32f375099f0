"""A trial's data: batches, what stays on the device, and each rank's share."""
