"""A LightningModule and its Trainer: python lightning_fit.py cuda 16-mixed 2 ddp."""

import json
import sys
import tempfile
import warnings

import lightning
import torch
from torch.utils.data import DataLoader, TensorDataset

warnings.filterwarnings("ignore")
device, precision, devices, strategy = sys.argv[1:]


class Classifier(lightning.LightningModule):
    """A small network that remembers what it saw."""

    def __init__(self):
        super().__init__()
        self.save_hyperparameters()
        self.network = torch.nn.Sequential(
            torch.nn.Linear(10, 20), torch.nn.ReLU(), torch.nn.Linear(20, 3)
        )
        self.losses, self.seen = [], set()

    def training_step(self, batch, index):
        scores = self.network(batch[0])
        loss = torch.nn.functional.cross_entropy(scores, batch[1])
        self.losses.append(loss.item())
        self.seen.add(f"{scores.dtype} {scores.device}")
        self.log("loss", loss, sync_dist=True)
        return loss

    def validation_step(self, batch, index):
        loss = torch.nn.functional.cross_entropy(self.network(batch[0]), batch[1])
        self.log("val_loss", loss, sync_dist=True)

    def on_fit_end(self):
        report = {
            "losses": self.losses,
            "val_loss": self.trainer.callback_metrics["val_loss"].item(),
            "seen": sorted(self.seen),
            "processes": self.trainer.world_size,
            "root": str(self.trainer.strategy.root_device),
        }
        print(json.dumps(report))

    def configure_optimizers(self):
        optimizer = torch.optim.Adam(self.parameters(), lr=0.01)
        return [optimizer], [torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.9)]


if __name__ == "__main__":
    lightning.seed_everything(0)
    samples = TensorDataset(torch.randn(64, 10), torch.randint(3, (64,)))
    batches = DataLoader(samples, batch_size=16 // int(devices), shuffle=False)
    classifier = Classifier()
    folder = tempfile.mkdtemp()
    trainer = lightning.Trainer(
        accelerator="gpu" if device == "cuda" else "cpu",
        devices=int(devices),
        strategy=strategy,
        precision=precision,
        max_epochs=3,
        gradient_clip_val=1.0,
        default_root_dir=folder,
        log_every_n_steps=1,
        enable_progress_bar=False,
        enable_model_summary=False,
        logger=False,
    )
    trainer.fit(classifier, batches, batches)
    trainer.save_checkpoint(f"{folder}/last.ckpt")
    if trainer.is_global_zero:
        again = Classifier.load_from_checkpoint(f"{folder}/last.ckpt", weights_only=False)
        trained = classifier.state_dict()
        assert all(trained[key].cpu().equal(it) for key, it in again.state_dict().items())
