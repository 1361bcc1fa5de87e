import http.server
import threading

import pytest

from official_trainer import notices
from official_trainer.errors import ExitCode


@pytest.fixture
def metadata(monkeypatch):
  """A metadata server; returns what it answers, by path."""
  answers = {"instance/preempted": "FALSE", "instance/maintenance-event": "NONE"}

  class Handler(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
      known = self.headers["Metadata-Flavor"] == "Google" and self.path.startswith("/computeMetadata/v1/")
      self.send_response(200 if known else 403)
      self.end_headers()
      self.wfile.write(answers[self.path.removeprefix("/computeMetadata/v1/")].encode())

    def log_message(self, *args):
      pass

  server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
  thread = threading.Thread(target=server.serve_forever, daemon=True)
  thread.start()
  monkeypatch.setenv("GCE_METADATA_IP", f"127.0.0.1:{server.server_port}")
  yield answers
  server.shutdown()
  server.server_close()
  thread.join()


@pytest.mark.parametrize(
  ("path", "answer"),
  [("instance/preempted", "TRUE"), ("instance/maintenance-event", "TERMINATE_ON_HOST_MAINTENANCE")],
)
def test_the_metadata_server_says_that_the_machine_will_go(metadata, path, answer):
  assert not notices.google_compute_engine()
  metadata[path] = answer
  assert notices.google_compute_engine()


def test_a_maintenance_that_moves_the_machine_is_no_notice(metadata):
  metadata["instance/maintenance-event"] = "MIGRATE_ON_HOST_MAINTENANCE"
  assert not notices.google_compute_engine()


def test_a_notice_becomes_one_request_to_stop_that_asks_for_a_restart():
  requested, asked = threading.Event(), []
  answers = iter([False, False, True])

  def request(reason, code):
    asked.append((reason, code))
    requested.set()

  with notices.stop_on_notice(lambda: next(answers), request, poll_secs=0.001):
    assert requested.wait(timeout=60)
  assert asked == [("the platform's preemption notice", ExitCode.RESTART)]


def test_a_server_that_does_not_answer_is_told_once_and_asked_on(caplog):
  requested, calls = threading.Event(), []

  def notice():
    calls.append(1)
    if len(calls) < 4:
      raise ConnectionRefusedError("refused")
    return True

  with notices.stop_on_notice(notice, lambda *request: requested.set(), poll_secs=0.001):
    assert requested.wait(timeout=60)
  assert caplog.text.count("could not be asked for (refused)") == 1


def test_nobody_is_asked_by_default():
  before = threading.active_count()
  with notices.stop_on_notice(notices.NOTICES[None], pytest.fail):
    assert threading.active_count() == before
