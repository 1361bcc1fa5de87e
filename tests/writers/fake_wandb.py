"""The calls of `wandb` that the writer makes, without a network: what was sent stays in `server`."""

import types


class FakeRun:
  def __init__(self, stored):
    self._stored = stored
    self.config = types.SimpleNamespace(update=self._update)
    self._is_finished = False

  def define_metric(self, name, step_metric=None):
    self._stored["metrics"][name] = step_metric

  def log(self, values):
    if self._is_finished:
      raise RuntimeError("the run is finished")
    self._stored["log"].append(values)

  def finish(self):
    self._is_finished = True

  def _update(self, values, allow_val_change=False):
    self._stored["config"] |= values


class FakeWandb:
  """Stands for the module. `fails` names calls that raise."""

  def __init__(self, fails=()):
    self.server = {}
    self.inits = []
    self.fails = set(fails)

  def init(self, *, id, resume, config, **arguments):
    if "init" in self.fails:
      raise RuntimeError("no API key")
    self.inits.append({"id": id, "resume": resume, **arguments})
    is_known = id in self.server and resume == "allow"
    stored = self.server[id] if is_known else {"log": [], "config": {}, "metrics": {}}
    self.server[id] = stored
    stored["config"] |= config
    run = FakeRun(stored)
    if "log" in self.fails:
      run.log = self._no_network
    return run

  def Html(self, text):
    return ("html", text)

  def Image(self, picture):
    return ("image", picture.shape)

  def _no_network(self, values):
    raise ConnectionError("no network")

  def curves(self):
    """Returns (mode, name) -> [(step, value)] of the run that was begun last."""
    found = {}
    for values in self.server[self.inits[-1]["id"]]["log"]:
      for name, value in values.items():
        if name != "step" and isinstance(value, float):
          mode, _, metric = name.partition("/")
          found.setdefault((mode, metric), []).append((values["step"], value))
    return found
