"""skorch: a classifier in scikit-learn's hands: python skorch_classifier.py cuda."""

import copy
import json
import pickle
import sys

import numpy as np
import torch
from sklearn.model_selection import GridSearchCV, cross_val_score
from skorch import NeuralNetClassifier


class Network(torch.nn.Module):
    def __init__(self, width=8):
        super().__init__()
        self.layers = torch.nn.Sequential(
            torch.nn.Linear(20, width), torch.nn.ReLU(), torch.nn.Linear(width, 2)
        )

    def forward(self, x):
        return self.layers(x).softmax(-1)


device = sys.argv[1]
torch.manual_seed(0)
random = np.random.default_rng(0)
x = random.standard_normal((100, 20)).astype("float32")
y = (x[:, 0] > 0).astype("int64")
classifier = NeuralNetClassifier(
    Network, max_epochs=4, lr=0.1, device=device, verbose=0, optimizer=torch.optim.Adam
)
classifier.fit(x, y)
where = next(classifier.module_.parameters()).device.type
losses = classifier.history[:, "train_loss"]
copies = pickle.loads(pickle.dumps(classifier)), copy.deepcopy(classifier)
scores = [net.score(x, y) for net in (classifier, *copies)]
scores += cross_val_score(classifier, x, y, cv=2).tolist()
search = GridSearchCV(classifier, {"lr": [0.01, 0.1], "module__width": [4]}, cv=2).fit(x, y)
print(json.dumps({"numbers": [*losses, *scores, search.best_score_], "device": where}))
