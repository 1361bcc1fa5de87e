"""What a TPU cannot run: a table of operations and types, each with the reason and the way out.

A TPU runs programs whose shapes, types and code are fixed when they are compiled. XLA on a CPU is more lenient, so that
a step that compiles there may fail on a TPU. To add a rule, add its operations to the table.
"""

from __future__ import annotations

import functools
from typing import NamedTuple

import tensorflow as tf
from tensorflow.python.framework import kernels  # The registry of kernels has no public name.

from official_trainer.inspect.graph_walk import CONTROL_FLOW, Node, is_fixed, resolved


class Rule(NamedTuple):
  """Why something cannot be, and what to do instead."""

  kind: str
  why: str
  instead: str


VALUE_SHAPE = Rule(
  "value-dependent shape",
  "the shape of its result depends on the values in a tensor, which are not known when the step is compiled.",
  "keep the full shape and select by a mask: tf.where(mask, value, 0.0) with three arguments, a sum weighted by the"
  " mask, tf.math.top_k with a fixed k.",
)
SUPPRESSION = VALUE_SHAPE._replace(
  instead="use tf.image.non_max_suppression_padded with pad_to_max_output_size=True, or hand the boxes to the host in"
  " the logs of validation_step and suppress in aggregate_logs."
)
UNKNOWN_DIMENSION = Rule(
  "unknown dimension",
  "a dimension of its result is computed from values, and is not known when the step is compiled.",
  "compute the size from static shapes (x.shape[i]) or from the config.",
)
INPUT_DIMENSION = Rule(
  "unknown dimension",
  "the batch has a dimension that is not known before it comes.",
  "give every batch one shape in the input pipeline: padded_batch with padded_shapes, tf.ensure_shape, drop_remainder."
  " (The batch dimension of an evaluation is padded for tasks that derive from official_trainer.Task.)",
)
LIST = Rule(
  "dynamic trip count",
  "it keeps a result of each round of a loop, and how many rounds there are is not known when the step is compiled.",
  "give the loop a constant bound (maximum_iterations, a range of static size) and a TensorArray its full size.",
)
CONSTANT = Rule(
  "computed argument",
  "its axis, size, shape or permutation must be known when the step is compiled, and is computed from values.",
  "make it a constant, or compute it from static shapes (x.shape[i]) or the config.",
)
CALLBACK = Rule(
  "host callback",
  "it calls Python, which runs on the host only.",
  "write it in TensorFlow operations, move it into the input pipeline, or return its inputs from validation_step and"
  " call it in aggregate_logs, which runs on the host.",
)
PRINT = CALLBACK._replace(
  why="it prints from inside the step; only the host can.",
  instead="report the value as a metric, or remove it.",
)
SUMMARY = Rule(
  "summary",
  "it writes to a file from inside the step, where there are no files.",
  "return the value as a metric from build_metrics, or in the logs for aggregate_logs.",
)
STRING = Rule(
  "string",
  "a TPU has no strings.",
  "keep them on the host: override Trainer.next_eval_inputs so that it returns (inputs without them,"
  " {'name': strings}); they reach the task's aggregate_logs beside the logs of validation_step. For training drop them"
  " in the input pipeline.",
)
FLOAT64 = Rule(
  "float64",
  "a TPU does not compute in 64-bit floating point.",
  "make it float32: dtype=tf.float32 or np.float32 for constants, tf.cast for inputs. (int64 is fine.)",
)
NO_KERNEL = Rule(
  "no XLA kernel",
  "XLA has no implementation of it.",
  "use other operations, or move it to the host: into the input pipeline, or into aggregate_logs.",
)

_TABLE: dict[Rule, tuple[str, ...]] = {
  VALUE_SHAPE: (
    "Where", "Unique", "UniqueV2", "UniqueWithCounts", "UniqueWithCountsV2", "ListDiff", "DynamicPartition",
    "RaggedRange", "RaggedTensorToSparse", "SparseReshape", "DenseToDenseSetOperation", "DenseToSparseSetOperation",
  ),
  SUPPRESSION: (
    "NonMaxSuppression", "NonMaxSuppressionV2", "NonMaxSuppressionV3", "NonMaxSuppressionV5",
    "NonMaxSuppressionWithOverlaps",
  ),
  CALLBACK: ("PyFunc", "PyFuncStateless", "EagerPyFunc"),
  PRINT: ("PrintV2", "Print"),
  SUMMARY: (
    "WriteSummary", "WriteScalarSummary", "WriteHistogramSummary", "WriteImageSummary", "WriteAudioSummary",
    "WriteRawProtoSummary", "WriteGraphSummary", "FlushSummaryWriter", "ScalarSummary", "HistogramSummary",
    "ImageSummary", "ImageSummaryV2", "AudioSummary", "AudioSummaryV2", "TensorSummary", "TensorSummaryV2",
    "MergeSummary",
  ),
  LIST: ("TensorListResize",),
}  # fmt: skip
RULES = {op: rule for rule, ops in _TABLE.items() for op in ops}

TYPES = {tf.string: STRING, tf.float64: FLOAT64, tf.complex128: FLOAT64}

# Which inputs decide over shapes, and have to be constants for the compiler; -1 is the last one.
_CONSTANT_INPUTS: dict[tuple[int, ...], tuple[str, ...]] = {
  (0,): (
    "Fill", "Split", "Conv2DBackpropInput", "Conv3DBackpropInputV2", "RandomUniform", "RandomUniformInt",
    "RandomStandardNormal", "TruncatedNormal", "StatelessRandomUniformV2", "StatelessRandomNormalV2",
    "StatelessRandomUniformIntV2", "StatelessTruncatedNormalV2",
  ),
  (1,): (
    "Sum", "Mean", "Max", "Min", "Prod", "All", "Any", "ArgMax", "ArgMin", "Cumsum", "Cumprod", "ReverseV2",
    "Transpose", "ExpandDims", "Reshape", "BroadcastTo", "Tile", "Pad", "PadV2", "MirrorPad", "OneHot", "TopKV2",
    "Bincount", "ResizeBilinear", "ResizeNearestNeighbor", "Conv2DBackpropFilter", "Conv3DBackpropFilterV2",
  ),
  (2,): ("GatherV2", "Roll", "Slice", "UnsortedSegmentSum", "UnsortedSegmentMax", "LinSpace"),
  (3,): ("StridedSlice",),
  (1, 2): ("SplitV",),
  (0, 1, 2): ("Range",),
  (-1,): ("ConcatV2",),
}  # fmt: skip
_CONSTANTS = {op: inputs for inputs, ops in _CONSTANT_INPUTS.items() for op in ops}

# Which input of a list says how many elements it can hold.
_LIST_SIZES = {"EmptyTensorList": 1, "TensorListReserve": 1}
# They are no work.
_STRUCTURE = frozenset({"Placeholder", "PlaceholderWithDefault", "NoOp"})


def rules_of(node: Node) -> list[Rule]:
  """Returns the rules that an operation breaks of itself, not through what it was given.

  Args:
    node: an operation of a step, from `graph_walk.walk`.
  """
  op = node.op
  rule = RULES.get(op.type)
  if op.type == "NonMaxSuppressionV4" and not op.get_attr("pad_to_max_output_size"):
    rule = SUPPRESSION
  if rule:
    return [rule]
  found = [TYPES[dtype] for dtype in _new_types(op) if dtype in TYPES]
  if found:
    return list(dict.fromkeys(found))
  if op.type == "TensorListSetItem" and op.get_attr("resize_if_index_out_of_bounds"):
    return [LIST]
  if op.type in _LIST_SIZES and _is_unbounded(op.inputs[_LIST_SIZES[op.type]], node):
    return [LIST]
  if not all(is_fixed(op.inputs[number], node.scope) for number in _CONSTANTS.get(op.type, ())):
    return [CONSTANT]
  if op.type in _STRUCTURE or op.type in CONTROL_FLOW:
    return []
  if op.type not in xla_operations() and not _reads_strings(op):
    return [NO_KERNEL]
  return [UNKNOWN_DIMENSION] if _loses_dimension(node) else []


@functools.cache
def xla_operations() -> frozenset[str]:
  """Returns the types of operations that this TensorFlow's XLA implements."""
  tf.function(tf.identity, jit_compile=True)(0.0)  # They are registered when something is compiled.
  registered = kernels.get_all_registered_kernels().kernel
  return frozenset(kernel.op for kernel in registered if kernel.device_type == "XLA_CPU_JIT")


def _new_types(op: tf.Operation) -> list[tf.DType]:
  """Returns the types of results that no input has: where a type comes in."""
  if op.type in _STRUCTURE or op.type in CONTROL_FLOW:
    return []
  given = {tensor.dtype for tensor in op.inputs}
  return [tensor.dtype for tensor in op.outputs if tensor.dtype not in given]


def _reads_strings(op: tf.Operation) -> bool:
  """Whether an operation has no kernel for the strings it was given, which were reported where they came from."""
  return any(tensor.dtype == tf.string for tensor in op.inputs)


def _is_unbounded(size: tf.Tensor, node: Node) -> bool:
  tensor, scope = resolved(size, node.scope)
  value = tf.get_static_value(tensor)
  return int(value) < 0 if value is not None else not is_fixed(tensor, scope)


def _loses_dimension(node: Node) -> bool:
  """Whether a result has a dimension that follows from computed values, though all inputs have known shapes."""
  op = node.op
  numeric = [tensor for tensor in op.outputs if tensor.dtype not in (tf.resource, tf.variant)]
  if all(tensor.shape.is_fully_defined() for tensor in numeric):
    return False
  given = [tensor for tensor in op.inputs if tensor.dtype not in (tf.resource, tf.variant)]
  if not all(tensor.shape.is_fully_defined() for tensor in given):
    return False  # It was lost before.
  if op.type in _CONSTANTS and op.type != "StridedSlice":
    return False  # What decides over its shape is fixed.
  sizes = [tensor for tensor in given if tensor.dtype.is_integer or tensor.shape.rank == 0]
  return not all(is_fixed(tensor, node.scope) for tensor in sizes)
