"""Variables of which every call of a remote function has its own.

Workers of parameter servers run the same step at the same time. What one step keeps for itself (its number, the state
of its random generators, sums of metrics) must not be shared, and must not outlive a call that is run again elsewhere.
"""

from __future__ import annotations

import contextlib
import weakref
from collections.abc import Iterator, Sequence
from typing import Any

import tensorflow as tf
from tensorflow.python.ops import resource_variable_ops

# A variable with TensorFlow's name for "none" is made anew by every execution of the op, and freed after it.
_ANONYMOUS = "cd2c89b7-88b7-44c8-ad83-06c2a9158347"


class OwnVariable(resource_variable_ops.ResourceVariable):
  """A variable of this process; in a function that it was `bound` in, one that exists for the length of a call.

  Python reads and writes the variable of this process, and checkpoints hold it.
  """

  def __init__(self, *args: Any, **kwargs: Any):
    self._bound: weakref.WeakKeyDictionary[Any, tf.Tensor] = weakref.WeakKeyDictionary()
    super().__init__(*args, **kwargs)

  @property
  def handle(self) -> tf.Tensor:
    """The resource that operations made now use."""
    if self._bound and not tf.executing_eagerly():
      graph = tf.compat.v1.get_default_graph()
      while graph is not None:
        if graph in self._bound:
          return self._bound[graph]
        graph = getattr(graph, "outer_graph", None)
    return self._handle

  def bind(self, value: tf.Tensor) -> None:
    """Gives the function being traced, and those inside it, a variable of its own, which begins as `value`."""
    handle = tf.raw_ops.VarHandleOp(shape=self.shape, dtype=self.dtype, shared_name=_ANONYMOUS)
    resource_variable_ops._set_handle_shapes_and_types(  # noqa: SLF001  # As variables do with their handles.
      handle, resource_variable_ops.get_eager_safe_handle_data(self._handle), graph_mode=True
    )
    tf.raw_ops.AssignVariableOp(resource=handle, value=value)
    self._bound[tf.compat.v1.get_default_graph()] = handle


class OwnVariables:
  """The variables that each call has for itself, and how their values get there and back."""

  def __init__(self) -> None:
    self._sums: list[OwnVariable] = []

  @contextlib.contextmanager
  def made(self) -> Iterator[None]:
    """Makes every variable that is made in the body one of these, whose values of all calls are added up."""

    def creator(next_creator: Any, **kwargs: Any) -> tf.Variable:
      del next_creator  # The strategy's: it would put the variable on a parameter server.
      if kwargs.get("aggregation") == tf.VariableAggregation.MEAN:
        raise ValueError(f"{kwargs.get('name')} is a mean over replicas; what workers return can only be added up.")
      variable = own_variable(**kwargs)
      self._sums.append(variable)
      return variable

    with tf.variable_creator_scope(creator):
      yield

  def zeros(self) -> list[tf.Tensor]:
    """Returns what a call begins with when its sums are added to those of others."""
    return self._packed([tf.zeros(v.shape, v.dtype) for v in self._sums])

  def values(self) -> list[tf.Tensor]:
    """Returns the values; inside a function, those of the call. One tensor for each dtype: each costs a message."""
    return self._packed([v.read_value() for v in self._sums])

  def bind(self, packed: Sequence[tf.Tensor]) -> None:
    """Gives the function being traced variables of its own, which begin with these values."""
    for variable, value in zip(self._sums, self._unpacked(packed), strict=True):
      variable.bind(value)

  def assign(self, packed: Sequence[tf.Tensor]) -> None:
    """Sets the variables of this process. Runs eagerly."""
    for variable, value in zip(self._sums, self._unpacked(packed), strict=True):
      variable.assign(value)

  def add(self, packed: Sequence[tf.Tensor]) -> None:
    """Adds to the variables of this process. Runs eagerly."""
    self.assign([mine + theirs for mine, theirs in zip(self.values(), packed, strict=True)])

  def _dtypes(self) -> list[tf.DType]:
    return list(dict.fromkeys(v.dtype for v in self._sums))

  def _packed(self, values: Sequence[tf.Tensor]) -> list[tf.Tensor]:
    return [
      tf.concat([tf.reshape(value, [-1]) for value in values if value.dtype == dtype], axis=0)
      for dtype in self._dtypes()
    ]

  def _unpacked(self, packed: Sequence[tf.Tensor]) -> list[tf.Tensor]:
    parts = {}
    for dtype, tensor in zip(self._dtypes(), packed, strict=True):
      sizes = [v.shape.num_elements() for v in self._sums if v.dtype == dtype]
      parts[dtype] = iter(tf.split(tensor, sizes))
    return [tf.reshape(next(parts[v.dtype]), v.shape) for v in self._sums]


def own_variable(**kwargs: Any) -> OwnVariable:
  """Makes one of these. Arguments as those of `tf.Variable`."""
  known = ("initial_value", "trainable", "name", "dtype", "shape", "synchronization", "aggregation")
  with tf.init_scope(), tf.device("CPU:0"):
    return OwnVariable(**{name: kwargs[name] for name in known if name in kwargs})


def own_state(generators: Sequence[tf.random.Generator]) -> list[OwnVariable]:
  """Gives random generators a state that each call has for itself, and returns the states, in the same order."""
  states = []
  for generator in generators:
    state = own_variable(initial_value=generator.state.read_value(), trainable=False, name="StateVar")
    generator._state_var = state  # noqa: SLF001  # There is no public way to say where the state is.
    states.append(state)
  return states
