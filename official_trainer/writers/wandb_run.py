"""Reports in Weights & Biases. The package `wandb` is imported by whoever makes the writer (`writers/chosen.py`)."""

from __future__ import annotations

import html
import json
import os
import secrets
from collections.abc import Callable, Mapping
from typing import Any

import tensorflow as tf
from absl import logging

from official_trainer import atomic
from official_trainer.errors import ConfigError
from official_trainer.writers.base import Rows, Writer, numbers, pixels
from official_trainer.writers.config import WandbConfig

NOTE = "wandb.json"
_STEP = "step"


class WandbWriter(Writer):
  """Writes to a run of W&B that a restarted training continues.

  Nothing that W&B holds can be taken back. So a note beside the run, `wandb.json`, says how many rows of the history
  were sent, and whether one was being sent. A training that goes on from there continues the same W&B run, and sends
  what is missing; one that went back behind what was sent begins another W&B run of the same group, and sends the whole
  history to it. Curves are drawn over the metric `step`; names begin with the mode.

  Once W&B has begun, its errors are warnings: nothing more is written, and the training goes on.
  """

  def __init__(
    self,
    wandb: Any,
    model_dir: str | os.PathLike[str],
    settings: WandbConfig,
    *,
    warn: Callable[..., None] = logging.warning,
  ):
    """Stores its arguments; speaks to nobody.

    Args:
      wandb: the module.
      model_dir: the run's folder.
      settings: `trainer.wandb`.
      warn: shows a warning, as `logging.warning`.
    """
    self._wandb = wandb
    self._model_dir = os.fspath(model_dir)
    self._settings = settings
    self._warn = warn
    self._note: dict[str, Any] = {}
    self._hparams: dict[str, Any] = {}
    self._run: Any = None
    self._is_open = False
    self._has_failed = False

  def open(self, step: int, rows: Rows) -> None:
    """Continues the W&B run, or begins one.

    Raises:
      ConfigError: if W&B refuses to begin, e.g. because nobody is logged in.
    """
    known = [row for row in rows if row[0] <= step]
    self._note = self._read_note()
    if self._note["is_sending"] or self._note["num_rows"] > len(known):
      self._finish()
      self._note = {**self._note, "attempt": self._note["attempt"] + 1, "num_rows": 0, "is_sending": False}
    if self._run is None and not self._has_failed:
      self._run = self._begin()
      self._write_note()
    self._is_open = True
    for row in known[self._note["num_rows"] :]:
      self.scalars(*row)

  def scalars(self, step: int, mode: str, values: Mapping[str, float]) -> None:
    values = numbers(values)
    self._require_open()
    if self._run is None:
      return
    self._write_note(is_sending=True)
    self._log(step, {f"{mode}/{name}": value for name, value in values.items()})
    self._write_note(is_sending=False, num_rows=self._note["num_rows"] + 1)

  def timings(self, step: int, mode: str, values: Mapping[str, float]) -> None:
    if values:
      self._log(step, {f"{mode}/{name}": value for name, value in numbers(values).items()})

  def text(self, step: int, tag: str, markdown: str) -> None:
    self._log(step, lambda: {tag: self._wandb.Html(f"<pre>{html.escape(markdown)}</pre>")})

  def images(self, step: int, mode: str, name: str, pictures: Any) -> None:
    found = pixels(name, pictures)
    self._log(step, lambda: {f"{mode}/{name}": [self._wandb.Image(picture) for picture in found]})

  def hparams(self, values: Mapping[str, Any]) -> None:
    self._hparams |= values
    if self._run is not None:
      self._attempt(lambda: self._run.config.update(dict(values), allow_val_change=True))

  def flush(self) -> None:
    """Does nothing: W&B sends by itself."""

  def close(self) -> None:
    self._is_open = False
    self._finish()

  def _begin(self) -> Any:
    settings, note = self._settings, self._note
    attempt = note["attempt"]
    try:
      run = self._wandb.init(
        project=settings.project,
        entity=settings.entity,
        name=settings.name or os.path.basename(self._model_dir.rstrip("/")),
        id=note["id"] if attempt == 0 else f"{note['id']}-{attempt}",
        group=note["id"],
        tags=list(settings.tags),
        mode=settings.mode,
        dir=self._model_dir if atomic.is_local(self._model_dir) else None,
        config=dict(self._hparams),
        resume="allow",
      )
      run.define_metric(_STEP)
      run.define_metric("*", step_metric=_STEP)
    except Exception as error:  # noqa: BLE001  # W&B has many, none of them documented.
      if self._is_open:
        self._fail(error)
        return None
      message = f"W&B could not begin: {error}\nLog in (`wandb login`), or set trainer.wandb.mode=offline."
      raise ConfigError.of("trainer.writers", message) from error
    return run

  def _log(self, step: int, values: Mapping[str, Any] | Callable[[], Mapping[str, Any]]) -> None:
    self._require_open()
    if self._run is not None:
      self._attempt(lambda: self._run.log({_STEP: int(step), **(values() if callable(values) else values)}))

  def _finish(self) -> None:
    if self._run is not None:
      self._attempt(self._run.finish)
    self._run = None

  def _attempt(self, call: Callable[[], Any]) -> None:
    try:
      call()
    except Exception as error:  # noqa: BLE001
      self._fail(error)

  def _fail(self, error: Exception) -> None:
    self._run, self._has_failed = None, True
    self._warn("W&B failed, and gets no more reports from this start: %s", error)

  def _require_open(self) -> None:
    if not self._is_open:
      raise RuntimeError("WandbWriter is not open. Call `open(step, rows)` before anything is written.")

  def _read_note(self) -> dict[str, Any]:
    path = os.path.join(self._model_dir, NOTE)
    if not tf.io.gfile.exists(path):
      return {"id": secrets.token_hex(4), "attempt": 0, "num_rows": 0, "is_sending": False}
    with tf.io.gfile.GFile(path) as file:
      return dict(json.loads(file.read()))

  def _write_note(self, **changes: Any) -> None:
    self._note |= changes
    atomic.write_text(os.path.join(self._model_dir, NOTE), json.dumps(self._note, sort_keys=True) + "\n")
