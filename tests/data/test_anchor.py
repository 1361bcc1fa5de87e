import json

import pytest

from official_trainer.data.anchor import Anchor


def test_positions_count_the_examples_since_the_start():
  anchor = Anchor.start(8)
  assert [anchor.position_at(batch) for batch in (0, 1, 10**12)] == [0, 8, 8 * 10**12]


def test_a_moved_anchor_goes_on_where_the_old_batch_size_ended():
  # Batch 2 for 4 steps, then batch 4: the next example is number 8.
  moved = Anchor.start(2).moved(4, 4)
  assert moved == Anchor(batch=4, position=8, global_batch_size=4)
  assert moved.position_at(6) == 16
  assert moved.moved(6, 1).position_at(7) == 17


def test_an_anchor_knows_nothing_of_batches_before_it():
  with pytest.raises(ValueError, match="anchored at batch 4"):
    Anchor.start(2).moved(4, 4).position_at(3)


def test_an_anchor_survives_json():
  anchor = Anchor(batch=10**12, position=2**62, global_batch_size=7)
  assert Anchor.from_json(json.loads(json.dumps(anchor.to_json()))) == anchor
