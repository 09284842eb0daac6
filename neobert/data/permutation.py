"""A permutation of any number of documents without a table of them: memory does not grow with the corpus. Torch-free.

A Feistel network is a bijection whatever its round function does; here that is the project's counter hash, and both
halves are counted modulo about the square root. The few numbers beyond the count walk on until they fall below it
(Black and Rogaway 2002, generalised Feistel and cycle walking).
"""

from math import isqrt

import numpy as np

from neobert.data.masking import Array, fold
from neobert.data.tokenized import Integers

_ROUNDS = 6
_LEAST_SIDE = 16
"""Halves of fewer numbers mix badly."""


def permuted(places: Integers, count: int, keys: Array) -> Integers:
    """Where each of `places` (n,), below `count`, goes; `keys` of 32 bits, one or (n,), choose the permutation."""
    rows = max(_LEAST_SIDE, isqrt(count - 1) + 1)
    columns = max(_LEAST_SIDE, -(-count // rows))
    keys = np.broadcast_to(np.asarray(keys, dtype=np.int64), places.shape)
    numbers = _network(places, rows, columns, keys)
    outside = np.flatnonzero(numbers >= count)
    while len(outside):
        numbers[outside] = _network(numbers[outside], rows, columns, keys[outside])
        outside = outside[numbers[outside] >= count]
    return numbers


def _network(numbers: Integers, rows: int, columns: int, keys: Integers) -> Integers:
    """Rounds that shift row and column in turn by what the other says."""
    row, column = np.divmod(numbers, columns)
    for number in range(0, _ROUNDS, 2):
        column = _shifted(column, fold(keys ^ number, row), columns)
        row = _shifted(row, fold(keys ^ (number + 1), column), rows)
    return row * columns + column


def _shifted(numbers: Integers, hashes: Integers, size: int) -> Integers:
    """Numbers below `size` moved by hashes of 32 bits, modulo `size`."""
    moved = numbers + ((hashes * size) >> 32)
    return moved - size * (moved >= size)
