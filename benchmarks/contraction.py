"""Does the feedback map contract? Loss and state change over passes, for several training recipes.

The counterpart of the paper's Figure 3 (Wang et al. 2026; METHOD 1.3) at a size for two cores: models from
one start, on the same rows in the same order, that differ in one setting each. Then 1,000 passes over
held-out text.

    python benchmarks/contraction.py TEXT [--out runs/contraction] [--steps 400]

TEXT is a file of a megabyte or more; its last 5 % are held out. About half an hour on two cores; started
again, finished models are not trained again. Writes contraction.json and contraction.png into the folder,
and prints a table.
"""

from __future__ import annotations

import argparse
import copy
import json
import os
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

ROW_LENGTH = 512
PASSES = 1000
SHOWN = (1, 2, 3, 4, 5, 10, 20, 30, 100, 300, 1000)

# name -> the settings of the pretraining stage and the model that it changes
RECIPES: dict[str, dict[str, Any]] = {
    "75/22/3": {},
    "75/25/0": {"weights": [0.75, 0.25]},
    "100/0/0": {"weights": [1.0]},
    "75/22/3, no prefix mixing": {"prefix_mixing": False},
    "75/22/3, no jitter": {"jitter": 0.0},
    "75/22/3, no depth scaling": {"depth_scaling": False},
}


def config_of(recipe: dict[str, Any], text: Path, steps: int) -> dict[str, Any]:
    changed = copy.deepcopy(recipe)
    return {
        "name": "contraction",
        "seed": 1,
        "model": {
            "preset": "tiny",
            "max_position_embeddings": ROW_LENGTH,
            "depth_scaling": changed.pop("depth_scaling", True),
        },
        "tokenizer": {"kind": "characters"},
        "resources": {"workers": 1},
        "stages": {
            "pretrain": {
                "kind": "pretrain",
                "data": [{"kind": "files", "paths": [str(text)], "text_chars": ROW_LENGTH - 1}],
                "steps": steps,
                "batch_rows": 12,
                "row_length": ROW_LENGTH,
                "optimizer": {"learning_rate": 4e-3, "warmup_steps": steps // 12},
                "objective": {"passes": [{"weights": changed.pop("weights", [0.75, 0.22, 0.03])}], **changed},
            }
        },
    }


def train(name: str, out: Path, text: Path, steps: int) -> Path:
    """Train one recipe by the pipeline, or find it trained; returns the model's folder."""
    run = out / name.replace("/", "-").replace(", ", "_").replace(" ", "-")
    config = out / f"{run.name}.yaml"
    config.write_text(json.dumps(config_of(RECIPES[name], text, steps)))  # JSON is YAML
    command = [Path(sys.executable).with_name("fbt-rl"), "run", config, "--run-dir", run]
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL, env={**os.environ, "OMP_NUM_THREADS": "1"})
    return run / "stages" / "pretrain" / "model"


@torch.inference_mode()
def measure(folder: Path, text: str, rows: int) -> dict[str, list[float]]:
    """Over ``PASSES`` passes of ``rows`` rows of ``text``, everything but the first position fused.

    ``loss``: nats a character. ``change``: mean over positions of the norm of h(k) - h(k-1), from the second pass on;
    ``norm``: that of h. After as many passes as there are positions the states are those of token-by-token decoding.
    """
    from fbt_rl.data.tokenization import load_tokenizer
    from fbt_rl.model import load_model
    from fbt_rl.model.feedback import shift_right

    model, tokenizer = load_model(folder).eval(), load_tokenizer(folder)
    starts = range(0, rows * ROW_LENGTH, ROW_LENGTH)
    input_ids = torch.tensor([tokenizer(text[start : start + ROW_LENGTH])["input_ids"] for start in starts])
    found: dict[str, list[float]] = {"loss": [], "change": [], "norm": []}
    states: Tensor | None = None
    for _ in range(PASSES):
        latents = None if states is None else shift_right(states)
        new = model.model(input_ids, latents=latents, use_cache=False).last_hidden_state
        logits = model.lm_head(new[:, :-1]).flatten(0, 1)
        found["loss"].append(float(torch.nn.functional.cross_entropy(logits, input_ids[:, 1:].flatten())))
        found["norm"].append(float(new.norm(dim=-1).mean()))
        if states is not None:
            found["change"].append(float((new - states).norm(dim=-1).mean()))
        states = new
    return found


def draw(results: dict[str, dict[str, list[float]]], path: Path) -> None:
    from matplotlib.figure import Figure

    figure = Figure(figsize=(10, 4), layout="constrained")
    loss, change = figure.subplots(1, 2)
    for name, found in results.items():
        loss.plot(range(1, PASSES + 1), found["loss"], label=name)
        change.plot(range(2, PASSES + 1), found["change"], label=name)
    base = min(min(found["loss"]) for found in results.values())
    loss.set(xscale="log", xlabel="passes", ylabel="held-out loss, nats a character", ylim=(base - 0.05, base + 1.5))
    change.set(xscale="log", yscale="log", xlabel="passes", ylabel="mean ‖h(k) − h(k−1)‖", ylim=(1e-6, None))
    loss.axvline(3, color="grey", linewidth=0.5)  # the deepest that is trained
    change.axvline(ROW_LENGTH, color="grey", linewidth=0.5)  # from here on the iteration is exact
    loss.legend(fontsize=8)
    figure.savefig(path, dpi=120)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("text", type=Path)
    parser.add_argument("--out", type=Path, default=Path("runs/contraction"))
    parser.add_argument("--steps", type=int, default=400)
    parser.add_argument("--rows", type=int, default=4, help="held-out rows that are measured")
    parser.add_argument("--parallel", type=int, default=2, help="models trained at once, one core each")
    arguments = parser.parse_args()

    out = arguments.out.resolve()
    out.mkdir(parents=True, exist_ok=True)
    text = arguments.text.read_text(encoding="utf-8")
    cut = int(0.95 * len(text))
    (out / "train.txt").write_text(text[:cut], encoding="utf-8")
    torch.set_num_threads(1)  # several that spin on shared cores are slower than one
    with ThreadPoolExecutor(arguments.parallel) as pool:
        folders = list(pool.map(lambda name: train(name, out, out / "train.txt", arguments.steps), RECIPES))
        measured = list(pool.map(lambda folder: measure(folder, text[cut:], arguments.rows), folders))
    results = dict(zip(RECIPES, measured, strict=True))
    (out / "contraction.json").write_text(json.dumps({"steps": arguments.steps, "results": results}))
    draw(results, out / "contraction.png")
    for title, key, shift in (("held-out loss", "loss", 1), ("mean ‖h(k) − h(k−1)‖", "change", 2)):
        print(f"\n| {title}, passes | {' | '.join(map(str, SHOWN[shift - 1 :]))} |")
        for name, found in results.items():
            print(f"| {name} | {' | '.join(f'{found[key][passes - shift]:.3g}' for passes in SHOWN[shift - 1 :])} |")


if __name__ == "__main__":
    main()
