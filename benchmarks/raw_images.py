"""Bytes of the raw images of CIFAR-10: the limit for whoever sends features in their place.

    CATCHMENT_DATA=... python benchmarks/raw_images.py      # a minute

As uint8 pixels, and each as a PNG file of its own. Results go to `benchmarks/results/raw_images.json`.
"""

from __future__ import annotations

import io
import json
from pathlib import Path

from PIL import Image

from catchment import data

RESULTS = Path(__file__).parent / "results" / "raw_images.json"


def main() -> None:
    images = data.load("cifar10", None, train=None, test=1, seed=0).train.images
    few = data.load("cifar10", None, train=2000, test=1, seed=0).train
    measured = {}
    for name, pixels in (("2,000 images", few.images[few.index]), ("50,000 images", images)):
        png = 0
        for image in pixels.permute(0, 2, 3, 1).numpy():
            file = io.BytesIO()
            Image.fromarray(image).save(file, "png", optimize=True)
            png += len(file.getvalue())
        measured[name] = {"images": len(pixels), "uint8": pixels.nbytes, "png": png}
        print(name, measured[name], flush=True)
    RESULTS.write_text(json.dumps(measured, indent=2) + "\n")


if __name__ == "__main__":
    main()
