"""Rewards under plain TRL, without the rest of this project."""

import subprocess
import sys

PROGRAM = """
import sys
import torch
from datasets import Dataset
from tokenizers import Tokenizer, models
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast
from trl import GRPOConfig, GRPOTrainer

from reward import Verdict, code_reward, load_reward, math_reward

letters = list("0123456789+={}\\\\boxed def():rtun")
vocab = {name: place for place, name in enumerate(dict.fromkeys(["<pad>", "<eos>", *letters]))}
tokenizer = PreTrainedTokenizerFast(
    tokenizer_object=Tokenizer(models.WordLevel(vocab, unk_token="<eos>")), pad_token="<pad>", eos_token="<eos>"
)
torch.manual_seed(0)
model = LlamaForCausalLM(
    LlamaConfig(
        vocab_size=len(vocab), hidden_size=16, intermediate_size=16, num_hidden_layers=1, num_attention_heads=2,
        max_position_embeddings=32, pad_token_id=0, eos_token_id=1,
    )
)
rows = Dataset.from_dict({"prompt": ["1 + 1 ="] * 4, "answer": ["2"] * 4, "tests": [["assert f(1) == 2"]] * 4})
arguments = GRPOConfig(
    output_dir=sys.argv[1], max_steps=1, per_device_train_batch_size=4, num_generations=4, max_completion_length=6,
    use_cpu=True, report_to=[], logging_steps=1, save_strategy="no", bf16=False,
)
trainer = GRPOTrainer(
    model=model, args=arguments, train_dataset=rows, processing_class=tokenizer,
    reward_funcs=[math_reward, load_reward("math", {"numeric": True}), code_reward],
)
trainer.train()
(log,) = [entry for entry in trainer.state.log_history if "reward" in entry]
print(sorted(name for name in log if name.startswith("rewards/") and name.endswith("/mean")))
print(sorted({name.split(".")[0] for name in sys.modules} & {"fbt_rl", "pretrain", "sft", "rl", "ray"}))
"""


def test_they_are_reward_functions_of_trl(tmp_path):
    found = subprocess.run([sys.executable, "-c", PROGRAM, str(tmp_path)], capture_output=True, text=True, check=False)
    assert found.returncode == 0, found.stderr[-3000:]
    names, ours = found.stdout.splitlines()[-2:]
    assert names == "['rewards/code_reward/mean', 'rewards/math/mean', 'rewards/math_reward/mean']"
    assert ours == "[]"
