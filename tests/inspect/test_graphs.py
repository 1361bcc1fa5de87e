"""What replicas compute, traced anew: of a trainer of one replica, of two, and of batches without a fixed shape."""

import gzip
import os

import numpy as np
import pytest
import tensorflow as tf

from official_trainer.inspect.cost import StepCost, step_cost
from official_trainer.inspect.graph_walk import walk
from official_trainer.inspect.graphs import dump_graphs
from official_trainer.inspect.memory import live_bytes
from official_trainer.inspect.replica_graphs import FORWARD, UPDATE, ReplicaGraphs
from tests import small_tasks

pytestmark = pytest.mark.usefixtures("logical_cpus")


class Ragged(small_tasks.Regression):
  """Batches whose size is not known before they come, as tasks of Model Garden may have them."""

  def build_losses(self, labels, model_outputs, aux_losses=None):
    return tf.reduce_mean(super().build_losses(labels, model_outputs))


def begun(num_replicas=1, **kwargs):
  trainer = small_tasks.build_trainer(num_replicas=num_replicas, **kwargs)
  small_tasks.train(trainer, 2)
  return trainer


@pytest.fixture(scope="module")
def one():
  return begun(task=lambda config: small_tasks.Regression(config, layers=small_tasks.everything))


@pytest.fixture(scope="module")
def two(logical_cpus):
  return begun(2)


@pytest.fixture(scope="module")
def moving():
  data = tf.data.Dataset.from_tensor_slices(small_tasks.rows(8)).batch(4).repeat()
  return begun(task=Ragged, train_dataset=data)


def graphs_of(trainer):
  with trainer.strategy.scope():
    return ReplicaGraphs(trainer)


def dumped(trainer, folder, level):
  with trainer.strategy.scope():
    lines = dump_graphs(ReplicaGraphs(trainer), str(folder), level)
  return lines, {name: os.path.getsize(folder / name) for name in sorted(os.listdir(folder))}


def test_a_function_holds_one_replicas_rows_of_the_batch(one, two):
  for trainer, rows in ((one, 4), (two, 2)):
    graphs = graphs_of(trainer)
    assert [list(spec.shape) for spec in graphs.specs] == [[rows, 3], [rows, 1]]
    assert graphs.num_examples == rows and graphs.moving_shape is None
  assert graphs_of(one).num_replicas == 1 and graphs_of(two).num_replicas == 2


def test_the_update_has_gradients_and_the_forward_pass_has_none(one):
  with one.strategy.scope():
    graphs = ReplicaGraphs(one)
    names = {name: [node.op.name for node in walk(graphs.graph(name))] for name in (FORWARD, UPDATE)}
  assert any("gradient" in name for name in names[UPDATE])
  assert not any("gradient" in name for name in names[FORWARD])


def test_tracing_changes_no_value_and_not_the_trainers_own_traces(one):
  before, traces = small_tasks.bits(one), one.trace_counts
  with one.strategy.scope():
    step_cost(one, ReplicaGraphs(one))
  assert small_tasks.bits(one) == before and one.trace_counts == traces
  small_tasks.train(one, 2)
  assert one.trace_counts == traces


def test_a_step_of_each_of_two_replicas_costs_half_of_the_forward_pass_of_one(two):
  alone = begun()
  costs = []
  for trainer in (alone, two):
    with trainer.strategy.scope():
      costs.append(step_cost(trainer, ReplicaGraphs(trainer)))
  assert costs[0].num_examples == 2 * costs[1].num_examples == 4
  assert costs[0].forward_flops == 2 * costs[1].forward_flops == 4 * (2 * 3 + 1)
  assert costs[0].step_flops > costs[1].step_flops > 0
  assert costs[0].peak_bytes > costs[1].peak_bytes > sum(v.numpy().nbytes for v in two.state.variables())


@pytest.mark.parametrize("num_replicas", [1, 2])
def test_a_step_in_parts_takes_the_same_operations_and_room_for_the_sums(num_replicas):
  costs = []
  for parts in (1, 2):
    trainer = begun(num_replicas, config=small_tasks.experiment(batch_size=64, gradient_accumulation_steps=parts))
    with trainer.strategy.scope():
      costs.append(step_cost(trainer, ReplicaGraphs(trainer)))
  whole, in_parts = costs
  assert in_parts.forward_flops == whole.forward_flops
  # Two halves of the batch, and what is done once for each part.
  assert whole.step_flops < in_parts.step_flops < 1.2 * whole.step_flops
  assert sum(variable.shape.num_elements() for variable in trainer.step_variables) == 4 + 1


def test_what_another_replica_holds_takes_no_memory_of_the_first(two):
  with two.strategy.scope():
    graphs = ReplicaGraphs(two)
    update = graphs.graph(UPDATE)
  devices = {op.device for op in update.get_operations()} - {""}
  assert graphs.first_device in devices and len(devices) == 2
  assert live_bytes(update, graphs.first_device) < live_bytes(update)


def test_a_batch_without_a_fixed_shape_has_no_cost_and_the_reason_is_said(moving):
  with moving.strategy.scope():
    cost = step_cost(moving, ReplicaGraphs(moving))
  assert cost.scalars == {}
  assert str(cost) == (
    "the cost of a step is not estimated: a part of the batch has the shape (None, 3), which is not fixed"
  )


def test_a_cost_is_one_line_and_numbers_with_units():
  cost = StepCost(num_examples=32, forward_flops=2_500_000_000, step_flops=7_600_000_000, peak_bytes=1_250_000_000)
  assert str(cost) == (
    "a step of one replica, 32 examples: 2.5 GFLOPs forward, 7.6 GFLOPs in all; about 1.25 GB of memory at the peak"
  )
  assert cost.scalars == {"gflops_forward": 2.5, "gflops_step": 7.6, "peak_memory_mb": 1250.0}


def test_text_is_xlas_program_before_and_after_it_was_compiled(one, tmp_path):
  lines, sizes = dumped(one, tmp_path, "text")
  assert list(sizes) == ["forward.hlo.txt", "forward.optimized_hlo.txt", "update.hlo.txt", "update.optimized_hlo.txt"]
  assert all(sizes.values())
  assert lines[1] == "update: XLA's program is in update.hlo.txt, update.optimized_hlo.txt"
  assert (tmp_path / "update.hlo.txt").read_text().startswith("HloModule")
  assert "is_scheduled=true" in (tmp_path / "update.optimized_hlo.txt").read_text()
  assert "f32[4,3]" in (tmp_path / "forward.hlo.txt").read_text()


# To XLA each part had as many rows as the whole: it refused the step, "Incompatible shapes: [4,8] vs. [2,8]".
def test_xla_takes_a_step_in_parts(tmp_path):
  trainer = begun(
    task=lambda config: small_tasks.Regression(config, layers=small_tasks.everything),
    config=small_tasks.experiment(gradient_accumulation_steps=2),
  )
  _, sizes = dumped(trainer, tmp_path, "text")
  assert "update.optimized_hlo.txt" in sizes


def test_several_replicas_and_moving_shapes_have_tensorflows_graph_and_the_reason(two, moving, tmp_path):
  reasons = {
    two: "2 replicas compute in one graph, or sum their gradients outside of it; XLA takes what one computes alone",
    moving: "a part of the batch has the shape (None, 3), which is not fixed",
  }
  for trainer, reason in reasons.items():
    lines, sizes = dumped(trainer, tmp_path, "all")
    assert list(sizes) == ["forward.graph.pbtxt", "update.graph.pbtxt"]
    assert lines[0] == f"forward: TensorFlow's graph is in forward.graph.pbtxt, since {reason}"
    text = (tmp_path / "update.graph.pbtxt").read_text()
    assert text.startswith(f"# {reason}\n")
    from google.protobuf import text_format

    assert len(text_format.Parse(text, tf.compat.v1.GraphDef()).node) > 10


def test_t54_compressed_graphs_hold_the_same_text_in_less_than_half_the_bytes(two, tmp_path):
  with two.strategy.scope():
    graphs = ReplicaGraphs(two)
    dump_graphs(graphs, str(tmp_path / "plain"), "text")
    lines = dump_graphs(graphs, str(tmp_path / "small"), "text", compress=True)
  assert lines[0].startswith("forward: TensorFlow's graph is in forward.graph.pbtxt.gz, since")
  assert sorted(os.listdir(tmp_path / "small")) == ["forward.graph.pbtxt.gz", "update.graph.pbtxt.gz"]
  for path in (tmp_path / "plain").iterdir():
    compressed = (tmp_path / "small" / f"{path.name}.gz").read_bytes()
    assert gzip.decompress(compressed) == path.read_bytes()
    assert len(compressed) < len(path.read_bytes()) / 2


class Printing(small_tasks.Regression):
  """Calls Python from inside the step, which no compiler takes."""

  def build_losses(self, labels, model_outputs, aux_losses=None):
    losses = super().build_losses(labels, model_outputs)
    return losses + tf.ensure_shape(tf.numpy_function(np.zeros_like, [losses], tf.float32), losses.shape)


def test_what_xla_refuses_has_tensorflows_graph_and_xlas_words(tmp_path):
  lines, sizes = dumped(begun(task=Printing), tmp_path, "text")
  assert list(sizes) == ["forward.hlo.txt", "forward.optimized_hlo.txt", "update.graph.pbtxt"]
  assert lines[1].startswith("update: TensorFlow's graph is in update.graph.pbtxt, since XLA refuses it: ")
  assert "PyFunc" in lines[1]
