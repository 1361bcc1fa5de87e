"""What the coordinator of parameter servers tells its servers: a small file in the run's folder."""

from __future__ import annotations

import contextlib
import dataclasses
import json
import os
import uuid
from collections.abc import Iterator

import tensorflow as tf

from official_trainer.atomic import write_text
from official_trainer.errors import ExitCode, NotWritten, exit_code

_FILE = "coordinator.json"


@dataclasses.dataclass(frozen=True, kw_only=True)
class CoordinatorNote:
  """The state of one start of the coordinator.

  Attributes:
    start: an id of this start.
    code: what the coordinator ended with; None while it runs.
  """

  start: str
  code: int | None = None

  @classmethod
  def new(cls) -> CoordinatorNote:
    """Returns the note of a start that runs."""
    return cls(start=uuid.uuid4().hex)

  def ended(self, code: ExitCode) -> CoordinatorNote:
    """Returns the note of the same start, ended."""
    return dataclasses.replace(self, code=int(code))

  def save(self, model_dir: str) -> None:
    write_text(os.path.join(model_dir, _FILE), json.dumps(dataclasses.asdict(self)) + "\n")


@contextlib.contextmanager
def noted_for_servers(model_dir: str) -> Iterator[None]:
  """Tells the servers that the coordinator runs, for the body, and with what it ends."""
  note = CoordinatorNote.new()
  note.save(model_dir)
  code = ExitCode.DONE
  try:
    yield
  except BaseException as error:
    code = exit_code(error)
    raise
  finally:
    with contextlib.suppress(NotWritten):  # They notice that it is gone.
      note.ended(code).save(model_dir)


def load_note(model_dir: str) -> CoordinatorNote | None:
  """Reads the newest note; None where there is none that can be read."""
  path = os.path.join(model_dir, _FILE)
  try:
    if not tf.io.gfile.exists(path):
      return None
    with tf.io.gfile.GFile(path) as file:
      values = json.loads(file.read())
    return CoordinatorNote(start=str(values["start"]), code=values["code"])
  except (tf.errors.OpError, ValueError, KeyError, TypeError):
    return None  # A folder that does not answer now may do so at the next look.
