"""How large a message of Flower's gets when it is put together from its objects, found before that is done.

With `superlink.py` and `supernode.py` one of the three files with private names of Flower's. An array names its chunks
by their places in a list, as often as it likes, so that a small message can become a very large one.
"""

from __future__ import annotations

import json

from flwr.app import Message
from flwr.supercore.inflatable.inflatable_object import get_object_head_values_from_object_content as head
from flwr.supercore.inflatable.inflatable_utils import inflate_object_from_contents

CHUNK, ARRAY = b"ArrayChunk ", b"Array "  # how objects of these kinds begin
PLAIN = 600_000  # bytes of all objects that are not chunks of an array: these take far more room once read


def inflated(identity: str, objects: dict[str, bytes], most: int) -> Message:
    """The message of this name, whose objects are used up, if its arrays have at most this many bytes in all."""
    plain = sum(len(content) for content in objects.values() if not content.startswith(CHUNK))
    if plain > PLAIN:
        raise ValueError(f"{plain:,} bytes are no chunks of arrays; at most {PLAIN:,} are expected")
    size = sum(_size(content, objects) for content in objects.values() if content.startswith(ARRAY))
    if size > most:
        raise ValueError(f"its arrays have {size:,} bytes; at most {most:,} are expected")
    found = inflate_object_from_contents(identity, objects)
    if not isinstance(found, Message):
        raise ValueError(f"a {type(found).__name__} in place of a message")
    return found


def _size(array: bytes, objects: dict[str, bytes]) -> int:
    """The bytes of an array once its chunks are joined."""
    _, children, _ = head(array)
    chunks = [objects[child] for child in children]
    if not all(chunk.startswith(CHUNK) for chunk in chunks):
        raise ValueError("an array has parts that are no chunks")
    sizes = [len(chunk) for chunk in chunks]
    return sum(sizes[number] for number in json.loads(array.partition(b"\0")[2])["arraychunk_ids"])
