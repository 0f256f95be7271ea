"""Batches that are made while the one before is trained on."""

from __future__ import annotations

from collections.abc import Generator, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

import torch

Item = TypeVar("Item")


def prefetched(items: Iterator[Item]) -> Generator[Item]:
    """The same items in the same order; a thread makes the next one while one is in use."""
    end = object()
    with ThreadPoolExecutor(1, "prefetch", initializer=torch.set_num_threads, initargs=(1,)) as thread:
        following = thread.submit(next, items, end)
        while (item := following.result()) is not end:
            following = thread.submit(next, items, end)
            yield item  # type: ignore[misc]
