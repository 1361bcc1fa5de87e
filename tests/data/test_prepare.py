import gzip
import struct
import subprocess
import sys

import numpy as np
import pytest
import tensorflow as tf
from tensorflow_datasets.image_classification import mnist

from official_trainer.data import prepare
from official_trainer.data.config import DataConfig
from official_trainer.data.tfds import tfds_source

NUM_TRAIN, NUM_TEST = 5, 3


@pytest.fixture
def small_mnist(monkeypatch):
  monkeypatch.setattr(mnist, "_TRAIN_EXAMPLES", NUM_TRAIN)
  monkeypatch.setattr(mnist, "_TEST_EXAMPLES", NUM_TEST)


def write_originals(folder):
  """Writes files in the form of the original ones: image i and label i are all i."""
  folder.mkdir()
  for prefix, count in (("train", NUM_TRAIN), ("t10k", NUM_TEST)):
    images = np.repeat(np.arange(count, dtype=np.uint8), 28 * 28).tobytes()
    labels = np.arange(count, dtype=np.uint8).tobytes()
    with gzip.open(folder / f"{prefix}-images-idx3-ubyte.gz", "wb") as file:
      file.write(struct.pack(">4i", 2051, count, 28, 28) + images)
    with gzip.open(folder / f"{prefix}-labels-idx1-ubyte.gz", "wb") as file:
      file.write(struct.pack(">2i", 2049, count) + labels)


def test_local_files_become_the_set_of_the_same_name(tmp_path, capsys, small_mnist):
  write_originals(tmp_path / "originals")
  address = mnist.FashionMNIST.URL
  arguments = ["fashion_mnist", f"--source={tmp_path}/originals", f"--data_dir={tmp_path}/sets"]
  assert prepare.main(arguments) == 0
  said = capsys.readouterr().out
  assert f"train {NUM_TRAIN}, test {NUM_TEST} examples) is now in {tmp_path}/sets" in said
  assert mnist.FashionMNIST.URL == address

  params = DataConfig(tfds_name="fashion_mnist", tfds_split="train", tfds_data_dir=f"{tmp_path}/sets")
  source = tfds_source(params)
  batch = source.read(tf.range(NUM_TRAIN, dtype=tf.int64), tf.zeros([NUM_TRAIN, 2], tf.int32))
  np.testing.assert_array_equal(batch["image"][:, 0, 0, 0], batch["label"])
  assert sorted(batch["label"].numpy()) == list(range(NUM_TRAIN))

  assert prepare.main(arguments) == 0
  assert "is already in" in capsys.readouterr().out


def test_missing_files_are_listed(tmp_path, capsys):
  write_originals(tmp_path / "originals")
  (tmp_path / "originals" / "t10k-labels-idx1-ubyte.gz").unlink()
  arguments = ["fashion_mnist", f"--source={tmp_path}/originals", f"--data_dir={tmp_path}/sets"]
  assert prepare.main(arguments) == 2
  assert "originals/ lacks t10k-labels-idx1-ubyte.gz." in capsys.readouterr().err


def test_a_set_of_several_addresses_cannot_be_read_from_a_folder(tmp_path, capsys):
  arguments = ["sklearn_digits", f"--source={tmp_path}", f"--data_dir={tmp_path}/sets"]
  assert prepare.main(arguments) == 2
  assert "does not take its files from one address" in capsys.readouterr().err


def test_an_unknown_name_is_refused_with_the_nearest(tmp_path, capsys):
  assert prepare.main(["fashon_mnist", f"--data_dir={tmp_path}"]) == 2
  assert "Did you mean 'fashion_mnist'?" in capsys.readouterr().err


def test_files_that_cannot_be_fetched_are_one_line(tmp_path, capsys, monkeypatch):
  def fail(*args, **kwargs):
    raise ConnectionError("no route to host")

  monkeypatch.setattr(mnist.FashionMNIST, "download_and_prepare", fail)
  assert prepare.main(["fashion_mnist", f"--data_dir={tmp_path}"]) == 1
  said = capsys.readouterr().err
  assert "could not be prepared: no route to host. Without network: --source=DIR" in said


def test_help_imports_no_tensorflow():
  code = (
    "import sys; from official_trainer.data import prepare\n"
    "try: prepare.main(['--help'])\n"
    "except SystemExit: pass\n"
    "print([m for m in ('tensorflow', 'tensorflow_datasets') if m in sys.modules])"
  )
  done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
  assert done.stdout.splitlines()[-1] == "[]"
