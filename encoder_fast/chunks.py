"""How many texts are handled at once: chunks bound memory, batches bound one forward pass."""

from collections.abc import Iterator

# Token ids are held for one chunk at a time. The longer a chunk, the closer in length are the texts
# that share a batch; at 8192 texts they already differ by a token or two.
CHUNK_TEXTS = 8192
CHUNK_CHARACTERS = 8_000_000


def chunks(items: list) -> Iterator[tuple[int, list]]:
    """Texts or pairs -> yields (start, items[start:stop]), bounded in texts and in characters."""
    start, characters = 0, 0
    for index, item in enumerate(items):
        characters += len(item) if isinstance(item, str) else sum(map(len, item))
        if index + 1 - start >= CHUNK_TEXTS or characters >= CHUNK_CHARACTERS:
            yield start, items[start : index + 1]
            start, characters = index + 1, 0
    if start < len(items):
        yield start, items[start:]


def token_batches(lengths: list[int], budget: int) -> list[list[int]]:
    """Lengths of N texts -> lists of indices, longest texts first.

    The texts of a list have at most `budget` tokens in all (a longer text is alone), and are close
    in length.
    """
    batches, current, used = [], [], 0
    for index in sorted(range(len(lengths)), key=lambda i: -lengths[i]):
        if current and used + lengths[index] > budget:
            batches.append(current)
            current, used = [], 0
        current.append(index)
        used += lengths[index]
    return [*batches, current] if current else batches
