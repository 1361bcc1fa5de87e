import types

import numpy as np
import pytest
import tensorflow as tf

from official_trainer.data.config import DataConfig
from official_trainer.data.indexed import Anchor
from official_trainer.data.padding import Batch
from official_trainer.data.skipped import NONE_SKIPPED, SkippedBatches
from official_trainer.errors import ConfigError
from official_trainer.inner_loop import feed as feed_lib
from official_trainer.inner_loop.feed import (
  DistributedFeed,
  EvaluationFeed,
  IndexedFeed,
  SkippingFeed,
  SuppliedFeed,
  train_feed,
  validation_feed,
)
from tests import small_tasks

pytestmark = pytest.mark.usefixtures("logical_cpus")


def feed_of(task_class=small_tasks.Regression, *, num_replicas=1, seed=1, anchor=None, skipped=NONE_SKIPPED, **data):
  params = DataConfig(**{"global_batch_size": 4, **data})
  return train_feed(
    task_class(None),
    params,
    strategy=small_tasks.strategy_of(num_replicas),
    seed=seed,
    anchor=lambda: anchor or Anchor.start(params.global_batch_size),
    skipped=lambda: skipped,
    distribute=None,
  )


def evaluation_of(task_class=small_tasks.Regression, *, num_replicas=1, **data):
  params = DataConfig(**{"global_batch_size": 4, **data})
  return validation_feed(
    task_class(None), params, strategy=small_tasks.strategy_of(num_replicas), seed=1, distribute=None
  )


def targets(dataset, count=5):
  return [batch.inputs[1].numpy().tolist() for batch in dataset.take(count)]


def test_a_source_is_read_by_step():
  feed = feed_of()
  assert isinstance(feed, IndexedFeed) and feed.exact
  assert targets(feed.dataset(3), 4) == targets(feed.dataset(0), 7)[3:]


def test_the_inputs_own_seed_goes_before_that_of_the_run():
  assert targets(feed_of(seed=1).dataset(0)) != targets(feed_of(seed=2).dataset(0))
  assert targets(feed_of(seed=1).dataset(0)) == targets(feed_of().dataset(0))


def test_what_the_data_are_for_is_filled_in():
  seen = []

  class Asking(small_tasks.Regression):
    def build_source(self, params):
      seen.append((params.is_training, params.seed))
      return super().build_source(params)

  feed_of(Asking, seed=9)
  evaluation_of(Asking)
  feed_of(Asking, is_training=False)
  assert [is_training for is_training, _ in seen] == [True, False, False]
  assert seen[0][1] == 9


def test_a_plain_pipeline_is_skipped_forward_and_its_batches_are_padded_when_partial():
  feed = feed_of(small_tasks.PipelineRegression, global_batch_size=5)
  assert isinstance(feed, SkippingFeed) and feed.exact
  whole = list(feed.dataset(0).take(7))
  for expected, batch in zip(whole[4:], feed.dataset(4).take(3), strict=True):
    np.testing.assert_array_equal(expected.inputs[0], batch.inputs[0])
    np.testing.assert_array_equal(expected.mask, batch.mask)
  # An epoch of 24 rows: the fifth batch has four.
  assert [batch.mask.numpy().sum() for batch in whole] == [5, 5, 5, 5, 4, 5, 5]


def test_a_source_can_be_asked_for_and_passed_over():
  assert isinstance(feed_of(resume="index"), IndexedFeed)
  assert isinstance(feed_of(resume="skip"), SkippingFeed)
  with pytest.raises(ValueError, match=r"resume is 'index', but the task's build_source\(\) gives no source"):
    feed_of(small_tasks.PipelineRegression, resume="index")


def test_data_that_start_over_say_so():
  feed = feed_of(small_tasks.PipelineRegression, resume="none")
  assert not feed.exact
  assert targets(feed.dataset(3)) == targets(feed.dataset(0))


@pytest.mark.parametrize("task", [small_tasks.Regression, small_tasks.PipelineRegression])
def test_a_batch_size_is_required(task):
  with pytest.raises(ValueError, match="task.train_data.global_batch_size: must be at least 1, got 0"):
    feed_of(task, global_batch_size=0)
  with pytest.raises(ValueError, match="task.validation_data.global_batch_size: must be at least 1, got 0"):
    evaluation_of(task, global_batch_size=0)


def test_settings_without_effect_on_a_source_are_named(caplog):
  feed_of(cache=True, cycle_length=3)
  assert "task.train_data: cache, cycle_length have no effect" in caplog.text


class Here:
  """A service that makes the data in this process, and remembers whether its workers were to share the work."""

  addresses = ("grpc://a:1", "grpc://b:2")

  def __init__(self, is_ordered):
    self.is_ordered = is_ordered
    self.shared = []

  def distribute(self, dataset, address, *, shares_work):
    self.shared.append(shares_work)
    return dataset


@pytest.mark.parametrize("is_ordered", [True, False])
def test_a_source_is_read_by_step_through_a_data_service_too(monkeypatch, is_ordered):
  here = Here(is_ordered)
  monkeypatch.setattr(feed_lib, "connect", lambda params, path, source: here)
  feed = feed_of(enable_tf_data_service=True, global_batch_size=5)
  assert isinstance(feed, IndexedFeed) and feed.exact is is_ordered and feed.endless
  assert ("no fixed order" in feed.position) is not is_ordered
  assert targets(feed.dataset(3), 7) == targets(feed_of(global_batch_size=5).dataset(3), 7)
  assert here.shared == ([False, False] if is_ordered else [True])


@pytest.mark.parametrize("settings", [{}, {"sharding": False}, {"apply_tf_data_service_before_batching": True}])
def test_a_pipeline_through_a_data_service_keeps_no_position(monkeypatch, settings):
  here = Here(is_ordered=False)
  monkeypatch.setattr(feed_lib, "connect", lambda params, path: here)
  feed = feed_of(small_tasks.PipelineRegression, enable_tf_data_service=True, **settings)
  assert not feed.exact and "not kept, since a tf.data service" in feed.position
  assert targets(feed.dataset(3)) == targets(feed_of(small_tasks.PipelineRegression).dataset(0))
  assert here.shared == [settings.get("sharding", True)]


@pytest.mark.parametrize("task", [small_tasks.Regression, small_tasks.PipelineRegression])
def test_processes_that_train_together_take_no_batches_from_a_service_in_no_fixed_order(monkeypatch, task):
  monkeypatch.setattr(feed_lib, "connect", lambda *args, **kwargs: Here(is_ordered=False))
  monkeypatch.setattr(feed_lib, "build_peers", lambda strategy: types.SimpleNamespace(num=2, index=0))
  with pytest.raises(ConfigError, match=r"(?s)enable_tf_data_service: gives batches in no fixed order.*build_source"):
    feed_of(task, enable_tf_data_service=True)


def test_a_task_of_model_garden_that_reads_from_a_data_service_keeps_no_position():
  from official.utils.testing import mock_task

  feed = train_feed(
    mock_task.MockTask(),
    DataConfig(enable_tf_data_service=True),
    strategy=small_tasks.strategy_of(1),
    seed=1,
    anchor=None,
    skipped=lambda: NONE_SKIPPED,
    distribute=lambda build, params: build,
  )
  assert not feed.exact and "the task reads from a tf.data service" in feed.position
  assert feed.dataset(5) == feed.dataset(0)  # Nothing is skipped: what would come next is not what came before.


def test_an_evaluation_through_a_data_service_is_refused():
  with pytest.raises(ConfigError, match="validation_data.enable_tf_data_service: must be false: an evaluation takes"):
    evaluation_of(enable_tf_data_service=True)


@pytest.mark.parametrize("task", [small_tasks.Regression, small_tasks.PipelineRegression])
@pytest.mark.parametrize("num_replicas", [1, 4])
def test_an_evaluation_goes_through_every_example_once(task, num_replicas):
  feed = evaluation_of(task, num_replicas=num_replicas, global_batch_size=3)
  assert isinstance(feed, EvaluationFeed)
  for _ in range(2):
    batches = list(feed.dataset())
    assert {batch.mask.shape[0] for batch in batches} == {3 if num_replicas == 1 else 4}
    seen = np.concatenate([batch.inputs[1][batch.mask > 0] for batch in batches])
    np.testing.assert_array_equal(seen, small_tasks.rows(10, seed=1)[1])


def test_replicas_get_slices_with_their_part_of_the_mask():
  strategy = small_tasks.strategy_of(4)
  feed = evaluation_of(num_replicas=4, global_batch_size=6)
  with strategy.scope():
    batch = feed.to_replicas(next(iter(feed.dataset())))
    masks = strategy.experimental_local_results(batch.mask)
  assert isinstance(batch, Batch)
  assert [mask.numpy().tolist() for mask in masks] == [[1, 1], [1, 1], [1, 1], [0, 0]]


def test_a_supplied_dataset_keeps_no_position():
  dataset = tf.data.Dataset.range(3)
  feed = SuppliedFeed(dataset)
  assert feed.dataset(5) is dataset
  assert not feed.exact and "not kept" in feed.position
  assert feed.to_replicas(1) == Batch(1, None)


def test_tasks_of_model_garden_are_distributed_for_each_replica():
  from official.utils.testing import mock_task

  strategy = small_tasks.strategy_of(2)
  task = mock_task.MockTask()
  asked = []
  feed = train_feed(
    task,
    DataConfig(),
    strategy=strategy,
    seed=1,
    anchor=lambda: None,
    skipped=lambda: NONE_SKIPPED,
    distribute=lambda build, params: asked.append(build) or "distributed",
  )
  assert isinstance(feed, DistributedFeed)
  assert feed.dataset(0) == "distributed"
  assert asked == [task.build_inputs]
  feed.dataset(3)
  assert asked[1] is not task.build_inputs
  assert isinstance(validation_feed(task, DataConfig(), strategy=strategy, seed=1, distribute=None), DistributedFeed)


def test_a_feed_knows_whether_its_data_can_end():
  class Once(small_tasks.PipelineRegression):
    def build_inputs(self, params, input_context=None):
      return super().build_inputs(params, input_context).take(5)

  for feed, endless in [
    (feed_of(), True),
    (feed_of(small_tasks.PipelineRegression), True),
    (feed_of(small_tasks.PipelineRegression, resume="none"), True),
    (feed_of(Once), False),
    (evaluation_of(), False),
    (SuppliedFeed(tf.data.Dataset.range(3).repeat()), True),
    (SuppliedFeed(tf.data.Dataset.range(3)), False),
    (SuppliedFeed({"a": tf.data.Dataset.range(3)}), False),
  ]:
    feed.dataset(0)
    assert feed.endless is endless, feed


class Unseeded(small_tasks.PipelineRegression):
  """A shuffle without a seed of its own."""

  def build_inputs(self, params, input_context=None):
    dataset = super().build_inputs(params, input_context)
    return dataset.unbatch().shuffle(24).batch(params.global_batch_size)


@pytest.mark.parametrize("task", [small_tasks.Regression, small_tasks.PipelineRegression, Unseeded])
def test_every_exact_input_steps_over_what_is_left_out_and_can_be_made_again(task):
  whole = targets(feed_of(task).dataset(0), 20)
  feed = feed_of(task, skipped=SkippedBatches.of([(2, 4), (15, 16)]))
  kept = [*whole[:2], *whole[4:15], *whole[16:]]
  assert whole[0] != whole[2]
  for step in (0, 1, 2, 11, 0):
    assert targets(feed.dataset(step), 4) == kept[step : step + 4]


@pytest.mark.parametrize(
  ("written", "named"),
  [
    ("nowhere/*.record", ["input_path: names no file that can be read, got 'nowhere/*.record'"]),
    (("HERE", "nowhere"), ["input_path: names no file that can be read, got 'nowhere'"]),
    ({"a": "HERE", "b": "nowhere,there"}, ["input_path.b: names no file", "got 'nowhere'", "got 'there'"]),
  ],
)
def test_paths_that_name_no_file_are_refused_all_of_them(tmp_path, written, named):
  (tmp_path / "here").touch()

  def placed(value):
    if isinstance(value, dict):
      return {name: placed(item) for name, item in value.items()}
    return value.replace("HERE", str(tmp_path / "h*")) if isinstance(value, str) else tuple(map(placed, value))

  with pytest.raises(ConfigError) as raised:
    feed_of(input_path=placed(written))
  for text in named:
    assert text in str(raised.value)
  with pytest.raises(ConfigError, match="task.validation_data.input_path"):
    evaluation_of(input_path=placed(written))


def test_a_batch_that_model_gardens_tasks_cannot_divide_is_refused():
  from official.utils.testing import mock_task

  strategy = small_tasks.strategy_of(2)
  arguments = {"strategy": strategy, "seed": 1, "distribute": None}
  with pytest.raises(ConfigError, match=r"train_data.global_batch_size: must divide by the number of replicas \(2\)"):
    train_feed(
      mock_task.MockTask(), DataConfig(global_batch_size=5), anchor=None, skipped=lambda: NONE_SKIPPED, **arguments
    )
  with pytest.raises(ConfigError, match="validation_data.global_batch_size: must divide"):
    validation_feed(mock_task.MockTask(), DataConfig(global_batch_size=5), **arguments)


@pytest.mark.parametrize("task", [small_tasks.Regression, small_tasks.PipelineRegression])
def test_an_evaluation_knows_its_batches(task):
  evaluated, trained = evaluation_of(task), feed_of(task)
  for feed in (evaluated, trained):
    feed.dataset(0)
  assert evaluated.num_batches == 3
  assert trained.num_batches is None


# A comma in the name of a file was taken for the border of two names.
def test_a_path_that_holds_a_comma_is_one_path(tmp_path):
  (tmp_path / "a,b").touch()
  feed_of(input_path=str(tmp_path / "a,b"))


# They ended the start with a TypeError.
def test_values_that_are_no_paths_are_left_to_the_task(tmp_path):
  feed_of(input_path={"here": str(tmp_path), "weight": 3, "nothing": None, "more": {"of": "these"}})
