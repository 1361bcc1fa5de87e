"""Kill it anywhere, type the command again: the same weights, slots, averages, history and best, bit for bit."""

import os
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest
import tensorflow as tf

from official_trainer.checkpoint.best_folder import best_checkpoint_in, read_record
from official_trainer.testing.compare import differences
from tests.kill import driver, soak_report

TRAIN_STEPS = 600
OVERRIDES = (
  f"trainer.train_steps={TRAIN_STEPS},trainer.steps_per_loop=20,trainer.summary_interval=20,"
  "trainer.checkpoint_interval=70,trainer.validation_interval=40,runtime.seed=11,"
  f"trainer.optimizer_config.learning_rate.cosine.decay_steps={TRAIN_STEPS}"
)
REPLICAS = {
  "one device": "runtime.distribution_strategy=one_device",
  "two mirrored replicas": "runtime.distribution_strategy=mirrored,runtime.num_virtual_devices=2",
}


@pytest.fixture(scope="session")
def soaked() -> Iterator[list[soak_report.Soaked]]:
  """Gathers the runs that were killed and ended well; writes them into the page that SOAK_REPORT names."""
  runs: list[soak_report.Soaked] = []
  yield runs
  if runs and (page := os.environ.get("SOAK_REPORT")):
    soak_report.write(Path(page), runs, TRAIN_STEPS)


@pytest.fixture(scope="module", params=list(REPLICAS))
def uninterrupted(request, tmp_path_factory) -> tuple[Path, str]:
  """Returns the folder of a run that nobody disturbed, and the settings of the run."""
  overrides = f"{OVERRIDES},{REPLICAS[request.param]}"
  model_dir = tmp_path_factory.mktemp("uninterrupted") / "run"
  driver.run_to_end(driver.command(model_dir, "digits/cnn_ema", overrides))
  return model_dir, overrides


class BestFolder:
  """Looks into the folder of the best weights after each kill: it loads, and never gets worse."""

  def __init__(self, model_dir: Path):
    self._folder = model_dir / "best_ckpt"
    self._best = 0.0

  def check(self) -> None:
    record = read_record(str(self._folder))
    if record is None:
      assert self._best == 0.0, "the record of the best has gone"
      return
    assert record["accuracy"] >= self._best, f"the best was {self._best}, now {record}"
    self._best = record["accuracy"]
    reader = tf.train.load_checkpoint(best_checkpoint_in(str(self._folder)))
    for name in reader.get_variable_to_shape_map():
      reader.get_tensor(name)


def killed_run_equals(uninterrupted: tuple[Path, str], model_dir: Path, seed: int, kills: int) -> list[driver.Kill]:
  reference, overrides = uninterrupted
  arguments = driver.command(model_dir, "digits/cnn_ema", overrides)
  best = BestFolder(model_dir)
  places = driver.kill_repeatedly(
    arguments, model_dir, seed=seed, kills=kills, train_steps=TRAIN_STEPS, after_each=best.check
  )
  driver.run_to_end(arguments)
  best.check()
  assert differences(reference, model_dir) == []
  leftovers = [path.name for path in model_dir.rglob("*") if "_temp" in path.name or ".tmp-" in path.name]
  assert leftovers == []
  assert len(list((model_dir / "best_ckpt").glob("*.index"))) == 1
  return places


@pytest.mark.slow
def test_a_run_killed_four_times_ends_with_the_bits_of_the_uninterrupted_run(uninterrupted, tmp_path):
  killed_run_equals(uninterrupted, tmp_path / "run", seed=1, kills=4)


@pytest.mark.slow
def test_a_run_stopped_by_signals_saves_and_ends_with_the_bits_of_the_uninterrupted_run(uninterrupted, tmp_path):
  reference, overrides = uninterrupted
  model_dir = tmp_path / "run"
  arguments = driver.command(model_dir, "digits/cnn_ema", overrides)
  stops = [(signal.SIGTERM, 40, 0.03, 42), (signal.SIGINT, 120, 0.05, 130)]
  for number, step, delay_secs, code in stops:
    assert driver.stop_by_signal(arguments, model_dir, number, step=step, delay_secs=delay_secs) == code
    saved = max(int(path.name.split(".")[0].removeprefix("ckpt-")) for path in model_dir.glob("ckpt-*.manifest.json"))
    assert saved >= driver.last_step(model_dir) >= step
  driver.run_to_end(arguments)
  assert differences(reference, model_dir) == []


@pytest.mark.soak
@pytest.mark.parametrize("seed", [2, 3, 4, 5, 6])
def test_a_run_killed_ten_times_ends_with_the_bits_of_the_uninterrupted_run(uninterrupted, tmp_path, seed, soaked):
  kills = killed_run_equals(uninterrupted, tmp_path / "run", seed=seed, kills=10)
  replicas = next(name for name, settings in REPLICAS.items() if settings in uninterrupted[1])
  soaked.append(soak_report.Soaked(replicas, seed, tuple(kills)))
