"""A sample of every stress tool is in the quick suite; `python tests/stress` runs the tools themselves."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))
