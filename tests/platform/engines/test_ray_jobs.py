"""The Jobs REST client against a real HTTP server that answers as Ray does."""

import json
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import parse_qs

import pytest

from samite.engines.ray_jobs import JobStatus, RayJobs
from samite.errors import NotFoundError, SamiteError, UnreachableError


class Dashboard(BaseHTTPRequestHandler):
    """Knows one job; refuses a wrong token and a repeated id with the words of Ray 2.60."""

    jobs: dict[str, str] = {}
    actors: dict[str, object] = {}

    def do_GET(self) -> None:
        if self.headers.get("Authorization") != "Bearer secret":
            self._answer(401, "Unauthenticated")
        elif self.path == "/api/jobs/silent":
            self.close_connection = True
        elif self.path == "/api/jobs/html":
            self._answer(200, "<html>")
        elif self.path.removeprefix("/api/jobs/") in self.jobs:
            name = self.path.removeprefix("/api/jobs/")
            self._answer(200, json.dumps({"status": self.jobs[name], "message": "m", "driver_exit_code": 93}))
        elif self.path.startswith("/api/v0/actors?"):
            asked = parse_qs(self.path.partition("?")[2])
            assert list(zip(asked["filter_keys"], asked["filter_predicates"], asked["filter_values"], strict=True)) == [
                ("job_id", "=", "02000000"),
                ("state", "!=", "DEAD"),
            ]
            self._answer(200, json.dumps({"data": {"result": self.actors}}))
        elif self.path == "/api/version":
            self._answer(200, '{"version": "4"}')
        else:
            self._answer(404, "Job nope does not exist")

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        if body["submission_id"] in self.jobs:
            self._answer(
                500, "Traceback ...\nValueError: Job with submission_id x already exists. Please use a different submission_id.\n.\n"
            )
            return
        self.jobs[body["submission_id"]] = "PENDING"
        self._answer(200, json.dumps({"submission_id": body["submission_id"]}))

    def _answer(self, code: int, text: str) -> None:
        self.send_response(code)
        self.end_headers()
        self.wfile.write(text.encode())

    def log_message(self, *_: object) -> None:
        pass


@pytest.fixture
def jobs() -> Iterator[RayJobs]:
    Dashboard.jobs = {}
    server = ThreadingHTTPServer(("127.0.0.1", 0), Dashboard)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    yield RayJobs(address=f"http://127.0.0.1:{server.server_port}", token="secret", timeout_s=2)
    server.shutdown()
    server.server_close()
    thread.join()


def test_submitting_the_same_id_twice_is_no_error_and_is_told_apart(jobs: RayJobs):
    assert jobs.submit("demo-s00-a1", "true", {}) is True
    assert jobs.submit("demo-s00-a1", "true", {}) is False
    assert jobs.job("demo-s00-a1").status is JobStatus.PENDING


def test_the_drivers_exit_code_comes_along(jobs: RayJobs):
    Dashboard.jobs["x"] = "FAILED"
    assert jobs.job("x").exit_code == 93
    assert jobs.job("x").status.is_over


def table(*detached: bool, total: int | None = None) -> dict[str, object]:
    rows = [{"class_name": "RayTrainWorker", "state": "ALIVE", "is_detached": item} for item in detached]
    return {"total": len(rows) if total is None else total, "num_after_truncation": len(rows), "result": rows}


@pytest.mark.parametrize(("found", "left"), [(table(), 0), (table(False, False), 2), (table(True), 0), (table(True, False, True), 1)])
def test_actors_of_a_job_are_counted_but_for_those_that_ray_means_to_outlive_it(jobs: RayJobs, found: dict[str, object], left: int):
    Dashboard.actors = found
    assert jobs.actors_left("02000000") == left


def test_a_part_of_the_table_of_actors_says_nothing(jobs: RayJobs):
    Dashboard.actors = table(True, total=20_000)
    with pytest.raises(SamiteError, match="1 of its 20000 actors"):
        jobs.actors_left("02000000")


def test_an_unknown_job_is_not_found_and_not_unreachable(jobs: RayJobs):
    with pytest.raises(NotFoundError):
        jobs.job("nope")


@pytest.mark.parametrize("name", ["silent", "html"])
def test_no_answer_and_a_senseless_answer_are_both_unreachable(jobs: RayJobs, name: str):
    with pytest.raises(UnreachableError):
        jobs.job(name)


def test_a_refusal_says_what_was_refused(jobs: RayJobs):
    stranger = RayJobs(address=jobs.address, token="wrong")
    with pytest.raises(SamiteError, match="Ray refused GET /api/version with 401"):
        stranger._call("GET", "/api/version")
    assert not stranger.is_up()


def test_a_closed_port_is_unreachable_at_once():
    with pytest.raises(UnreachableError):
        RayJobs(address="http://127.0.0.1:9", timeout_s=2).job("x")
