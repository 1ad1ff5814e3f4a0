"""Damage to the content of a file, at random: what disks, transfers and other programs do."""

from random import Random


def damage(random: Random, content: bytes) -> bytes:
    """Return ``content`` with one to three faults: it is cut off, or bytes are changed, lost, repeated or added."""
    for _ in range(random.choice([1, 1, 1, 2, 3])):
        content = FAULTS[random.randrange(len(FAULTS))](random, content)
    return content


def place(random: Random, content: bytes) -> int:
    """Return a random position, in half of all cases near the beginning, where headers are."""
    return random.randrange(min(len(content), 64) if random.random() < 0.5 else len(content)) if content else 0


def cut_off(random: Random, content: bytes) -> bytes:
    return content[: place(random, content)]


def flipped(random: Random, content: bytes) -> bytes:
    changed = bytearray(content)
    for _ in range(random.choice([1, 1, 8]) if content else 0):
        changed[place(random, content)] ^= 1 << random.randrange(8)
    return bytes(changed)


def lost(random: Random, content: bytes) -> bytes:
    begin = place(random, content)
    return content[:begin] + content[begin + random.choice([1, 2, 4, 512]) :]


def repeated(random: Random, content: bytes) -> bytes:
    begin = place(random, content)
    end = begin + random.choice([1, 2, 4, 512])
    return content[:end] + content[begin:end] + content[end:]


def overwritten(random: Random, content: bytes) -> bytes:
    begin, length = place(random, content), random.choice([1, 2, 4, 8, 512])
    length = min(length, len(content) - begin)
    filler = random.choice([b"\0", b"\xff", b"\x7f", b"-", b"9", b"\n"]) * length
    return content[:begin] + random.choice([filler, random.randbytes(length)]) + content[begin + length :]


def added(random: Random, content: bytes) -> bytes:
    return content + random.randbytes(random.choice([1, 4, 600]))


def emptied(random: Random, content: bytes) -> bytes:
    return random.choice([b"", b"\0" * len(content), random.randbytes(min(len(content), 600))])


FAULTS = [cut_off, flipped, flipped, lost, repeated, overwritten, overwritten, added, emptied]
