"""What an export holds, which weights it takes, and when it is withdrawn."""

import contextlib
import hashlib
import json

import numpy as np
import pytest
import tensorflow as tf

from official_trainer.errors import ConfigError, ExportRefused
from official_trainer.optim.config import EmaConfig
from tests.export import models
from tests.export.reload_here import reload_here

EMA = EmaConfig(average_decay=0.9)


@pytest.fixture
def task():
  return models.Softmax(None)


def bits(variables):
  return [np.asarray(variable).tobytes() for variable in variables]


def manifest(folder):
  return json.loads((folder / "export.json").read_text("utf-8"))


def test_the_manifest_says_what_the_export_is(task, tmp_path):
  exported = models.exporter_of(task, models.state_of(task.build_model())).export(str(tmp_path / "7"))
  found = manifest(tmp_path / "7")
  files = found.pop("files")
  assert found == {
    "format_version": 1,
    "step": 7,
    "weights": "raw",
    "experiment": "tests/softmax",
    "seed": 3,
    "signatures": {
      "serving_default": {
        "inputs": {"inputs": {"dtype": "float32", "shape": [None, 3]}},
        "outputs": {"outputs": {"dtype": "float32", "shape": [None, 2]}},
      }
    },
    "trials": {"serving_default": {"inputs": "validation data", "num_examples": 32, "result": "bit-equal"}},
  }
  assert {"saved_model.pb", "variables/variables.index"} <= set(files)
  for name, entry in files.items():
    content = (tmp_path / "7" / name).read_bytes()
    assert entry == {"size": len(content), "sha256": hashlib.sha256(content).hexdigest()}
  assert (exported.folder, exported.step, exported.weights) == (str(tmp_path / "7"), 7, "raw")


@pytest.mark.parametrize(
  ("weights", "ema", "step", "kind"),
  [
    (None, None, 7, "raw"),
    (None, EMA, 7, "averages"),
    ("averages", EMA, 7, "averages"),
    ("raw", EMA, 7, "raw"),
    (None, EmaConfig(average_decay=0.9, start_step=8), 7, "raw"),  # Averaging has not begun.
  ],
)
def test_the_weights_are_those_that_are_wanted_and_the_state_keeps_its_own(task, tmp_path, weights, ema, step, kind):
  state = models.state_of(task.build_model(), ema=ema, step=step)
  raw, averages = bits(state.model.variables), bits(state.ema.averages)
  folder = tmp_path / "export"
  formats = ("saved_model", "weights_h5")
  exported = models.exporter_of(task, state, weights=weights, formats=formats).export(str(folder))
  assert exported.weights == manifest(folder)["weights"] == kind
  wanted = averages if kind == "averages" else raw
  assert bits(tf.saved_model.load(str(folder)).weights) == wanted
  other = task.build_model()
  other.load_weights(folder / "model.weights.h5")
  assert bits(other.variables) == wanted
  assert (bits(state.model.variables), bits(state.ema.averages)) == (raw, averages)


def test_an_export_that_differs_is_withdrawn_and_the_one_before_stays(task, tmp_path):
  state = models.state_of(task.build_model(), ema=EMA)
  folder = tmp_path / "best_export"
  models.exporter_of(task, state).export(str(folder))
  raw, before = bits(state.model.variables), (folder / "export.json").read_bytes()

  def off_by_a_little(path, inputs):
    found = reload_here(path, inputs)
    return {name: {k: v + 1e-4 for k, v in outputs.items()} for name, outputs in found.items()}

  with pytest.raises(ExportRefused) as error:
    models.exporter_of(task, state, reload=off_by_a_little).export(str(folder))
  assert f"the export to {folder} is withdrawn: loaded again, it differs from the model in memory" in str(error.value)
  assert "serving_default: outputs differs by 0.0001" in str(error.value)
  assert (folder / "export.json").read_bytes() == before
  assert [path.name for path in tmp_path.iterdir()] == ["best_export"]
  assert bits(state.model.variables) == raw


def test_what_cannot_be_loaded_again_is_withdrawn(task, tmp_path):
  def broken(path, inputs):
    raise ExportRefused(path, "the process that loads it again ended with code 1")

  folder = tmp_path / "5"
  with pytest.raises(
    ExportRefused, match=f"the export to {folder} is withdrawn: the process that loads it again ended"
  ):
    models.exporter_of(task, models.state_of(task.build_model()), reload=broken).export(str(folder))
  assert list(tmp_path.iterdir()) == []


def test_weights_alone_need_no_signature(tmp_path):
  task = models.Subclassed(None)
  exporter = models.exporter_of(task, models.state_of(task.build_model()), formats=("weights_h5",), reload=None)
  exporter.rehearse()
  exporter.export(str(tmp_path / "7"))
  assert sorted(path.name for path in (tmp_path / "7").iterdir()) == ["export.json", "model.weights.h5"]
  assert manifest(tmp_path / "7")["signatures"] == {}


def test_a_subclassed_model_learns_from_the_examples_what_it_takes(tmp_path):
  task = models.Subclassed(None)
  exporter = models.exporter_of(task, models.state_of(task.build_model()), features={"numbers": models.FEATURES})
  exporter.rehearse()
  exporter.export(str(tmp_path / "7"))
  assert list(manifest(tmp_path / "7")["signatures"]["serving_default"]["inputs"]) == ["numbers"]


def test_a_model_that_does_not_say_what_it_takes_is_refused_without_examples(tmp_path):
  task = models.Subclassed(None)
  exporter = models.exporter_of(task, models.state_of(task.build_model()), features=None)
  with pytest.raises(ConfigError, match="task.task_class: Subclassed cannot be served: Model does not say"):
    exporter.rehearse()


def test_several_signatures_are_each_tried_on_their_inputs(tmp_path):
  task = models.Words()
  features = np.array(models.WORDS * 20, object)
  models.exporter_of(task, models.state_of(task.build_model()), features=features).export(str(tmp_path / "7"))
  trials = manifest(tmp_path / "7")["trials"]
  assert {name: (trial["inputs"], trial["num_examples"]) for name, trial in trials.items()} == {
    "serving_default": ("validation data", 32),
    "price": ("validation data", 32),
  }


def test_a_signature_that_cannot_be_tried_is_not_exported(tmp_path):
  task = models.Words()
  exporter = models.exporter_of(task, models.state_of(task.build_model()))  # Numbers, not words.
  with pytest.raises(ExportRefused, match="signature 'serving_default' cannot be tried: .*override Task.serving_examp"):
    exporter.export(str(tmp_path / "7"))


def test_a_signature_that_cannot_be_traced_is_known_before_anything_is_trained():
  class Broken(models.Softmax):
    def postprocess(self, model_outputs):
      return tf.reshape(model_outputs, [3, 3, 3])

  task = Broken(None)
  with pytest.raises(ConfigError, match=r"serving_signatures\(\)\['serving_default'\]: cannot be traced"):
    models.exporter_of(task, models.state_of(task.build_model())).rehearse()


def test_what_inference_does_to_weights_is_undone(task, tmp_path):
  entered = []

  @contextlib.contextmanager
  def held():
    entered.append(True)
    yield
    entered.append(False)

  models.exporter_of(task, models.state_of(task.build_model()), held=held).export(str(tmp_path / "7"))
  assert entered == [True, False]


def test_a_task_that_is_not_ours_is_served_by_its_inference_step(tmp_path):
  class Foreign:
    def inference_step(self, inputs, model):
      return {"logits": model(inputs, training=False)}

  model = models.Softmax(None).build_model()
  models.exporter_of(Foreign(), models.state_of(model)).export(str(tmp_path / "7"))
  assert list(manifest(tmp_path / "7")["signatures"]["serving_default"]["outputs"]) == ["logits"]
