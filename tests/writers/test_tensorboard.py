import math
import os

import numpy as np
import pytest
import tensorflow as tf
from tensorboard.backend.event_processing import event_accumulator, plugin_event_accumulator
from tensorboard.util import tensor_util

from official_trainer.writers.tensorboard import TensorBoardWriter


@pytest.fixture(params=["local", "ram"])
def model_dir(request, tmp_path):
  return str(tmp_path) if request.param == "local" else f"ram://tensorboard-{tmp_path.name}"


def tensorboards_reader(folder):
  """The reader behind TensorBoard's own pages."""
  reader = plugin_event_accumulator.EventAccumulator(folder, tensor_size_guidance={"scalars": 0})
  reader.Reload()
  return reader


def everybodys_reader(folder):
  """The reader of scripts and notebooks."""
  guidance = {event_accumulator.SCALARS: 0}
  return event_accumulator.EventAccumulator(folder, size_guidance=guidance).Reload()


def points(folder, tag):
  """Returns [(step, value)] of a tag, on which both readers must agree."""
  seen = [(event.step, event.value) for event in everybodys_reader(folder).Scalars(tag)]
  events = tensorboards_reader(folder).Tensors(tag)
  shown = [(event.step, tensor_util.make_ndarray(event.tensor_proto).item()) for event in events]
  assert repr(seen) == repr(shown)
  return seen


def steps(folder, tag):
  return [step for step, _ in points(folder, tag)]


def losses(first, last, offset=0.0):
  return [(step, "train", {"loss": step + offset}) for step in range(first, last + 1)]


def write(model_dir, restored, rows, new_rows, *, time=1_767_225_600.0, close=True):
  """Plays one attempt of a run; without `close` it ends as a crash does, after its last flush."""
  writer = TensorBoardWriter(model_dir, clock=lambda: time)
  writer.open(restored, rows)
  for row in new_rows:
    writer.scalars(*row)
  writer.flush()
  if close:
    writer.close()
  return writer


def test_values_come_back_under_their_names_as_scalars(model_dir):
  values = {"loss": 0.25, "head/boxes/ap": np.float32(0.1), "n": 3, "bad": math.nan, "up": math.inf}
  write(model_dir, 0, [], [(5, "train", values)])
  folder = f"{model_dir}/train"
  assert points(folder, "loss") == [(5, 0.25)]
  assert points(folder, "head/boxes/ap") == [(5, float(np.float32(0.1)))]
  assert points(folder, "n") == [(5, 3.0)]
  assert math.isnan(points(folder, "bad")[0][1])
  assert points(folder, "up") == [(5, math.inf)]
  metadata = tensorboards_reader(folder).summary_metadata["loss"]
  assert metadata.plugin_data.plugin_name == "scalars"


def test_points_carry_the_time_of_the_clock(model_dir):
  write(model_dir, 0, [], losses(1, 1), time=1_234_567.5)
  assert everybodys_reader(f"{model_dir}/train").Scalars("loss")[0].wall_time == 1_234_567.5


def test_timings_and_texts_are_shown_too(model_dir):
  writer = TensorBoardWriter(model_dir)
  writer.open(0, [])
  writer.text(0, "params", "| key | value |")
  writer.timings(2, "validation", {"steps_per_second": 40.0})
  writer.close()
  assert points(f"{model_dir}/validation", "steps_per_second") == [(2, 40.0)]
  reader = everybodys_reader(f"{model_dir}/train")
  assert reader.SummaryMetadata("params").plugin_data.plugin_name == "text"
  text = tensor_util.make_ndarray(reader.Tensors("params")[0].tensor_proto).item()
  assert text == b"| key | value |"


def test_a_folder_appears_with_the_first_value_of_its_mode(tmp_path):
  writer = TensorBoardWriter(tmp_path)
  writer.open(0, [])
  assert os.listdir(tmp_path) == []
  writer.scalars(1, "train", {"loss": 1.0})
  assert os.listdir(tmp_path) == ["train"]
  writer.flush()
  writer.scalars(1, "validation", {"loss": 1.0})
  assert sorted(os.listdir(tmp_path)) == ["train", "validation"]
  writer.close()


def test_modes_go_to_the_folders_they_are_given(tmp_path):
  writer = TensorBoardWriter(tmp_path, {"train": "logs/t", "test": "logs/e"})
  writer.open(0, [])
  writer.scalars(1, "test", {"loss": 1.0})
  assert os.listdir(tmp_path / "logs") == ["e"]
  with pytest.raises(ValueError, match="mode must be one of train, test, got 'validation'"):
    writer.scalars(1, "validation", {"loss": 1.0})
  writer.close()


@pytest.mark.parametrize("close", [True, False])
def test_a_crash_at_10_restored_at_8_gives_one_point_per_step(model_dir, close):
  crashed = write(model_dir, 0, [], losses(1, 10), close=close)
  write(model_dir, 8, losses(1, 8), losses(9, 12, offset=0.5))
  expected = [(step, float(step)) for step in range(1, 9)]
  expected += [(step, step + 0.5) for step in range(9, 13)]
  assert points(f"{model_dir}/train", "loss") == expected
  crashed.close()


def test_half_a_record_of_a_killed_run_hides_nothing_after_it(tmp_path):
  write(tmp_path, 0, [], losses(1, 10))
  (file,) = (tmp_path / "train").iterdir()
  file.write_bytes(file.read_bytes()[:-9])
  write(tmp_path, 8, losses(1, 8), losses(9, 12))
  assert steps(f"{tmp_path}/train", "loss") == list(range(1, 13))


def test_an_evaluation_that_is_repeated_at_the_restored_step_is_not_shown_twice(model_dir):
  """A checkpoint is saved before the evaluation of its step: a restart evaluates there again."""
  evaluations = [(step, "validation", {"loss": 1.0}) for step in (4, 8)]
  write(model_dir, 0, [], losses(1, 8) + evaluations)
  known = losses(1, 8) + evaluations[:1]
  write(model_dir, 8, known, [(8, "validation", {"loss": 2.0}), *losses(9, 9)])
  assert points(f"{model_dir}/validation", "loss") == [(4, 1.0), (8, 2.0)]
  assert steps(f"{model_dir}/train", "loss") == list(range(1, 10))


def test_an_evaluation_that_the_history_knows_is_kept(model_dir):
  rows = [*losses(1, 8), (8, "validation", {"loss": 1.0})]
  write(model_dir, 0, [], rows + losses(9, 10))
  write(model_dir, 8, rows, losses(9, 10))
  assert steps(f"{model_dir}/validation", "loss") == [8]
  assert steps(f"{model_dir}/train", "loss") == list(range(1, 11))


def test_a_run_that_starts_over_at_step_0_leaves_none_of_the_old_points(model_dir):
  write(model_dir, 0, [], losses(0, 5))
  write(model_dir, 0, [], losses(0, 3, offset=0.5))
  assert points(f"{model_dir}/train", "loss") == [(step, step + 0.5) for step in range(4)]


def test_a_crash_before_the_first_checkpoint_leaves_the_config_text_in_place(model_dir):
  writer = TensorBoardWriter(model_dir)
  writer.open(0, [])
  writer.text(0, "params", "| key | value |")
  writer.close()
  write(model_dir, 0, [], losses(2, 6))
  write(model_dir, 0, [], losses(2, 4))
  assert steps(f"{model_dir}/train", "loss") == [2, 3, 4]
  reader = tensorboards_reader(f"{model_dir}/train")  # The other one drops no texts at all.
  assert [event.step for event in reader.Tensors("params")] == [0]


def test_an_evaluation_beside_a_training_run_leaves_the_training_curves_alone(model_dir):
  write(model_dir, 0, [], losses(1, 10))
  write(model_dir, 0, [], [(4, "validation", {"loss": 1.0}), (8, "validation", {"loss": 0.5})])
  write(model_dir, 6, losses(1, 6), [(6, "validation", {"loss": 0.7})])
  assert steps(f"{model_dir}/train", "loss") == list(range(1, 11))
  assert len(tf.io.gfile.listdir(f"{model_dir}/train")) == 1


def test_a_continuous_evaluation_that_starts_again_shows_each_checkpoint_once(model_dir):
  for last in (8, 12):
    evaluations = [(step, "validation", {"loss": 1.0 / step}) for step in range(4, last + 1, 4)]
    write(model_dir, 0, [], evaluations)
  assert steps(f"{model_dir}/validation", "loss") == [4, 8, 12]


def test_points_of_another_program_before_ours_are_dropped_as_well(model_dir):
  with tf.summary.create_file_writer(f"{model_dir}/train").as_default():
    for step in range(1, 11):
      tf.summary.scalar("loss", float(step), step)
  write(model_dir, 8, losses(1, 8), losses(9, 12))
  shown = [event.step for event in tensorboards_reader(f"{model_dir}/train").Tensors("loss")]
  assert shown == list(range(1, 13))


def test_restarts_within_one_second_keep_their_order(model_dir):
  """Files named by clock and counter sort "...10" before "...9"; readers go by the name."""
  for restored in range(12):
    write(model_dir, restored, losses(1, restored), losses(restored + 1, restored + 5))
  assert steps(f"{model_dir}/train", "loss") == list(range(1, 17))


def test_a_restart_on_a_host_whose_clock_is_behind_keeps_the_order(model_dir):
  write(model_dir, 0, [], losses(1, 10), time=1_767_225_600.0)
  write(model_dir, 8, losses(1, 8), losses(9, 12), time=1_767_220_000.0)
  assert steps(f"{model_dir}/train", "loss") == list(range(1, 13))


def test_a_value_beyond_float32_is_shown_as_infinite(model_dir):
  write(model_dir, 0, [], [(1, "train", {"loss": -1.7e308, "tiny": 5e-324})])
  assert points(f"{model_dir}/train", "loss") == [(1, -math.inf)]
  assert points(f"{model_dir}/train", "tiny") == [(1, 0.0)]


def test_a_mode_without_files_gets_no_folder_by_a_restart(tmp_path):
  write(tmp_path, 0, [], losses(1, 2))
  write(tmp_path, 2, losses(1, 2), [])
  assert os.listdir(tmp_path) == ["train"]


def test_flushed_points_are_visible_while_the_file_is_open(model_dir):
  writer = write(model_dir, 0, [], losses(1, 3), close=False)
  assert steps(f"{model_dir}/train", "loss") == [1, 2, 3]
  writer.close()


def test_tensorflows_own_reader_accepts_the_records(tmp_path):
  write(tmp_path, 0, [], losses(1, 2))
  (file,) = (tmp_path / "train").iterdir()
  records = [tf.compat.v1.Event.FromString(r.numpy()) for r in tf.data.TFRecordDataset(str(file))]
  assert records[0].file_version == "brain.Event:2"
  assert [(record.step, record.summary.value[0].simple_value) for record in records[1:]] == [
    (1, 1.0),
    (2, 2.0),
  ]
