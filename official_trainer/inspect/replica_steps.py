"""What one replica computes, apart from what the host does around it: traced, and compiled."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any, NamedTuple

import tensorflow as tf

_NODE = re.compile(r"\{\{node ([^}]+)\}\}")
_ABOUT_GRAPH = re.compile(r"^Failed getting HLO text: '|\(No registered.*|\{\{node [^}]+\}\}")


class ReplicaStep(NamedTuple):
  """What was given to `strategy.run`, traced.

  Attributes:
    function: the traced function.
    args: its arguments, a nested structure of specs; None leaves are None.
  """

  function: Any
  args: tuple


class RecordingStrategy(tf.distribute.OneDeviceStrategy):
  """One replica on the CPU, whose steps are functions of their own, as those that a TPU compiles are.

  Attributes:
    steps: what `run` was given, in the order of its calls.
  """

  def __init__(self) -> None:
    super().__init__("CPU:0")
    self.steps: list[ReplicaStep] = []
    # The sum over a TPU's cores makes gradients dense: its optimizers see no sparse ones.
    self.extended._reduce_to = _dense  # noqa: SLF001  # The one place through which all sums of replicas go.

  def run(self, fn: Callable[..., Any], args: Any = (), kwargs: Any = None, options: Any = None) -> Any:
    """Traces `fn`, remembers it, and calls it. Other arguments as those of `tf.distribute.Strategy.run`."""
    if kwargs:
      return super().run(fn, args, kwargs, options)

    @tf.autograph.experimental.do_not_convert
    def traced(*args: Any) -> Any:
      function = tf.function(fn, jit_compile=True).get_concrete_function(*args)
      self.steps.append(ReplicaStep(function, tf.nest.map_structure(_spec, args)))
      return function(*args)

    return super().run(traced, args, options=options)


def replica_steps(strategy: RecordingStrategy, step: Callable[[Any], Any], dataset: Any) -> list[ReplicaStep]:
  """Traces a step that takes an iterator, and returns what it gives to the replicas. Runs nothing.

  Args:
    strategy: the one the step was made under.
    step: such as `Trainer.train_step`.
    dataset: what the iterator is of.
  """
  before = len(strategy.steps)
  with strategy.scope():
    tf.function(step).get_concrete_function(tf.nest.map_structure(iter, dataset))
  return strategy.steps[before:]


def argument_specs(step: ReplicaStep) -> list[tf.TensorSpec]:
  """Returns the specs of the tensors that a replica is given; ragged and sparse ones as their parts."""
  return [spec for spec in tf.nest.flatten(step.args, expand_composites=True) if spec is not None]


def is_static(step: ReplicaStep) -> bool:
  """Whether shapes and types of all arguments are such that XLA can compile the step."""
  return all(spec.shape.is_fully_defined() and spec.dtype != tf.string for spec in argument_specs(step))


class Refusal(NamedTuple):
  """XLA's error: its text without what only its authors need, and the names of operations in it."""

  text: str
  names: tuple[str, ...]


def refusal(step: ReplicaStep) -> Refusal | None:
  """Compiles a step with XLA for the CPU, without running it; returns what XLA refused, or None."""
  # As arguments, their values would be compiled in where XLA needs constants, anew for every batch.
  with tf.device("CPU:0"):
    batch = [tf.Variable(tf.zeros(spec.shape, spec.dtype), trainable=False) for spec in argument_specs(step)]

  @tf.function(jit_compile=True, autograph=False)
  def compiled() -> Any:
    rest = (variable.read_value() for variable in batch)
    leaves = [spec if spec is None else next(rest) for spec in tf.nest.flatten(step.args, expand_composites=True)]
    return step.function(*tf.nest.pack_sequence_as(step.args, leaves, expand_composites=True))

  try:
    compiled.experimental_get_compiler_ir()(stage="optimized_hlo")
  except (ValueError, TypeError, tf.errors.OpError) as error:
    text = str(error)
    names = tuple(dict.fromkeys(_NODE.findall(text)))
    return Refusal(_ABOUT_GRAPH.sub("", text.splitlines()[0]).strip(" '"), names)
  return None


def _dense(reduce_op: Any, value: Any, destinations: Any, options: Any) -> Any:
  del reduce_op, destinations, options  # Of one replica.
  return tf.convert_to_tensor(value) if isinstance(value, tf.IndexedSlices) else value


def _spec(leaf: Any) -> Any:
  return None if leaf is None else tf.type_spec_from_value(leaf)
