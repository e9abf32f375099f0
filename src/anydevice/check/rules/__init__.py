"""The rules, one small class each."""

from __future__ import annotations

from anydevice.check.finding import Rule
from anydevice.check.rules.clock import TimedTooEarly
from anydevice.check.rules.copies import MadeOnHost, PageableCopies, SentAgain, SmallCopies
from anydevice.check.rules.data import EpochNotSet, SameRandomNumbers, WaitsForData
from anydevice.check.rules.dropped import DroppedMove
from anydevice.check.rules.files import LoadedToGPU, SavedEachStep
from anydevice.check.rules.kept import Fragmentation, OutputsKept, WeightsTwice
from anydevice.check.rules.kernels import UnfusedAttention, UnfusedOptimizer
from anydevice.check.rules.launches import LaunchBound, SmallKernels
from anydevice.check.rules.memory import EmptiesCache, GraphGrows, Growth
from anydevice.check.rules.modes import (
    EvaluatedInTrainMode,
    EvaluatedWithGradients,
    TrainedInEvalMode,
)
from anydevice.check.rules.portable import HardCodedCuda
from anydevice.check.rules.precision import (
    ChannelsFirst,
    Float32Products,
    MissesTensorCores,
    NoAutocast,
)
from anydevice.check.rules.races import OverwrittenTooEarly, ReadTooEarly, StreamRace
from anydevice.check.rules.ranks import BucketCopies, SharedGPU, SmallBuckets
from anydevice.check.rules.room import KeepsActivations, WideStates
from anydevice.check.rules.training import (
    ClippedWhileScaled,
    FilledWithZeros,
    GraphKept,
    NoGradScaler,
    NotInOptimizer,
    OptimizerWithoutGradients,
    SchedulerFirst,
    UnusedGradients,
)
from anydevice.check.rules.waits import Waits

RULES: tuple[Rule, ...] = (
    ReadTooEarly(),
    OverwrittenTooEarly(),
    StreamRace(),
    DroppedMove(),
    NotInOptimizer(),
    OptimizerWithoutGradients(),
    NoGradScaler(),
    ClippedWhileScaled(),
    SchedulerFirst(),
    EvaluatedInTrainMode(),
    TrainedInEvalMode(),
    SameRandomNumbers(),
    EpochNotSet(),
    SharedGPU(),
    TimedTooEarly(),
    HardCodedCuda(),
    SentAgain(),
    MadeOnHost(),
    SmallCopies(),
    PageableCopies(),
    Waits(),
    WaitsForData(),
    EmptiesCache(),
    SavedEachStep(),
    FilledWithZeros(),
    UnfusedOptimizer(),
    UnfusedAttention(),
    SmallKernels(),
    BucketCopies(),
    SmallBuckets(),
    ChannelsFirst(),
    MissesTensorCores(),
    Float32Products(),
    NoAutocast(),
    Growth(),
    GraphGrows(),
    GraphKept(),
    EvaluatedWithGradients(),
    UnusedGradients(),
    LoadedToGPU(),
    OutputsKept(),
    WeightsTwice(),
    Fragmentation(),
    LaunchBound(),
    KeepsActivations(),
    WideStates(),
)
