"""Plain sentences on one comparison: what is shown, and what is not."""

from __future__ import annotations

import math
from typing import Any

TRUNCATION_LIMIT = 0.01  # above it, lengths say more about the token limit than about the model


def findings(entry: dict[str, Any]) -> list[str]:
    """Sentences on one comparison. Each claim rests on an interval, never on a bare p-value."""
    sentences = [_accuracy_finding(entry)]
    if entry["length_units"][0] == entry["length_units"][1]:
        sentences += [_length_finding(entry), *_what_explains_lengths(entry)]
    else:
        counts = [
            f"{entry[side]} in {unit}" for side, unit in zip(("before", "after"), entry["length_units"], strict=True)
        ]
        sentences.append(f"Lengths are not compared: they are counted {' and '.join(counts)}.")
    if entry["left_out_problems"] or entry["unjudged_rows"]:
        sentences.append(
            f"Left out: problems that only one side has ({entry['left_out_problems']:,}), "
            f"answers that could not be judged ({entry['unjudged_rows']:,})."
        )
    return sentences


def _what_explains_lengths(entry: dict[str, Any]) -> list[str]:
    """What lies behind lengths that are not paired: truncation, and other problems."""
    sentences = []
    unit = entry["length_units"][0]
    shorter = entry["length_verdict"] == "shorter"
    known = entry["truncated_before"] is not None and entry["truncated_after"] is not None
    truncated_before, truncated_after = entry["truncated_before"] or 0.0, entry["truncated_after"] or 0.0
    fewer_truncated = known and truncated_after < truncated_before
    if fewer_truncated and entry["mean_length_after"] < entry["mean_length_before"]:
        lead = "Part of the fall in mean length is" if shorter else "The shorter mean is explained by"
        rest = ""
        if entry["n_both_finish"]:
            rest = (
                f" On the {entry['n_both_finish']:,} problems that neither side truncated the mean went from "
                f"{entry['mean_length_both_finish_before']:.1f} to {entry['mean_length_both_finish_after']:.1f} {unit}."
            )
        sentences.append(
            f"{lead} fewer truncations: over all answers the mean went from {entry['mean_length_before']:.1f} to "
            f"{entry['mean_length_after']:.1f} {unit} while truncated answers, each as long as the limit, went from "
            f"{_percent(truncated_before)} to {_percent(truncated_after)}.{rest}"
        )
    median_before, median_after = entry["median_length_correct_before"], entry["median_length_correct_after"]
    if median_before and median_after and median_after < median_before and not shorter:
        sentences.append(
            f"The lower median over correct answers ({median_before:g} to {median_after:g} {unit}) compares different "
            f"problems ({entry['n_only_before_solves']:,} solved only by {entry['before']}, "
            f"{entry['n_only_after_solves']:,} only by {entry['after']}); it is not evidence of shorter answers."
        )
    all_before, all_after = entry["mean_length_of_all_before"], entry["mean_length_of_all_after"]
    if entry["left_out_problems"] and all_after < all_before and not shorter:
        sentences.append(
            f"The shorter mean over all that each side answered ({all_before:.1f} to {all_after:.1f} {unit}) compares "
            f"different problems: on those that both have it went from {entry['mean_length_before']:.1f} to "
            f"{entry['mean_length_after']:.1f} {unit}."
        )
    limits = entry["token_limit_before"], entry["token_limit_after"]
    if None not in limits and limits[0] != limits[1]:
        sentences.append(
            f"The sides were cut at different lengths ({limits[0]:g} and {limits[1]:g} {unit}): neither means nor "
            "accuracies are those of equal conditions."
        )
    worst = max(truncated_before, truncated_after)
    if worst > TRUNCATION_LIMIT:
        sentences.append(
            f"{_percent(worst)} of answers on one side hit the token limit (more than {_percent(TRUNCATION_LIMIT)}): "
            "raise max_new_tokens before reading much into lengths."
        )
    if not known:
        sentences.append(
            "Which answers hit a token limit is not known on both sides: fewer of them would look like shorter answers."
        )
    return sentences


def _accuracy_finding(entry: dict[str, Any]) -> str:
    low, high = entry["accuracy_diff_ci"]
    margin = f"{100 * entry['margin']:g} points"
    numbers = (
        f"{_percent(entry['accuracy_before'])} to {_percent(entry['accuracy_after'])}, n = {entry['n']:,}; "
        f"95% interval of the difference {_points(low)} to {_points(high)} points, "
        f"exact McNemar p {_p(entry['mcnemar_p'])}"
    )
    if entry["accuracy_verdict"] == "higher":
        return f"Accuracy is higher ({numbers})."
    if entry["accuracy_verdict"] == "lower":
        excluded = "a loss of {} or more is excluded" if low > -entry["margin"] else "a loss of {} is not excluded"
        return f"Accuracy is lower ({numbers}); {excluded.format(margin)}."
    if entry["accuracy_verdict"] == "no worse":
        return f"Accuracy is no worse at a margin of {margin} ({numbers}); a difference is not shown."
    return f"Too few problems to tell whether accuracy changed ({numbers}); a loss of {margin} is not excluded."


def _length_finding(entry: dict[str, Any]) -> str:
    low, high = entry["paired_length_ratio_ci"]
    both = f"{entry['n_both_solve']:,} problem{'s' if entry['n_both_solve'] != 1 else ''} that both sides solve"
    if entry["length_verdict"] == "unknown":
        return f"Too few problems to compare lengths: {both}."
    ratio = entry["paired_length_ratio"]
    numbers = f"ratio {ratio:.4g}, 95% interval {low:.4g} to {high:.4g}, Wilcoxon p {_p(entry['wilcoxon_p'])}"
    if low == high == 1:
        return f"Correct answers are equally long on each of the {both}."
    if entry["length_verdict"] == "unchanged":
        bound = math.ceil(1000 * max(1 - low, high - 1)) / 10
        return f"No change in length is shown on the {both} ({numbers}); changes beyond {bound}% are excluded."
    change = 100 * abs(1 - ratio)
    size = f"{change:.1f}%" if change >= 0.05 else "less than 0.1%"
    return f"Correct answers are {size} {entry['length_verdict']} on the {both} ({numbers})."


def _percent(share: float) -> str:
    return f"{100 * share:.1f}%"


def _points(difference: float) -> str:
    return f"{100 * difference:+.1f}".replace("-", "−")


def _p(value: float) -> str:
    return "< 0.001" if value < 0.001 else f"= {value:.3f}"
