"""A torchbearer trial: python torchbearer_trial.py cuda:0."""

import json
import sys

import torch
from torchbearer import Trial
from torchbearer.callbacks import GradientNormClipping

device = sys.argv[1]
torch.manual_seed(0)
images, labels = torch.randn(64, 1, 12, 12), torch.randint(3, (64,))
network = torch.nn.Sequential(
    torch.nn.Conv2d(1, 4, 3),
    torch.nn.BatchNorm2d(4),
    torch.nn.ReLU(),
    torch.nn.MaxPool2d(2),
    torch.nn.Flatten(),
    torch.nn.Linear(100, 3),
)
optimizer = torch.optim.Adam(network.parameters(), lr=0.01)
trial = Trial(
    network,
    optimizer,
    torch.nn.functional.cross_entropy,
    metrics=["loss", "accuracy"],
    callbacks=[GradientNormClipping(1.0)],
).to(device)
trial.with_train_data(images, labels, batch_size=16, shuffle=False)
trial.with_val_data(images, labels, batch_size=16, shuffle=False)
history = trial.run(epochs=3, verbose=0)

trial.load_state_dict(trial.state_dict())
predictions = trial.with_test_data(images, batch_size=32).predict(verbose=0)
print(
    json.dumps(
        {
            "history": history,
            "evaluated": trial.evaluate(verbose=0),
            "predicted": predictions.sum(0).tolist(),
            "devices": sorted({str(tensor.device) for tensor in network.state_dict().values()}),
            "moments": sorted({str(state["exp_avg"].device) for state in optimizer.state.values()}),
        }
    )
)
