import pickle

import pytest
import tensorflow as tf

from official_trainer.distribute.lost import told_apart
from official_trainer.errors import ExitCode, PeerLost, exit_code

ABORTED = (
  "Collective ops is aborted by: UNAVAILABLE: failed to connect to all addresses\n"
  "Additional GRPC error information from remote target /job:worker/replica:0/task:1:\n"
)


def raised_in(error, own="worker 0"):
  with told_apart(own, lambda: 40):
    raise error


@pytest.mark.parametrize(
  ("error", "who"),
  [
    (tf.errors.UnavailableError(None, None, ABORTED), "worker 1"),
    (tf.errors.InternalError(None, None, ABORTED), "worker 1"),
    (tf.errors.UnavailableError(None, None, "Socket closed"), "another process of the run"),
    (tf.errors.UnavailableError(None, None, "/job:worker/replica:0/task:0 and /job:chief/task:0"), "chief"),
  ],
)
def test_an_error_of_a_lost_process_says_who_is_gone_and_from_where_to_go_on(error, who):
  with pytest.raises(PeerLost) as raised:
    raised_in(error)
  assert str(raised.value) == (f"{who} is gone; started again, with all its processes, the run continues from step 40")
  assert exit_code(raised.value) == ExitCode.RESTART


def test_what_was_trained_since_the_newest_checkpoint_counts_as_progress():
  with pytest.raises(PeerLost) as raised, told_apart("worker 0", lambda: 40, reached=lambda: 44):
    raise tf.errors.UnavailableError(None, None, ABORTED)
  assert (raised.value.step, raised.value.reached) == (40, 44)
  assert pickle.loads(pickle.dumps(raised.value)).reached == 44


@pytest.mark.parametrize(
  "error", [tf.errors.InvalidArgumentError(None, None, "shapes differ"), ValueError("UNAVAILABLE"), StopIteration()]
)
def test_any_other_error_stays_what_it_is(error):
  with pytest.raises(type(error)):
    raised_in(error)
