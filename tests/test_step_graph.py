"""What a step has in its graph for the sake of reliability: these operations, and no others."""

from collections import Counter

import pytest
import tensorflow as tf

from official_trainer.stop import StopRequest
from official_trainer.timing.data_wait import DataWait
from tests import small_tasks

pytestmark = pytest.mark.usefixtures("logical_cpus")


def operations(num_replicas, **kwargs):
  """Counts the operations of a compiled inner loop by type; constants and identities cost nothing."""
  settings = {key: kwargs.pop(key) for key in ("skip_nonfinite_updates",) if key in kwargs}
  trainer = small_tasks.build_trainer(small_tasks.experiment(**settings), num_replicas=num_replicas, **kwargs)
  with trainer.strategy.scope():
    loop = trainer.create_train_loop_fn()
    trainer.train_loop_begin()
    graph = loop.get_concrete_function(iter(trainer.train_dataset), tf.constant(2)).graph.as_graph_def()
  nodes = [*graph.node, *(node for function in graph.library.function for node in function.node_def)]
  return Counter(node.op for node in nodes if node.op not in ("Const", "Identity", "NoOp", "Placeholder"))


@pytest.mark.parametrize("num_replicas", [1, 2])
def test_stopping_and_measuring_add_these_operations_and_no_more(num_replicas):
  bare = operations(num_replicas)
  watched = operations(num_replicas, stop=StopRequest(), data_wait=DataWait())
  assert watched - bare == Counter(
    {
      # The loop's condition: whether somebody asked for a stop.
      "ReadVariableOp": 1, "LogicalNot": 1, "LogicalAnd": 1,
      # The wait for the next batch. Its difference is one more subtraction, as the plain loop's range has one.
      "Timestamp": 2, "AssignAddVariableOp": 1,
    }
  )  # fmt: skip
  assert watched["Sub"] == bare["Sub"]


def test_without_it_the_step_holds_no_operation_of_the_guard():
  free = operations(1)
  assert "IsFinite" not in free and "If" not in free and "StatelessIf" not in free
  assert operations(1, skip_nonfinite_updates=True)["IsFinite"] > 0
