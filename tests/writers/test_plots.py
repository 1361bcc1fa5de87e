import io
import math
import os
from pathlib import Path

import matplotlib
import matplotlib.image
import pytest
import tensorflow as tf

from official_trainer.writers import plots
from official_trainer.writers.plots import plot_history
from tests import layers


def rows(num_rows, value=lambda step: 1.0 / (step + 1)):
  for step in range(num_rows):
    yield step, "train", {"training_loss": value(step), "accuracy": 0.5, "learning_rate": 1e-3}
    if step % 2:
      yield step, "validation", {"validation_loss": value(step), "accuracy": 0.4}


def read_png(path):
  with tf.io.gfile.GFile(str(path), "rb") as file:
    return matplotlib.image.imread(io.BytesIO(file.read()), format="png")


def ink(path):
  """Returns how many pixels of the picture are neither white nor grey."""
  pixels = read_png(path)[..., :3]
  return int((pixels.max(axis=-1) - pixels.min(axis=-1) > 0.2).sum())


HISTORIES = {
  "a whole run": list(rows(200)),
  "a single point": list(rows(1)),
  "nothing": [],
  "NaN from step 5": list(rows(10, lambda step: math.nan if step >= 5 else 1.0)),
  "only NaN": list(rows(10, lambda step: math.nan)),
  "only infinities": list(rows(10, lambda step: (-1) ** step * math.inf)),
  "a lone point in a long gap": list(rows(200, lambda step: 1.0 if step == 100 else math.nan)),
  "huge and tiny": list(rows(10, lambda step: 10.0 ** (30 * step - 150))),
  "validation only": [(4, "validation", {"validation_loss": 1.0})],
  "a long name": [(1, "train", {"head/bounding_boxes/average_precision_at_50_small": 1.0})],
  "dollars and braces": [(1, "train", {"$x^{": 1.0, "_private": 2.0})],
}


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize("name", HISTORIES)
def test_any_history_becomes_a_picture_without_a_warning(name, tmp_path):
  plot_history(HISTORIES[name], tmp_path / "history.png", "digits/cnn $")
  height, width, _ = read_png(tmp_path / "history.png").shape
  assert width >= 600 and height >= 300
  assert (ink(tmp_path / "history.png") > 0) == (name != "nothing")
  assert os.listdir(tmp_path) == ["history.png"]


def test_the_parts_of_a_metric_are_drawn_beside_it_and_evaluation_sets_apart():
  norms = {"norm": 3.0, "norm/head": 1.0, "norm/stem": 2.0, "model/drop/rate": 0.1}
  panels = plots._panels([(1, "train", norms), (1, "validation", {"accuracy": 0.5}), (1, "seen", {"accuracy": 0.6})])
  assert {name: [curve for _, curve in curves] for name, curves in panels.items()} == {
    "norm": ["norm", "norm/head", "norm/stem"],
    "model/drop/rate": ["model/drop/rate"],
    "accuracy": ["accuracy", "accuracy"],
  }


def test_the_picture_can_go_to_a_file_system_that_is_not_local():
  plot_history(HISTORIES["a single point"], "ram://plots/history.png", "digits")
  assert ink("ram://plots/history.png") > 0


def test_losses_of_both_modes_share_the_first_panel_and_the_learning_rate_is_last():
  panels = plots._panels(HISTORIES["a whole run"])
  assert list(panels) == ["loss", "accuracy", "learning_rate"]
  assert list(panels["loss"]) == [("train", "training_loss"), ("validation", "validation_loss")]
  assert list(panels["accuracy"]) == [("train", "accuracy"), ("validation", "accuracy")]
  assert list(panels["learning_rate"]) == [("train", "learning_rate")]
  assert panels["loss"]["validation", "validation_loss"][:2] == [(1, 0.5), (3, 0.25)]


def test_the_best_result_is_marked_where_it_is_known(tmp_path):
  history = list(rows(10))
  sizes = {}
  for name, best in {"none": None, "known": {"validation_loss": 5}, "gone": {"f1": 77}}.items():
    plot_history(history, tmp_path / name, "digits", best=best)
    sizes[name] = ink(tmp_path / name)
  assert sizes["none"] == sizes["gone"] < sizes["known"]


def test_a_long_name_is_broken_between_its_words():
  assert plots._wrapped("accuracy") == "accuracy"
  wrapped = plots._wrapped("head/bounding_boxes/average_precision_at_50_small")
  assert wrapped.split("\n") == ["head/bounding_boxes/average_", "precision_at_50_small"]


def test_drawing_chooses_no_backend_for_the_process(tmp_path):
  before = matplotlib.get_backend()
  matplotlib.use("svg")
  try:
    plot_history(HISTORIES["a single point"], tmp_path / "history.png", "digits")
    assert matplotlib.get_backend() == "svg"
  finally:
    matplotlib.use(before)


@pytest.mark.parametrize("module", ["base", "console", "display", "formats", "jsonl", "plots"])
def test_loading_a_writer_loads_neither_matplotlib_nor_rich(module):
  """Asked of the text, since TensorFlow itself may bring them."""
  path = Path(plots.__file__).with_name(f"{module}.py")
  loaded = {found.name for found in layers.imports(path.read_text()) if found.at_load}
  assert not {name.partition(".")[0] for name in loaded} & {"matplotlib", "rich"}
