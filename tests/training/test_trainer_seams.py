"""The methods of transformers and TRL that the stages override or call: a new signature must be noticed here."""

import inspect

import pytest
import trl.data_utils
from transformers import Trainer
from trl.trainer.sft_trainer import SFTTrainer

SEAMS = {
    "training_step": ["self", "model", "inputs", "num_items_in_batch"],
    "compute_loss": ["self", "model", "inputs", "return_outputs", "num_items_in_batch"],
    "create_optimizer": ["self", "model"],
    "create_scheduler": ["self", "num_training_steps", "optimizer"],
    "floating_point_ops": ["self", "inputs"],
    "log": ["self", "logs", "start_time"],
    "_get_train_sampler": ["self", "train_dataset"],
    "_get_grad_norm": ["self", "model", "grad_norm"],
    "_save_checkpoint": ["self", "model", "trial"],
    "_save_optimizer_and_scheduler": ["self", "output_dir"],
    "_save_rng_state": ["self", "output_dir"],
    "_load_optimizer_and_scheduler": ["self", "checkpoint"],
}


@pytest.mark.parametrize("name", SEAMS)
def test_transformers(name):
    assert list(inspect.signature(getattr(Trainer, name)).parameters) == SEAMS[name]


def test_trl():
    overridden = {name for name in SEAMS if name in vars(SFTTrainer)}
    assert overridden == {"training_step", "compute_loss", "log", "_save_checkpoint"}
    assert list(inspect.signature(SFTTrainer.compute_loss).parameters) == SEAMS["compute_loss"]
    assert list(inspect.signature(SFTTrainer._send_telemetry).parameters) == ["self"]
    packing = inspect.signature(trl.data_utils.pack_dataset).parameters
    assert list(packing) == ["dataset", "seq_length", "strategy", "map_kwargs"]
