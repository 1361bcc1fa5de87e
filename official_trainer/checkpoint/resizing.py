"""Bringing a pretrained value to the shape of another model's variable, by functions with names."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import TypeVar

import numpy as np
import tensorflow as tf

from official_trainer.config.named import Named

Resize = Callable[[np.ndarray, tuple[int, ...]], np.ndarray]
"""Takes a value and the shape of the variable; returns the value in that shape, or raises ValueError."""

F = TypeVar("F", bound=Resize)

_NAMED: Named[Resize] = Named("function for another shape")


def register_resize(name: str) -> Callable[[F], F]:
  """Registers a function under the name that `task.init.resize` calls it by.

      @register_resize("first_channels")
      def first_channels(value, shape):
        return value[..., : shape[-1]]

  Raises:
    ConfigError: if another function has the name already.
  """

  return _NAMED.register(name)


def resize_function(name: str, setting: str) -> Resize:
  """Returns a registered function.

  Args:
    name: its name.
    setting: the key that names it, for errors.

  Raises:
    ConfigError: if there is none of that name.
  """
  return _NAMED.find(name, setting)


@register_resize("position_embedding")
def position_embedding(value: np.ndarray, shape: tuple[int, ...]) -> np.ndarray:
  """Interpolates a table of positions linearly; the first and the last position keep their values.

  The idea is that of Chen et al. 2023, "Extending Context Window of Large Language Models via Positional
  Interpolation": new positions are put between the known ones, never beyond them.

  Args:
    value: [n, d] or [1, n, d].
    shape: [m, d] or [1, m, d].

  Raises:
    ValueError: if the shapes are others than those.
  """
  old, new = _table(value, shape)
  places = np.linspace(0.0, len(old) - 1, new)
  below = np.minimum(np.floor(places).astype(int), max(len(old) - 2, 0))
  above = np.minimum(below + 1, len(old) - 1)
  share = (places - below)[:, np.newaxis]
  exact = old.astype(np.float64)
  return ((1 - share) * exact[below] + share * exact[above]).astype(value.dtype).reshape(shape)


@register_resize("position_embedding_2d")
def position_embedding_2d(value: np.ndarray, shape: tuple[int, ...]) -> np.ndarray:
  """Interpolates a table of the positions in a square image bicubically, with or without a class token before them.

  Dosovitskiy et al. 2021, "An Image is Worth 16x16 Words", section 3.2 (interpolation in two dimensions); bicubic as in
  Touvron et al. 2021, "Training data-efficient image transformers", since it hardly changes the norm of the vectors. A
  class token is copied, or left out where the model has none.

  Args:
    value: [n, d] or [1, n, d], where n is a square or, with a class token, one more.
    shape: [m, d] or [1, m, d], likewise.

  Raises:
    ValueError: if the shapes are others than those, or only the variable has a class token.
  """
  old, new = _table(value, shape)
  old_side, old_tokens = _grid(len(old))
  new_side, new_tokens = _grid(new)
  if new_tokens > old_tokens:
    raise ValueError(f"the variable has a place for a class token ({new} positions), the value has none ({len(old)})")
  grid = old[old_tokens:].reshape(1, old_side, old_side, -1)
  scaled = tf.image.resize(grid.astype(np.float32), (new_side, new_side), method=tf.image.ResizeMethod.BICUBIC)
  positions = scaled.numpy().reshape(new_side * new_side, -1).astype(value.dtype)
  return np.concatenate([old[:new_tokens], positions]).reshape(shape)


def _table(value: np.ndarray, shape: tuple[int, ...]) -> tuple[np.ndarray, int]:
  """Returns the value as [n, d], and the number of positions that are wanted."""
  fits = value.ndim == len(shape) and value.ndim in (2, 3) and value.shape[-1] == shape[-1]
  if not fits or (value.ndim == 3 and not value.shape[0] == shape[0] == 1) or 0 in (value.size, *shape):
    raise ValueError(f"a table of positions is [n, d] or [1, n, d] with one d, got {list(value.shape)}")
  return value.reshape(value.shape[-2:]), shape[-2]


def _grid(num_positions: int) -> tuple[int, int]:
  """Returns the side of the square, and 1 with a class token, else 0."""
  for tokens in (0, 1):
    side = math.isqrt(num_positions - tokens)
    if side and side * side == num_positions - tokens:
      return side, tokens
  raise ValueError(f"{num_positions} positions are no square, and no square with a class token")
