"""Write what `catchment list` and `catchment show` say of built-in names, from the code that the names stand for.

python benchmarks/names.py

The commands read it from `catchment/cli/names.json`, so that they need not import what they describe.
"""

import json

from catchment.cli.describing import index
from catchment.cli.names import INDEX

if __name__ == "__main__":
    INDEX.write_text(json.dumps(index(), indent=1) + "\n", encoding="utf-8")
