"""Checkpoints."""

from __future__ import annotations

from collections.abc import Iterator

from anydevice.check.finding import OFTEN, Finding, Rule
from anydevice.check.trace import Trace
from anydevice.text import size_text


class LoadedToGPU(Rule):
    """torch.load without map_location puts tensors on the GPU that they were saved from."""

    name = "load-without-map-location"
    kind = "memory"

    def find(self, trace: Trace) -> Iterator[Finding]:
        """Each line that loads so."""
        for call in {c.site.own: c for c in trace.named("load")}.values():
            if not call.info["given"] and call.info["bytes"]:
                finding = self.finding(
                    f"{size_text(call.info['bytes'])} are loaded to the GPU that they were saved "
                    "from: a second copy of the weights there, and an error where there is no such "
                    "GPU.",
                    'torch.load(…, map_location="cpu")',
                    call.site,
                    bytes=call.info["bytes"],
                )
                if trace.facts.get("portable"):
                    finding.kind = "error"
                yield finding


class SavedEachStep(Rule):
    """A checkpoint is saved in each step."""

    name = "saved-each-step"
    kind = "slow"

    def find(self, trace: Trace) -> Iterator[Finding]:
        """Each line that saves in most steps."""
        for site, share in trace.called("save"):
            if share >= OFTEN and len(trace.steps) >= 4:
                yield self.finding(
                    "A file is saved in each step: the host waits for the GPU, copies the tensors "
                    "and writes them.",
                    "save every few hundred steps, or at the end of an epoch",
                    site,
                    per="step",
                    count=share,
                )
