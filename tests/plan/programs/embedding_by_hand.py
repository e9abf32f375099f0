# from scratch, as d2l: parameters, a squared loss and SGD by hand
import torch


def data_iter(batch_size, features, labels):
    for i in range(0, len(features), batch_size):
        yield features[i : i + batch_size], labels[i : i + batch_size]


def sgd(params, lr, batch_size):
    with torch.no_grad():
        for param in params:
            param -= lr * param.grad / batch_size
            param.grad.zero_()


features = torch.normal(0, 1, (200, 2), device="cuda")
labels = features @ torch.tensor([[2.0], [-3.4]], device="cuda") + 4.2
w = torch.normal(0, 0.01, size=(2, 1), device="cuda", requires_grad=True)
b = torch.zeros(1, device="cuda", requires_grad=True)
for epoch in range(3):
    for X, y in data_iter(20, features, labels):
        loss = (X @ w + b - y) ** 2 / 2
        loss.sum().backward()
        sgd([w, b], 0.03, 20)
    with torch.no_grad():
        print(f"epoch {epoch + 1}, loss {float(((features @ w + b - labels) ** 2).mean()):f}")
