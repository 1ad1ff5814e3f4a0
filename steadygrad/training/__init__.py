"""Training: settings, data, optimizers, the training loop, evaluation and run directories."""

from steadygrad.training.callback import Callback
from steadygrad.training.data import Batches, EpochBatches, GeneratedBatches, stream
from steadygrad.training.directory import InUseError, RunDirectory, RunError, finite
from steadygrad.training.evaluate import check_sizes, evaluate, evaluate_run, load_model, parameter_count
from steadygrad.training.loop import Trainer
from steadygrad.training.optimizers import JointOptimizer, TensorFlowRMSprop, make_optimizer
from steadygrad.training.options import Train
from steadygrad.training.progress import ShowProgress, TensorBoard
from steadygrad.training.settings import Settings
from steadygrad.training.start import train

__all__ = [
    "Batches",
    "Callback",
    "EpochBatches",
    "GeneratedBatches",
    "InUseError",
    "JointOptimizer",
    "RunDirectory",
    "RunError",
    "Settings",
    "ShowProgress",
    "TensorBoard",
    "TensorFlowRMSprop",
    "Train",
    "Trainer",
    "check_sizes",
    "evaluate",
    "evaluate_run",
    "finite",
    "load_model",
    "make_optimizer",
    "parameter_count",
    "stream",
    "train",
]
