from official_trainer.actions.event import TRAIN, VALIDATION, Event
from official_trainer.actions.once import AfterFirstLoop


def event(mode=TRAIN):
  return Event(step=2, mode=mode, output={}, metrics={})


def test_the_function_is_called_after_the_first_loop_and_never_again():
  calls = []
  action = AfterFirstLoop(lambda: calls.append(1))
  action(event(VALIDATION))
  assert calls == []
  action(event())
  action(event())
  assert calls == [1]
