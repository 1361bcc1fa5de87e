import pytest
import tensorflow as tf

from official_trainer.checkpoint.stored import VALUE, stored_shapes


@pytest.mark.parametrize("remote", [False, True])
def test_every_value_and_its_shape_is_listed(tmp_path, remote):
  folder = f"ram://stored-{tmp_path.name}" if remote else str(tmp_path)
  checkpoint = tf.train.Checkpoint(a=tf.Variable([1.0, 2.0]), b=tf.Variable("text"))
  found = stored_shapes(checkpoint.write(f"{folder}/ckpt-1"))
  assert found[f"a{VALUE}"] == [2] and found[f"b{VALUE}"] == []


def test_what_is_not_there_or_no_index_is_an_error(tmp_path):
  with pytest.raises(tf.errors.OpError):
    stored_shapes(str(tmp_path / "ckpt-1"))
  (tmp_path / "ckpt-1.index").write_text("no table", "utf-8")
  with pytest.raises(tf.errors.OpError):
    stored_shapes(str(tmp_path / "ckpt-1"))
