"""Philox4_32-10 and the order in which PyTorch's CUDA kernels draw from it, in NumPy."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Words = NDArray[np.uint32]
LOW = np.uint64(0xFFFFFFFF)


def philox(seed: int, counter: int, threads: NDArray[np.uint64]) -> Words:
    """Four words for each thread."""
    x = np.full(threads.shape, counter & 0xFFFFFFFF, np.uint64)
    y = np.full(threads.shape, counter >> 32, np.uint64)
    z, w = threads & LOW, threads >> np.uint64(32)
    keys = [seed & 0xFFFFFFFF, seed >> 32]
    for _ in range(10):
        by_x, by_z = np.uint64(0xD2511F53) * x, np.uint64(0xCD9E8D57) * z
        x = (by_z >> np.uint64(32)) ^ y ^ np.uint64(keys[0])
        z = (by_x >> np.uint64(32)) ^ w ^ np.uint64(keys[1])
        y, w = by_z & LOW, by_x & LOW
        keys = [(keys[0] + 0x9E3779B9) % 2**32, (keys[1] + 0xBB67AE85) % 2**32]
    return np.stack([x, y, z, w], -1).astype(np.uint32)


@dataclass
class Card:
    """A card with a generator: each method draws as the kernel of that name does."""

    seed: int
    offset: int = 0
    multiprocessors: int = 132
    threads_per_multiprocessor: int = 2048

    def grid(self, numel: int) -> int:
        blocks = self.multiprocessors * (self.threads_per_multiprocessor // 256)
        return 256 * min(blocks, math.ceil(numel / 256))

    def take(self, increment: int) -> int:
        start, self.offset = self.offset, self.offset + (increment + 3) // 4 * 4
        return start // 4

    def words(self, numel: int, each: int = 4) -> Words:
        """Words for `numel` elements in order; an element gets 4 // each of them."""
        threads = self.grid(numel)
        rounds = (numel - 1) // (threads * each) + 1
        counter = self.take(4 * rounds)
        ids = np.arange(threads, dtype=np.uint64)
        drawn = [philox(self.seed, counter + r, ids) for r in range(rounds)]
        lanes = [part for words in drawn for part in np.split(words, each, axis=1)]
        return np.concatenate(lanes)[:numel]

    def uniform(self, numel: int) -> NDArray[np.float32]:
        return uniform(self.words(numel)[:, 0])

    def uniform_double(self, numel: int) -> NDArray[np.float64]:
        words = self.words(numel, each=2).astype(np.uint64)
        bits = words[:, 0] ^ (words[:, 1] << np.uint64(21))
        return bits * 2.0**-53 + 2.0**-54

    def integers(self, numel: int) -> NDArray[np.uint64]:
        words = self.words(numel, each=2).astype(np.uint64)
        return (words[:, 0] << np.uint64(32)) | words[:, 1]

    def normal(self, numel: int) -> NDArray[np.float64]:
        """Box–Muller of the words in pairs, which are the lanes of a thread: not rounded."""
        threads = self.grid(numel)
        rounds = (numel - 1) // (threads * 4) + 1
        counter = self.take(4 * rounds)
        lanes = []
        for r in range(rounds):
            words = philox(self.seed, counter + r, np.arange(threads, dtype=np.uint64))
            for x, y in ((0, 1), (2, 3)):
                u = uniform(words[:, x]).astype(np.float64)
                radius = np.sqrt(-2 * np.log(u))
                angle = 2 * np.pi * (words[:, y] + 0.5) * 2.0**-32
                lanes += [np.sin(angle) * radius, np.cos(angle) * radius]
        return np.concatenate(lanes)[:numel]

    def kept(self, numel: int, keep: float, vector: int) -> NDArray[np.bool_]:
        """Dropout's mask in memory's order, for threads that take `vector` elements at a time."""
        threads = self.grid(numel)
        if vector == 1:
            return self.uniform(numel) < np.float32(keep)
        start = self.take((numel - 1) // (threads * 4) * 4 + 4)
        draws = max(1, vector // 4)
        mask = np.empty(numel // vector * vector, bool)
        for first in range(0, numel // vector, threads):
            ids = np.arange(min(threads, numel // vector - first), dtype=np.uint64)
            rounds = [
                philox(self.seed, start + first // threads * draws + d, ids) for d in range(draws)
            ]
            words = np.concatenate(rounds, 1)[:, :vector]
            part = mask[first * vector : (first + len(ids)) * vector]
            part[:] = (uniform(words) < np.float32(keep)).ravel()
        return mask

    def permutation(self, n: int) -> NDArray[np.int64]:
        bits = math.ceil(math.log2(n - (6 * n**2 + 1) / (12 * math.log(0.9))))
        width = 32 if bits <= 32 else 64
        low, span = -(1 << (width - 1)), (1 << width) - 1
        keys = [(int(k) % span + low) % (1 << width) for k in self.integers(n)]
        flipped = [(k ^ (1 << (width - 1))) % (1 << bits) for k in keys]
        order = sorted(range(n), key=lambda i: flipped[i])
        start = self.take(n)
        for first, size in islands([flipped[i] for i in order]):
            words = self.sequence(start, first)
            for i in range(size - 1, 0, -1):
                j = next(words) % (i + 1)
                order[first + i], order[first + j] = order[first + j], order[first + i]
        return np.array(order)

    def sequence(self, counter: int, thread: int) -> Iterator[int]:
        while True:
            yield from map(int, philox(self.seed, counter, np.array([thread], np.uint64))[0])
            counter += 1


def uniform(words: Words) -> NDArray[np.float32]:
    return words.astype(np.float32) * np.float32(2.0**-32) + np.float32(2.0**-33)


def islands(keys: list[int]) -> Iterator[tuple[int, int]]:
    first = 0
    for i in range(1, len(keys) + 1):
        if i == len(keys) or keys[i] != keys[first]:
            yield first, i - first
            first = i
