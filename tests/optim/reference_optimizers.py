"""Update rules in NumPy, as their papers and tf-keras define them: what the ones with groups are held against.

Each returns the new weights of the plain rule, in float64, and keeps its slots in `state`. `number` is that of the
update, from 1.
"""

import numpy as np


def sgd(w, g, state, number, *, rate, momentum=0.0):
  state["m"] = momentum * state.get("m", 0.0) - rate * g
  return w + state["m"]


def momentum(w, g, state, number, *, rate):
  return sgd(w, g, state, number, rate=rate, momentum=0.9)


def adam_direction(g, state, number, *, beta_1=0.9, beta_2=0.999, epsilon=1e-7, hat=False):
  """Kingma and Ba (2015): tf-keras adds epsilon to the uncorrected root (`hat` False), LAMB to the corrected one."""
  state["m"] = beta_1 * state.get("m", 0.0) + (1 - beta_1) * g
  state["v"] = beta_2 * state.get("v", 0.0) + (1 - beta_2) * g * g
  first, second = 1 - beta_1**number, 1 - beta_2**number
  if hat:
    return state["m"] / first / (np.sqrt(state["v"] / second) + epsilon)
  return np.sqrt(second) / first * state["m"] / (np.sqrt(state["v"]) + epsilon)


def adam(w, g, state, number, *, rate):
  return w - rate * adam_direction(g, state, number)


def adamw(w, g, state, number, *, rate, weight_decay=0.05):
  w = w - rate * weight_decay * w
  return w - rate * adam_direction(g, state, number)


def rmsprop(w, g, state, number, *, rate):
  state["v"] = 0.9 * state.get("v", 0.0) + 0.1 * g * g
  return w - rate * g / np.sqrt(state["v"] + 1e-7)


def lamb(w, g, state, number, *, rate, weight_decay=0.05):
  """You et al. (2020), algorithm 2."""
  update = adam_direction(g, state, number, epsilon=1e-6, hat=True) + weight_decay * w
  return w - rate * np.linalg.norm(w) / np.linalg.norm(update) * update


def lars(w, g, state, number, *, rate, weight_decay=0.05, momentum=0.9, eeta=0.001):
  """You et al. (2017), with the rate inside the momentum."""
  g = g + weight_decay * w
  ratio = eeta * np.linalg.norm(w) / np.linalg.norm(g)
  state["m"] = momentum * state.get("m", 0.0) + rate * ratio * g
  return w - state["m"]


def adafactor(w, g, state, number, *, rate):
  """Shazeer and Stern (2018), algorithms 4 and 5, for matrices, with a relative step."""
  rho = min(rate, 1 / np.sqrt(number))
  alpha = max(1e-3, np.sqrt(np.mean(w * w))) * rho
  beta = 1 - number**-0.8
  square = g * g + 1e-30
  state["r"] = beta * state.get("r", 0.0) + (1 - beta) * square.mean(axis=-1)
  state["c"] = beta * state.get("c", 0.0) + (1 - beta) * square.mean(axis=-2)
  v = (state["r"] / state["r"].mean(axis=-1, keepdims=True))[..., None] * state["c"][..., None, :]
  u = g / np.sqrt(v)
  return w - alpha * u / max(1.0, np.sqrt(np.mean(u * u)))
