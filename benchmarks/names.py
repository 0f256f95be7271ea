"""Write what `catchment list`, `catchment show` and `catchment schema` say, from the code that it is about.

python benchmarks/names.py

The commands read it from `catchment/cli/names.json` and `catchment/cli/schemas`, so that they need not import what they
describe.
"""

import json

from catchment.cli.describing import index
from catchment.cli.forms import forms
from catchment.cli.names import INDEX
from catchment.cli.schema import SCHEMAS

if __name__ == "__main__":
    INDEX.write_text(json.dumps(index(), indent=1) + "\n", encoding="utf-8")
    for kind, form in forms().items():
        (SCHEMAS / f"{kind}.json").write_text(json.dumps(form, indent=1, allow_nan=False) + "\n", encoding="utf-8")
