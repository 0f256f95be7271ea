"""Long searches for faults, each as long as you let it: python tests/stress TOOL --help

    kills          runs that are killed at random moments and go on
    spoiled        replies that one client corrupts
    mutations      messages that were changed on their way
    combinations   random experiments

Results go to `benchmarks/results/TOOL.json` after every piece of work; the next call goes on.
"""

import os
import sys
from importlib import import_module
from pathlib import Path

TOOLS = ("kills", "spoiled", "mutations", "combinations")
ROOT = Path(__file__).parents[2]

if __name__ == "__main__":
    if len(sys.argv) < 2 or sys.argv[1] not in TOOLS:
        sys.exit(__doc__)
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    sys.path[1:1] = [str(ROOT / "tests" / "helpers"), str(ROOT / "benchmarks")]
    tool = sys.argv.pop(1)
    sys.argv[0] = f"python tests/stress {tool}"
    import_module(tool).main()
