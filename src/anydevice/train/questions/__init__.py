"""What a trial can be asked: its layers, a learning rate, where it errs."""
