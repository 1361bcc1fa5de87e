"""Saves, verifies and restores a run's checkpoints; decides which are kept."""

from __future__ import annotations

import contextlib
import functools
import os
import re
from collections.abc import Callable, Collection, Iterator, Mapping
from typing import Any

import tensorflow as tf
from absl import logging

from official_trainer.atomic import remove_leftovers, write_text, writing
from official_trainer.checkpoint import manifest
from official_trainer.checkpoint.foreign import is_foreign, newest_foreign
from official_trainer.checkpoint.restoring import restore_exactly
from official_trainer.checkpoint.state_file import write_state_file
from official_trainer.errors import BrokenCheckpoint

_BROKEN_DIR = "broken_checkpoints"
_OWN_FILE = re.compile(r"(ckpt-\d+)(\.index|\.data-.*|\.manifest\.json|_temp)/?$")


class CheckpointStore:
  """One folder of checkpoints `ckpt-<step>`, each of which exists only when its manifest does.

  A save writes the data files, then the manifest by rename, then TensorFlow's `checkpoint` state file, and only then
  deletes what has become superfluous: a kill at any moment leaves the newest complete checkpoint usable.
  """

  def __init__(
    self,
    directory: str,
    checkpoint: tf.train.Checkpoint,
    *,
    max_to_keep: int | None = 5,
    always_keep: Collection[int] = (),
    asynchronous: bool = True,
    facts: Mapping[str, Any] | None = None,
    source: str | None = None,
    agreed: Callable[[int], int] = int,
  ):
    """Stores its arguments; touches no file.

    Args:
      directory: where checkpoints are written, the model_dir.
      checkpoint: what is saved.
      max_to_keep: number of newest checkpoints that are kept, or None for all.
      always_keep: steps that are never deleted (`trainer.checkpoints_at`).
      asynchronous: whether files are written in a background thread, from a copy of the values at the time of `save`.
      facts: recorded in every manifest.
      source: the folder that is restored from, where it is another one: that of the chief, for the other workers.
      agreed: given the step that this process would restore, or -1, returns the chief's choice.
    """
    self._directory = directory
    self._source = directory if source is None else source
    self._agreed = agreed
    self._checkpoint = checkpoint
    self._max_to_keep = max_to_keep
    self._always_keep = frozenset(always_keep)
    self._asynchronous = asynchronous
    self._facts = dict(facts or {})
    self._saved_step: int | None = None
    self._in_background: str | None = None  # The prefix of an asynchronous save that nobody has waited for.

  @property
  def directory(self) -> str:
    """The folder that is written."""
    return self._directory

  @property
  def source(self) -> str:
    """The folder that is restored from."""
    return self._source

  @property
  def saved_step(self) -> int | None:
    """The step that this process saved or restored last."""
    return self._saved_step

  def steps(self) -> list[int]:
    """Lists the committed steps in ascending order."""
    return manifest.committed_steps(self._directory)

  def save(self, step: int) -> str:
    """Writes the checkpoint of this step; asynchronously when so configured.

    Args:
      step: number of completed updates.

    Returns:
      The prefix, DIRECTORY/ckpt-STEP.

    Raises:
      NotWritten: if the file system refused this save, or an earlier asynchronous one.
    """
    prefix = manifest.checkpoint_prefix(self._directory, step)
    options = tf.train.CheckpointOptions(
      enable_async=self._asynchronous,
      # Whoever saves writes: parameter servers need not see the folder.
      experimental_io_device="/device:CPU:0",
      experimental_write_callbacks=[functools.partial(self._commit, step)],
    )
    # What an asynchronous save raises now is the error of the one before.
    before, self._in_background = self._in_background, None
    with writing(before or prefix):
      tf.io.gfile.makedirs(self._directory)
      self._checkpoint.write(prefix, options=options)
    self._in_background = prefix if self._asynchronous else None
    self._saved_step = step
    return prefix

  def wait(self) -> None:
    """Blocks until an asynchronous save has been committed.

    Raises:
      NotWritten: if the file system refused it.
    """
    prefix, self._in_background = self._in_background, None
    if prefix is None:
      return
    with writing(prefix):
      self._checkpoint.sync()
      # `sync` keeps the background thread's error for the next save, which after the last one never comes.
      background = self._checkpoint._async_checkpointer_impl  # noqa: SLF001  # There is no public way to ask.
      if background is not None:
        background._check_async_thread_error()  # noqa: SLF001

  def restore_latest(self, may_differ: Collection[str] = ()) -> int | None:
    """Restores the newest checkpoint that is whole; sets broken ones aside, aloud.

    Call under the strategy's scope. Files of writes that were never finished are removed.

    Args:
      may_differ: variables that may differ, as in `restore_exactly`.

    Returns:
      The restored step, or None if the folder holds no checkpoint. The caller unpacks the state.

    Raises:
      CheckpointMismatch: if the newest whole checkpoint is that of another model.
      BrokenCheckpoint: if there are checkpoints and not one is whole. Nothing is changed then: starting again from
        nothing is for the user to decide.
    """
    step, broken = self._newest_whole() if self._source == self._directory else (None, [])
    chosen = self._agreed(-1 if step is None else step)
    if chosen < 0:
      return None
    prefix = manifest.checkpoint_prefix(self._source, chosen)
    for name in restore_exactly(self._checkpoint, prefix, may_differ=may_differ):
      logging.warning("%s of %s is left out, as it was asked for.", name, prefix)
    self._saved_step = chosen
    if self._source == self._directory:
      for prefix in broken:
        self._set_aside(prefix)
      self._remove_uncommitted()
      self._retain()  # A kill may have come between the newest manifest and this.
    return chosen

  def _newest_whole(self) -> tuple[int | None, list[str]]:
    """Returns the newest step that is whole, None if there are none at all, and the prefixes of newer, broken ones."""
    remove_leftovers(self._directory)
    broken: list[str] = []
    for step in reversed(self.steps()):
      prefix = manifest.checkpoint_prefix(self._directory, step)
      try:
        manifest.verify(prefix)
      except BrokenCheckpoint as error:
        logging.error("Checkpoint %s is broken: %s Trying the one before.", prefix, error)
        broken.append(prefix)
        continue
      return step, broken
    if broken:
      raise BrokenCheckpoint(
        f"every checkpoint in {self._directory} is broken ({len(broken)} looked at, see the log). Bring back a good"
        " copy, or start anew in another model_dir."
      )
    return None, []

  def foreign_checkpoint(self) -> str | None:
    """Returns the newest checkpoint of a folder that has no manifest at all (another program wrote it), or None."""
    return None if manifest.committed_steps(self._source) else newest_foreign(self._source)

  def _commit(self, step: int, prefix: str) -> None:
    """Runs when the files of a save are complete: in the background thread of an asynchronous save."""
    write_text(manifest.manifest_path(prefix), manifest.describe(prefix, step, self._facts))
    self._retain()

  def _retain(self) -> None:
    """Names the checkpoints that stay in the state file, then deletes the others."""
    steps = self.steps()
    keep = set(steps if self._max_to_keep is None else steps[-self._max_to_keep :]) | (self._always_keep & set(steps))
    _write_state_file(self._directory, sorted(keep))
    for old in steps:
      if old not in keep:
        _delete(manifest.checkpoint_prefix(self._directory, old))

  def _set_aside(self, prefix: str) -> None:
    target = os.path.join(self._directory, _BROKEN_DIR)
    tf.io.gfile.makedirs(target)
    logging.error("%s is set aside in %s.", prefix, target)
    for path in [manifest.manifest_path(prefix), *manifest.data_files(prefix)]:
      with contextlib.suppress(tf.errors.NotFoundError):
        tf.io.gfile.rename(path, os.path.join(target, os.path.basename(path)), overwrite=True)

  def _remove_uncommitted(self) -> None:
    committed = {f"ckpt-{step}" for step in self.steps()}
    for name in tf.io.gfile.listdir(self._directory):
      match = _OWN_FILE.match(name)
      if not match or (match.group(1) in committed and match.group(2) != "_temp"):
        continue
      if not is_foreign(os.path.join(self._directory, match.group(1))):
        logging.info("Removing %s, left by a save that was not finished.", name)
        path = os.path.join(self._directory, name)
        (tf.io.gfile.rmtree if tf.io.gfile.isdir(path) else tf.io.gfile.remove)(path)


def _delete(prefix: str) -> None:
  # The manifest goes first: without it a half-deleted checkpoint does not exist.
  for path in [manifest.manifest_path(prefix), *manifest.data_files(prefix)]:
    with contextlib.suppress(tf.errors.NotFoundError):
      tf.io.gfile.remove(path)


def _write_state_file(directory: str, steps: list[int]) -> None:
  if steps:
    write_state_file(directory, [f"ckpt-{step}" for step in steps])


def new_checkpoints(directory: str, *, after: int, poll: Iterator[bool]) -> Iterator[int]:
  """Yields committed steps greater than `after` in ascending order, each once, as they appear.

  Args:
    directory: the folder to watch.
    after: steps up to this one are not yielded.
    poll: advanced when nothing new is there; the generator ends when it is exhausted or yields False.
  """
  seen = after
  while True:
    fresh = [step for step in manifest.committed_steps(directory) if step > seen]
    if fresh:
      seen = fresh[0]
      yield seen
    elif not next(poll, False):
      return
