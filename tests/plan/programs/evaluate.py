# inference: an evaluation over a DataLoader, with the accuracy
import torch
from torch import nn

model = nn.Sequential(
    nn.Conv2d(3, 8, 3), nn.ReLU(), nn.Flatten(), nn.Linear(8 * 30 * 30, 10)
).cuda()
model.eval()
data = torch.utils.data.TensorDataset(torch.rand(96, 3, 32, 32), torch.randint(10, (96,)))
correct, total = 0, 0
with torch.no_grad():
    for images, labels in torch.utils.data.DataLoader(data, batch_size=16):
        images, labels = images.to("cuda"), labels.to("cuda")
        predicted = model(images).argmax(dim=1)
        total += labels.size(0)
        correct += (predicted == labels).sum().item()
        for label, guess in zip(labels, predicted):
            if label == guess:
                correct += 0
print(f"Accuracy: {100 * correct / total:.1f} %")
