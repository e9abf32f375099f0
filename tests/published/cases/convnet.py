"""timm's ResNets and VGGs, in timm's benchmark.py: AMP fp16 without a scaler, SGD, data on the GPU, cudnn.benchmark.

results/benchmark-train-amp-{nchw,nhwc}-pt112-cu113-rtx3090.csv of pytorch-image-models. The benchmark takes smaller
batches until one fits: 512, 384, 256, 192, 128, 96, 64, …: what it reports fitted, the next larger one did not.
"""

import argparse

import torch
import torch.nn as nn
import torch.nn.functional as F

parser = argparse.ArgumentParser()
parser.add_argument("--net", required=True)
parser.add_argument("--batch", type=int, required=True)
parser.add_argument("--channels-last", action="store_true")
args = parser.parse_args()


def conv_bn(i, o, k, s=1, g=1):
    return nn.Conv2d(i, o, k, s, k // 2, groups=g, bias=False), nn.BatchNorm2d(o)


class Basic(nn.Module):
    expansion = 1

    def __init__(self, i, width, stride, down, wide):
        super().__init__()
        self.conv1, self.bn1 = conv_bn(i, width, 3, stride)
        self.conv2, self.bn2 = conv_bn(width, width, 3)
        self.act1, self.act2, self.down = nn.ReLU(inplace=True), nn.ReLU(inplace=True), down

    def forward(self, x):
        shortcut = x
        x = self.act1(self.bn1(self.conv1(x)))
        x = self.bn2(self.conv2(x))
        if self.down is not None:
            shortcut = self.down(shortcut)
        x += shortcut
        return self.act2(x)


class Bottleneck(nn.Module):
    expansion = 4

    def __init__(self, i, width, stride, down, wide):
        super().__init__()
        w = width * wide
        self.conv1, self.bn1 = conv_bn(i, w, 1)
        self.conv2, self.bn2 = conv_bn(w, w, 3, stride)
        self.conv3, self.bn3 = conv_bn(w, width * 4, 1)
        self.act1, self.act2, self.act3 = (nn.ReLU(inplace=True) for _ in range(3))
        self.down = down

    def forward(self, x):
        shortcut = x
        x = self.act1(self.bn1(self.conv1(x)))
        x = self.act2(self.bn2(self.conv2(x)))
        x = self.bn3(self.conv3(x))
        if self.down is not None:
            shortcut = self.down(shortcut)
        x += shortcut
        return self.act3(x)


def resnet(block, depths, wide=1):
    layers = [*conv_bn(3, 64, 7, 2), nn.ReLU(inplace=True), nn.MaxPool2d(3, 2, 1)]
    i = 64
    for stage, depth in enumerate(depths):
        width, stride = 64 << stage, 2 if stage else 1
        for index in range(depth):
            down = None
            if index == 0 and (stride != 1 or i != width * block.expansion):
                down = nn.Sequential(*conv_bn(i, width * block.expansion, 1, stride))
            layers.append(block(i, width, stride if index == 0 else 1, down, wide))
            i = width * block.expansion
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(i, 1000))


def vgg(plan):
    layers, i = [], 3
    for o in plan:
        layers += (
            [nn.MaxPool2d(2, 2)]
            if o == "M"
            else [nn.Conv2d(i, o, 3, padding=1), nn.ReLU(inplace=True)]
        )
        i = i if o == "M" else o
    head = [
        nn.Conv2d(512, 4096, 7),
        nn.ReLU(inplace=True),
        nn.Dropout(0.0),
        nn.Conv2d(4096, 4096, 1),
    ]
    head += [nn.ReLU(inplace=True), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(4096, 1000)]
    return nn.Sequential(*layers, *head)


NETS = dict(
    resnet18=lambda: resnet(Basic, (2, 2, 2, 2)),
    resnet34=lambda: resnet(Basic, (3, 4, 6, 3)),
    resnet50=lambda: resnet(Bottleneck, (3, 4, 6, 3)),
    resnet101=lambda: resnet(Bottleneck, (3, 4, 23, 3)),
    resnet152=lambda: resnet(Bottleneck, (3, 8, 36, 3)),
    wide_resnet50_2=lambda: resnet(Bottleneck, (3, 4, 6, 3), 2),
    vgg11=lambda: vgg([64, "M", 128, "M", 256, 256, "M", 512, 512, "M", 512, 512, "M"]),
    vgg16=lambda: vgg(
        [64, 64, "M", 128, 128, "M", *[256] * 3, "M", *[512] * 3, "M", *[512] * 3, "M"]
    ),
)
torch.backends.cudnn.benchmark = True
with torch.device("cuda"):
    model = NETS[args.net]()
if args.channels_last:
    model = model.to(memory_format=torch.channels_last)
model.train()
optimizer = torch.optim.SGD(model.parameters(), 1e-4, momentum=0.9, nesterov=True, foreach=False)
images = torch.randn(args.batch, 3, 224, 224, device="cuda")
if args.channels_last:
    images = images.contiguous(memory_format=torch.channels_last)
for _ in range(3):
    optimizer.zero_grad()
    with torch.autocast("cuda", torch.float16):
        output = model(images)
        target = torch.empty(args.batch, device="cuda", dtype=torch.long).random_(1000)
        F.cross_entropy(output, target).backward()
    optimizer.step()
    torch.cuda.synchronize()
