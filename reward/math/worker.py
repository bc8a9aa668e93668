"""What a worker of :mod:`reward.math.pool` runs: compares answers, one line in, one line out.

Limits are the kernel's, so that they hold within a single long operation too and after the parent is gone.
"""

from __future__ import annotations

import json
import os
import resource
import signal
import sys

from reward.math.answer import equivalent
from reward.math.pool import OUT_OF_MEMORY
from reward.math.quantities import Conventions


def main() -> None:
    memory_bytes = int(sys.argv[1]) * 2**20
    replies = os.fdopen(os.dup(1), "wb", buffering=0)
    os.dup2(2, 1)  # whatever prints, prints elsewhere
    equivalent("\\sqrt{2}", "x")  # the imports, before the limits
    signal.signal(signal.SIGPROF, signal.SIG_DFL)  # ends the process; it may have been ignored by who started it
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    resource.setrlimit(resource.RLIMIT_AS, (memory_bytes, memory_bytes))
    replies.write(b"ready\n")
    for line in sys.stdin.buffer:
        seconds, rows = json.loads(line)
        for prediction, answer, conventions in rows:
            signal.setitimer(signal.ITIMER_PROF, seconds)
            try:
                reply = equivalent(prediction, answer, Conventions(**conventions))
            except MemoryError:
                os._exit(OUT_OF_MEMORY)  # this process is in no state to go on
            signal.setitimer(signal.ITIMER_PROF, 0)
            replies.write(json.dumps(reply).encode() + b"\n")


if __name__ == "__main__":
    try:
        main()
    except (BrokenPipeError, KeyboardInterrupt):
        os._exit(1)
