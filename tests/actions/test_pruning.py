"""When masks are applied."""

import pytest

from official_trainer.actions.event import TRAIN, VALIDATION, Event
from official_trainer.actions.pruning import MaskPruned


@pytest.mark.parametrize(("mode", "reports", "calls"), [(TRAIN, True, 1), (TRAIN, False, 0), (VALIDATION, True, 0)])
def test_masks_are_applied_where_a_training_report_ends_only(mode, reports, calls):
  called = []
  MaskPruned(lambda: called.append(True))(Event(step=4, mode=mode, output={}, metrics={}, reports=reports))
  assert len(called) == calls
