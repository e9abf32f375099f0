"""One training run on any device: `anydevice.train.trial.Trial`."""
