import pytest

from official_trainer.processes.verdict import End, exit_code

KILLED = -9


def workers(*codes):
  return [End("worker", index, code) for index, code in enumerate(codes)]


@pytest.mark.parametrize(
  ("codes", "code"),
  [
    ((0, 0), 0),
    ((42, KILLED), 42),  # A worker is killed: the chief saves and asks for another start.
    ((KILLED, 42), 42),  # So does a worker when the chief is killed.
    ((42, 2), 2),  # A wrong config on one worker: starting again would not help.
    ((3, 3), 3),
    ((0, 1), 1),
    ((KILLED, KILLED), 137),
    ((130, 130), 130),
  ],
)
def test_workers_that_ended_by_themselves_say_why(codes, code):
  assert exit_code(workers(*codes)) == code
  assert exit_code(workers(*reversed(codes))) == code


def test_of_two_failures_the_first_counts():
  assert exit_code([End("worker", 1, 3), End("worker", 0, 1)]) == 3


def test_a_process_that_had_to_be_killed_is_a_hang_and_no_reason():
  late = End("worker", 1, KILLED, was_late=True)
  assert exit_code([End("worker", 0, 0), late]) == 43
  assert exit_code([End("worker", 0, 42), late]) == 42
  assert exit_code([End("worker", 0, 0), End("evaluator", 0, KILLED, was_late=True)]) == 0


@pytest.mark.parametrize(
  ("coordinator", "worker", "server", "evaluator", "code"),
  [
    (0, KILLED, KILLED, 0, 0),  # Lost workers cost their closures only.
    (42, 0, KILLED, 0, 42),  # A lost server ends the job with the resume code.
    (1, 42, 42, 0, 1),
    (0, 0, 0, 1, 1),
    (KILLED, 42, 0, 0, 42),
    (KILLED, 0, 0, 0, 137),
  ],
)
def test_with_parameter_servers_the_coordinator_decides(coordinator, worker, server, evaluator, code):
  ends = [End("worker", 0, worker), End("ps", 0, server), End("chief", 0, coordinator), End("evaluator", 0, evaluator)]
  assert exit_code(ends) == code
