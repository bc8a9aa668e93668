"""Arms: RL stages that start from one model, each evaluated in every mode (trained in x evaluated in).

Whether training under latent feedback does something that training without it does not is a question of
differences in differences: does an arm gain more from decoding with feedback, against standard decoding of the
same weights, than the arm it is compared with?
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa

from fbt_rl.analysis.compare import FEWEST_PAIRS
from fbt_rl.analysis.statistics import accuracy_difference, ratio_of_ratios
from fbt_rl.analysis.table import Rows, of_mode


def difference_in_differences(
    baseline: pa.Table, arm: pa.Table, *, baseline_name: str, arm_name: str, mode: str
) -> dict[str, Any]:
    """How much more ``arm`` gains by ``mode`` over standard decoding than ``baseline`` does; paired by problem.

    Tables have the columns of ``generations.parquet`` with rows of both modes. ``accuracy``: the mean over
    problems of (arm in mode - arm in standard) - (baseline in mode - baseline in standard). ``length``: over the
    problems solved in all four cells, the arm's ratio of tokens (mode / standard) over the baseline's; None below
    10 of them. Each with its 95% interval. Raises ``ValueError`` where the four cells share no judged problem.
    """
    cells = [Rows.of(of_mode(table, one)) for table in (baseline, arm) for one in ("standard", mode)]
    shared = set.intersection(*(set(cell.ids) for cell in cells))
    common = [name for name in cells[0].ids if name in shared]
    if not common:
        raise ValueError(f"{baseline_name} and {arm_name} have no problem judged in both standard and {mode} mode")
    cells = [cell.restricted(common) for cell in cells]
    accuracies = [cell.accuracies() for cell in cells]
    gain, interval = accuracy_difference(accuracies[1] - accuracies[0], accuracies[3] - accuracies[2])
    solved = np.stack([cell.solved_lengths() for cell in cells])
    solved = solved[:, np.isfinite(solved).all(axis=0)]
    enough = solved.shape[1] >= FEWEST_PAIRS
    ratio, ratio_interval = ratio_of_ratios(*solved) if enough else (None, (None, None))
    return {
        "baseline": baseline_name,
        "arm": arm_name,
        "mode": mode,
        "n": len(common),
        "accuracy": gain,
        "accuracy_ci": list(interval),
        "n_all_solve": solved.shape[1],
        "length": ratio,
        "length_ci": list(ratio_interval),
        "finding": _finding(arm_name, baseline_name, mode, interval, ratio_interval),
    }


def _finding(arm: str, baseline: str, mode: str, accuracy: Any, length: Any) -> str:
    """What the two intervals show of ``mode`` against standard decoding, and what they do not."""
    if accuracy[0] > 0 or accuracy[1] < 0:
        gain = f"{arm} gains {'more' if accuracy[0] > 0 else 'less'} from {mode} decoding than {baseline}"
    else:
        gain = f"no difference between {arm} and {baseline} is shown in what {mode} decoding does"
    if length[0] is None:
        size = "too few problems are solved in all four cells"
    elif length[1] < 1 or length[0] > 1:
        size = f"{mode} decoding makes right answers of {arm} {'shorter' if length[1] < 1 else 'longer'}"
        size += f" relative to those of {baseline}"
    else:
        size = f"no difference between {arm} and {baseline} is shown in what {mode} decoding does"
    return f"Accuracy: {gain}. Length: {size}."
