MUTANTS = {"fbt_rl/training/schedule.py": [("math.ceil(phase.start_fraction * steps)][-1]", "math.floor(phase.start_fraction * steps)][-1]", "tests/test_schedule.py::test_passes_start_with_their_phase")],
"rl/monitor.py": [('(ratio - 1 - log_ratio).sum(),', '(1 / ratio - 1 + log_ratio).sum(),', "tests/test_rl_parts.py::test_mismatch_by_hand")]}
EQUIVALENT = []
