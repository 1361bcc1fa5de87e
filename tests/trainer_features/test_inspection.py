"""What a run tells about its model and its steps, each behaviour by its number in the list of features."""

import json
import re
import weakref

import numpy as np
import pytest
import tensorflow as tf
import tf_keras
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
from tensorflow.tsl.profiler.protobuf import xplane_pb2

from official_trainer.config.loading import load
from official_trainer.runner import Runner
from tests import small_tasks, tiny

EVERYTHING = "trainer.inspect_model=true,trainer.dump_graphs=all,trainer.profile.steps=[3,5]"
MODEL = "runtime.seed=7,task.hidden=[4],task.dropout=0.5,task.batchnorm=true"
COSTS = {"parameters", "gflops_forward", "gflops_step", "peak_memory_mb"}


def run(folder, *overrides, mode="train", **kwargs):
  tf_keras.backend.reset_uids()  # Layers without a name are named as in a new process.
  loaded = load(experiment="tiny", params_override=[MODEL, *overrides])
  return Runner(loaded, mode=mode, model_dir=str(folder), quiet=True, **kwargs).run()


@pytest.fixture(scope="module")
def no_pictures():
  from official_trainer.run import session

  with pytest.MonkeyPatch.context() as patched:
    patched.setattr(session, "plot_history", lambda *args: None)
    yield


@pytest.fixture(scope="module")
def looked_at(tmp_path_factory, no_pictures):
  """A run of six steps with everything on: its folder, and its result."""
  folder = tmp_path_factory.mktemp("looked_at")
  return folder, run(folder, EVERYTHING)


@pytest.fixture(scope="module")
def plain(tmp_path_factory, no_pictures):
  """The same run with nothing on."""
  folder = tmp_path_factory.mktemp("plain")
  run(folder)
  return folder


def timings(folder):
  lines = [json.loads(line) for line in (folder / "timings.jsonl").read_text("utf-8").splitlines()]
  return {line["step"]: line["timings"] for line in lines if COSTS & line["timings"].keys()}


def traces(folder):
  """Returns the steps that each recording names."""
  found = []
  for path in sorted(folder.glob("profile/plugins/profile/*/*.xplane.pb")):
    space = xplane_pb2.XSpace.FromString(path.read_bytes())
    found.append(sorted(step for plane in space.planes for step in named_steps(plane)))
  return found


def named_steps(plane):
  for line in plane.lines:
    for event in line.events:
      if plane.event_metadata[event.metadata_id].name == "train":
        names = {plane.stat_metadata[stat.metadata_id].name: stat for stat in event.stats}
        yield names["step_num"].int64_value or names["step_num"].uint64_value


def test_looking_changes_no_bit_of_the_run_and_a_run_that_is_not_looked_at_has_no_files_of_it(looked_at, plain):
  folder, _ = looked_at
  tiny.assert_same_contents(folder / "ckpt-6", plain / "ckpt-6")
  assert (folder / "history.jsonl").read_bytes() == (plain / "history.jsonl").read_bytes()
  assert not (plain / "graphs").exists() and not (plain / "profile").exists()
  assert timings(plain) == {}


def test_t48_the_programs_of_forward_pass_and_update_are_there_after_the_first_step(looked_at):
  folder, _ = looked_at
  for name in ("forward", "update"):
    for ending in ("hlo.txt", "optimized_hlo.txt"):
      assert (folder / "graphs" / f"{name}.{ending}").read_text().startswith("HloModule")
    assert (folder / "graphs" / f"{name}.optimized_hlo.dot").read_text().startswith("digraph")


def test_t50_d29_the_parameters_are_listed_and_their_total_is_that_of_numpy(looked_at, plain):
  folder, result = looked_at
  total = sum(variable.numpy().size for variable in result.model.variables)
  lines = (folder / "parameters.txt").read_text("utf-8").splitlines()
  assert int(re.match(r"([\d,]+) parameters", lines[-1])[1].replace(",", "")) == total
  assert sum(int(line.split()[3]) for line in lines[1:-2]) == total
  assert timings(folder)[0]["parameters"] == total
  assert (plain / "parameters.txt").read_bytes() == (folder / "parameters.txt").read_bytes()
  events = EventAccumulator(str(folder / "train"), size_guidance={"tensors": 0}).Reload()
  (shown,) = events.Tensors("parameter_table")
  assert shown.step == 0
  assert f"{total:,} parameters" in shown.tensor_proto.string_val[0].decode()


def test_d47_some_steps_are_recorded_and_the_run_goes_on(looked_at):
  folder, result = looked_at
  assert len(traces(folder)) == 1
  assert result.state.step == 6


def test_d50_the_loops_of_a_recording_are_named_with_their_steps(looked_at):
  folder, _ = looked_at
  assert traces(folder) == [[3, 4]]


def test_t49_d49_a_run_that_goes_on_tells_its_costs_no_more_and_draws_only_what_it_is_told_to(looked_at):
  folder, _ = looked_at
  before = timings(folder)
  assert before.keys() == {0} and before[0].keys() == COSTS
  assert 0 < before[0]["gflops_forward"] < before[0]["gflops_step"]
  for path in (folder / "graphs").iterdir():
    path.unlink()
  (folder / "PROFILE").touch()
  changes = "trainer.dump_graphs=text,trainer.train_steps=12"
  result = run(folder, EVERYTHING, changes, allow_config_change=["trainer.train_steps"])
  assert result.state.step == 12
  assert timings(folder) == before
  events = EventAccumulator(str(folder / "train")).Reload()
  assert [event.step for event in events.Scalars("gflops_step")] == [0]
  assert len(events.Tensors("parameter_table")) == 1
  names = sorted(path.name for path in (folder / "graphs").iterdir())
  assert names == ["forward.hlo.txt", "forward.optimized_hlo.txt", "update.hlo.txt", "update.optimized_hlo.txt"]
  # The five steps that were asked for by the file, which is gone.
  assert traces(folder)[1:] == [[6, 8, 10]]
  assert not (folder / "PROFILE").exists()


class Remembered(tf_keras.initializers.Initializer):
  """Makes zeros, and keeps a weak eye on them."""

  def __init__(self):
    self.made = []

  def __call__(self, shape, dtype=None, **kwargs):
    value = tf.zeros(shape, dtype or tf.float32)
    self.made.append(weakref.ref(value))
    return value


def test_d66_initial_values_are_gone_once_every_replica_has_its_copy(logical_cpus):
  initializer = Remembered()
  trainer = small_tasks.build_trainer(
    task=lambda config: small_tasks.Regression(
      config, layers=lambda: [tf_keras.layers.Dense(1, kernel_initializer=initializer)]
    ),
    num_replicas=2,
  )
  kernel = trainer.model.layers[1].kernel
  assert len(kernel.values) == 2 and all(np.all(local.numpy() == 0) for local in kernel.values)
  assert initializer.made and all(made() is None for made in initializer.made)
