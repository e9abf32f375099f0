"""mmsegmentation's model zoo: configs/unet/README.md and configs/fcn/README.md, "Mem (GB)".

mmcv logs torch.cuda.max_memory_allocated() in MiB, the largest of the GPUs. fp32, SGD with momentum,
cudnn.benchmark, 4 images of DRIVE, STARE, CHASE or HRF a GPU, 2 of Cityscapes; two heads, each with its cross
entropy and its accuracy. Source: DDP over 4 V100 and SyncBN; --ddp-buckets takes the memory of DDP's buckets.
"""

import argparse

import torch
import torch.nn as nn
import torch.nn.functional as F

parser = argparse.ArgumentParser()
parser.add_argument("--net", choices=["unet", "r18", "r50", "r101"], required=True)
parser.add_argument("--height", type=int, required=True)
parser.add_argument("--width", type=int, required=True)
parser.add_argument("--batch", type=int, required=True)
parser.add_argument("--dilate", type=int, default=8, help="8: R-50-D8, 16: FCN-D6 R-50-D16")
parser.add_argument("--ddp-buckets", action="store_true")
args = parser.parse_args()
CLASSES = 2 if args.net == "unet" else 19
ALIGN = args.height == 769


def conv(i, o, k, stride=1, dilation=1):
    padding = dilation * (k // 2)
    return nn.Sequential(
        nn.Conv2d(i, o, k, stride, padding, dilation, bias=False),
        nn.BatchNorm2d(o),
        nn.ReLU(inplace=True),
    )


class UNet(nn.Module):
    def __init__(self):
        super().__init__()
        widths = [64 << i for i in range(5)]
        double = lambda i, o: nn.Sequential(conv(i, o, 3), conv(o, o, 3))  # noqa: E731
        self.encoder = nn.ModuleList()
        self.decoder, self.up = nn.ModuleList(), nn.ModuleList()
        for i, w in enumerate(widths):
            block = double(3 if i == 0 else widths[i - 1], w)
            self.encoder.append(block if i == 0 else nn.Sequential(nn.MaxPool2d(2), *block))
            if i:
                up = nn.Upsample(scale_factor=2, mode="bilinear", align_corners=False)
                self.up.append(nn.Sequential(up, conv(w, widths[i - 1], 1)))
                self.decoder.append(double(2 * widths[i - 1], widths[i - 1]))

    def forward(self, x):
        skips = []
        for block in self.encoder:
            x = block(x)
            skips.append(x)
        outs = [x]
        for i in reversed(range(4)):
            x = self.decoder[i](torch.cat([skips[i], self.up[i](x)], dim=1))
            outs.append(x)
        return outs


class Residual(nn.Module):
    def __init__(self, i, width, stride, dilation, basic):
        super().__init__()
        o = width if basic else width * 4
        if basic:
            self.convs = nn.Sequential(
                nn.Conv2d(i, width, 3, stride, dilation, dilation, bias=False),
                nn.BatchNorm2d(width),
                nn.ReLU(inplace=True),
                nn.Conv2d(width, width, 3, 1, 1, bias=False),
                nn.BatchNorm2d(width),
            )
        else:
            self.convs = nn.Sequential(
                nn.Conv2d(i, width, 1, bias=False),
                nn.BatchNorm2d(width),
                nn.ReLU(inplace=True),
                nn.Conv2d(width, width, 3, stride, dilation, dilation, bias=False),
                nn.BatchNorm2d(width),
                nn.ReLU(inplace=True),
                nn.Conv2d(width, o, 1, bias=False),
                nn.BatchNorm2d(o),
            )
        self.down = None
        if stride != 1 or i != o:
            self.down = nn.Sequential(nn.Conv2d(i, o, 1, stride, bias=False), nn.BatchNorm2d(o))
        self.relu = nn.ReLU(inplace=True)

    def forward(self, x):
        out = self.convs(x)
        out += x if self.down is None else self.down(x)
        return self.relu(out)


class ResNetV1c(nn.Module):
    """A deep stem; dilations (1, 1, 2, 4), the first of a stage with half of it (contract_dilation)."""

    def __init__(self, depths, basic):
        super().__init__()
        self.stem = nn.Sequential(
            conv(3, 32, 3, 2), conv(32, 32, 3), conv(32, 64, 3), nn.MaxPool2d(3, 2, 1)
        )
        strides, dilations = (
            ((1, 2, 1, 1), (1, 1, 2, 4)) if args.dilate == 8 else ((1, 2, 2, 1), (1, 1, 1, 2))
        )
        self.stages, i = nn.ModuleList(), 64
        for stage, depth in enumerate(depths):
            blocks, width, dilation = [], 64 << stage, dilations[stage]
            for index in range(depth):
                first = max(dilation // 2, 1) if index == 0 else dilation
                blocks.append(Residual(i, width, strides[stage] if index == 0 else 1, first, basic))
                i = width if basic else width * 4
            self.stages.append(nn.Sequential(*blocks))

    def forward(self, x):
        x, outs = self.stem(x), []
        for stage in self.stages:
            x = stage(x)
            outs.append(x)
        return outs


class FCNHead(nn.Module):
    def __init__(self, i, channels, convs, concat, dilation=1):
        super().__init__()
        self.convs = nn.Sequential(
            *[conv(i if n == 0 else channels, channels, 3, dilation=dilation) for n in range(convs)]
        )
        self.cat = conv(i + channels, channels, 3) if concat else None
        self.dropout, self.seg = nn.Dropout2d(0.1), nn.Conv2d(channels, CLASSES, 1)

    def forward(self, x):
        out = self.convs(x)
        if self.cat is not None:
            out = self.cat(torch.cat([x, out], dim=1))
        return self.seg(self.dropout(out))


def accuracy(pred, target):
    value, label = pred.topk(1, dim=1)
    label = label.transpose(0, 1)
    correct = label.eq(target.unsqueeze(0).expand_as(label))
    correct = correct & (target != 255).unsqueeze(0)
    return correct[:1].reshape(-1).float().sum(0, keepdim=True).mul_(100.0 / target.numel())


class Segmentor(nn.Module):
    def __init__(self):
        super().__init__()
        if args.net == "unet":
            self.backbone, self.places = UNet(), (4, 3)
            self.head, self.auxiliary = FCNHead(64, 64, 1, False), FCNHead(128, 64, 1, False)
        else:
            basic = args.net == "r18"
            depths = dict(r18=(2, 2, 2, 2), r50=(3, 4, 6, 3), r101=(3, 4, 23, 3))[args.net]
            self.backbone, self.places = ResNetV1c(depths, basic), (3, 2)
            i, d6 = (512 if basic else 2048), 6 if args.dilate == 16 else 1
            self.head = FCNHead(i, 128 if basic else 512, 2, True, d6)
            self.auxiliary = FCNHead(i // 2, 64 if basic else 256, 1, False, d6)

    def forward(self, images, labels):
        outs, losses = self.backbone(images), {}
        for name, head, place, weight in (
            ("decode", self.head, self.places[0], 1.0),
            ("aux", self.auxiliary, self.places[1], 0.4),
        ):
            logit = F.interpolate(
                head(outs[place]), labels.shape[2:], mode="bilinear", align_corners=ALIGN
            )
            target = labels.squeeze(1)
            loss = F.cross_entropy(logit, target, reduction="none", ignore_index=255)
            losses[f"{name}.loss"] = weight * loss.mean()
            losses[f"{name}.acc"] = accuracy(logit, target)
        return losses


torch.backends.cudnn.benchmark = True
with torch.device("cuda"):
    model = Segmentor()
model.train()
size = sum(p.numel() for p in model.parameters())
buckets = torch.zeros(size, device="cuda") if args.ddp_buckets else None
optimizer = torch.optim.SGD(
    model.parameters(), 0.01, momentum=0.9, weight_decay=0.0005, foreach=False
)
for _ in range(3):
    images = torch.rand(args.batch, 3, args.height, args.width).to("cuda")
    labels = torch.zeros(args.batch, 1, args.height, args.width, dtype=torch.long).to("cuda")
    losses = model(images, labels)
    loss = sum(value for name, value in losses.items() if "loss" in name)
    optimizer.zero_grad(set_to_none=False)
    loss.backward()
    optimizer.step()
