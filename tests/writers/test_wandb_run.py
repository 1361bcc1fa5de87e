"""Runs of W&B that follow a run that is stopped, goes on and goes back."""

import json

import numpy as np
import pytest

from official_trainer import atomic
from official_trainer.errors import ConfigError
from official_trainer.writers.config import WandbConfig
from official_trainer.writers.wandb_run import WandbWriter
from tests.writers.fake_wandb import FakeWandb

ROWS = [(2, "train", {"loss": 4.0}), (2, "validation", {"loss": 3.0}), (4, "train", {"loss": 2.0})]


def note(folder):
  return json.loads((folder / "wandb.json").read_text("utf-8"))


def attempt(wandb, folder, restored, known, rows, settings=None):
  writer = WandbWriter(wandb, folder, settings or WandbConfig())
  writer.open(restored, known)
  for row in rows:
    writer.scalars(*row)
  writer.close()


def test_a_run_is_begun_as_the_settings_say(tmp_path):
  wandb, folder = FakeWandb(), tmp_path / "digits"
  folder.mkdir()
  settings = WandbConfig(project="p", entity="e", tags=("a", "b"), mode="offline")
  attempt(wandb, folder, 0, [], ROWS, settings)
  [init] = wandb.inits
  assert init == {
    "id": note(folder)["id"],
    "group": note(folder)["id"],
    "resume": "allow",
    "project": "p",
    "entity": "e",
    "name": "digits",
    "tags": ["a", "b"],
    "mode": "offline",
    "dir": str(folder),
  }
  assert wandb.server[init["id"]]["metrics"] == {"step": None, "*": "step"}


def test_a_restart_continues_the_run_and_sends_what_is_missing(tmp_path):
  wandb = FakeWandb()
  attempt(wandb, tmp_path, 0, [], ROWS[:1])
  attempt(wandb, tmp_path, 2, ROWS[:2], ROWS[2:])
  assert len(wandb.server) == 1
  assert wandb.curves() == {("train", "loss"): [(2, 4.0), (4, 2.0)], ("validation", "loss"): [(2, 3.0)]}


def test_a_run_that_went_back_behind_what_was_sent_gets_another_one_of_its_group(tmp_path):
  wandb = FakeWandb()
  attempt(wandb, tmp_path, 0, [], ROWS)
  attempt(wandb, tmp_path, 2, ROWS[:2], [(4, "train", {"loss": 7.0})])
  first, second = wandb.inits
  assert (second["id"], second["group"]) == (f"{first['id']}-1", first["id"])
  assert wandb.curves() == {("train", "loss"): [(2, 4.0), (4, 7.0)], ("validation", "loss"): [(2, 3.0)]}


def test_a_kill_while_a_row_was_being_sent_leaves_a_run_of_which_nobody_knows_what_it_holds(tmp_path, monkeypatch):
  wandb = FakeWandb()
  writes = []

  class Killed(Exception):
    pass

  def write(path, text):
    if json.loads(text)["num_rows"] == 1:
      raise Killed  # The row was sent, and its note was not.
    writes.append(text)
    atomic_write(path, text)

  atomic_write = atomic.write_text
  monkeypatch.setattr(atomic, "write_text", write)
  with pytest.raises(Killed):
    attempt(wandb, tmp_path, 0, [], ROWS)
  monkeypatch.undo()
  assert note(tmp_path)["is_sending"]
  attempt(wandb, tmp_path, 2, ROWS[:1], ROWS[1:])
  assert len(wandb.server) == 2
  assert wandb.curves() == {("train", "loss"): [(2, 4.0), (4, 2.0)], ("validation", "loss"): [(2, 3.0)]}


def test_timings_texts_pictures_and_settings_are_sent(tmp_path):
  wandb = FakeWandb()
  writer = WandbWriter(wandb, tmp_path, WandbConfig())
  writer.open(0, [])
  writer.hparams({"trainer.train_steps": 6})
  writer.timings(2, "train", {})
  writer.timings(2, "train", {"steps_per_second": 812.5})
  writer.text(0, "config", "a < b")
  writer.images(2, "validation", "boxes", np.zeros([2, 4, 5, 3], np.uint8))
  writer.close()
  [stored] = wandb.server.values()
  assert stored["config"] == {"trainer.train_steps": 6}
  assert stored["log"] == [
    {"step": 2, "train/steps_per_second": 812.5},
    {"step": 0, "config": ("html", "<pre>a &lt; b</pre>")},
    {"step": 2, "validation/boxes": [("image", (4, 5, 3)), ("image", (4, 5, 3))]},
  ]


def test_another_run_of_the_group_gets_the_settings_too(tmp_path):
  wandb = FakeWandb()
  writer = WandbWriter(wandb, tmp_path, WandbConfig())
  writer.open(0, [])
  writer.hparams({"rate": 0.5})
  writer.scalars(*ROWS[0])
  writer.open(0, [])
  assert [stored["config"] for stored in wandb.server.values()] == [{"rate": 0.5}, {"rate": 0.5}]


def test_a_run_that_cannot_begin_says_what_to_do(tmp_path):
  with pytest.raises(ConfigError, match="(?s)W&B could not begin: no API key.*trainer.wandb.mode=offline"):
    WandbWriter(FakeWandb(fails=["init"]), tmp_path, WandbConfig()).open(0, [])


@pytest.mark.parametrize("fails", ["log", "init"])
def test_an_error_later_is_one_warning_and_nothing_more_is_sent(tmp_path, fails):
  wandb, said = FakeWandb(), []
  writer = WandbWriter(wandb, tmp_path, WandbConfig(), warn=lambda text, *values: said.append(text % values))
  if fails == "log":
    wandb.fails.add("log")
  writer.open(0, [])
  wandb.fails.add(fails)
  writer.scalars(*ROWS[0])
  writer.open(0, [])  # The run went back: another W&B run would be begun.
  writer.scalars(*ROWS[0])
  writer.timings(2, "train", {"steps_per_second": 1.0})
  writer.flush()
  writer.close()
  assert len(said) == 1
  assert said[0].startswith("W&B failed, and gets no more reports from this start: ")
