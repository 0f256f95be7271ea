"""Batches that are made while the one before is trained on."""

from __future__ import annotations

from collections.abc import Generator, Iterator
from concurrent.futures import ThreadPoolExecutor
from threading import current_thread
from typing import TypeVar

import torch

Item = TypeVar("Item")


def prefetched(items: Iterator[Item]) -> Generator[Item]:
    """The same items in the same order; a thread makes the next one while one is in use."""
    end = object()
    thread = ThreadPoolExecutor(1, "prefetch", initializer=torch.set_num_threads, initargs=(1,))
    try:
        following = thread.submit(next, items, end)
        while (item := following.result()) is not end:
            following = thread.submit(next, items, end)
            yield item  # type: ignore[misc]
    finally:  # a generator that was left may be collected in the thread itself, which cannot wait for its own end
        thread.shutdown(wait=not current_thread().name.startswith("prefetch"), cancel_futures=True)
