"""One thread a process, here and in what tests start: two that spin on shared cores are many times slower."""

import os

os.environ["OMP_NUM_THREADS"] = "1"  # before torch is imported
os.environ["TOKENIZERS_PARALLELISM"] = "false"
