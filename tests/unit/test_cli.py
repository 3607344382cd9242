"""The command line's contract: one JSON document on stdout, messages on stderr, exit codes 0 to 3."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner, Result

from tritune import cli, worker
from tritune.cli import measure
from tritune.load_plan import LoadPlan
from tritune.plan import JobKind, JobState, TrialState
from tritune.settings import ROOT, Settings
from tritune.store import Store


@pytest.fixture(autouse=True)
def settings(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Settings:
    monkeypatch.setenv("TRITUNE_RESULTS", str(tmp_path / "the results"))
    monkeypatch.setenv("TRITUNE_MODEL_REPO", str(tmp_path / "models"))
    monkeypatch.delenv("TRITUNE_DATABASE_URL", raising=False)
    return Settings.from_env()


def run(*arguments: str) -> Result:
    return CliRunner().invoke(cli.app, list(arguments))


def refused(result: Result, code: int, *words: str) -> None:
    """The command failed with one sentence that has these words, and no traceback."""
    assert result.exit_code == code, result.output
    assert "Traceback" not in result.output
    for word in words:
        assert word in result.stderr


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("load", "mnist", "--rate", "0"), ["rate=0"]),
        (("load", "mnist", "--concurrency", "-1"), ["concurrency=-1"]),
        (("load", "mnist"), ["exactly one"]),
        (("load", "mnist", "--concurrency", "1", "--rate", "1"), ["exactly one"]),
        (("load", "mnist", "--concurrency", "1", "--driver", "wrk"), ["--driver 'wrk'", "locust or perf_analyzer"]),
        (("load", "mnist", "--concurrency", "1", "--shape", "ids"), ["The shape 'ids'"]),
        (("load", "mnist", "--concurrency", "1", "--shape", "ids:x"), ["The shape 'ids:x'"]),
        (("load", "mnist", "--concurrency", "1", "--int-range", "ids:9"), ["--int-range 'ids:9'"]),
        (("load", "mnist", "--stages", "10s"), ["'10s'", "10s:100,5s:100-400"]),
        (("load", "mnist", "--stages", "10s:5", "--duration", "4"), ["duration=4", "10 s"]),
        (("load", "mnist", "--stages", "10s:5", "--rate", "4"), ["exactly one"]),
        (("load", "mnist", "--intervals", "/no/such"), ["/no/such"]),
        (("load", "mnist", "--concurrency", "1", "--label", "x"), ["--label 'x'", "KEY=VALUE"]),
        (("tune", "mnist", "--max-queue-delay-us", "-5"), ["max_queue_delay_us=-5"]),
        (("tune", "mnist", "--preferred-batch-size", "4;8"), ["preferred_batch_size='4;8'"]),
        (("tune", "mnist"), ["Nothing to change"]),
        (("tune", "mnist", "--undo", "--instances", "2"), ["--undo takes no other change"]),
        (("tune", "mnist", "--instances", "2"), ["mnist"]),
        (("model", "build", "resnet"), ["resnet", "model add"]),
        (("model", "add", "/no/such/file.onnx"), ["/no/such/file.onnx"]),
        (("model", "build", "--opset", "3"), ["opset", "3"]),
        (("server", "start", "--kind", "podman"), ["podman", "docker"]),
        (("server", "start", "--gpus", "all"), ["--kind docker"]),
        (("server", "start", "--port-base", "70000"), ["70000"]),
        (("server", "attach", "http://a b"), ["http://a b"]),
        (("compare", "t99"), ["t99"]),
        (("compare", "x"), ["'x' is not a trial"]),
        (("study", "show", "s99"), ["99"]),
    ],
)
def test_a_wrong_argument_gets_one_sentence_and_exit_code_2(arguments: tuple[str, ...], words: list[str]) -> None:
    refused(run(*arguments), 2, *words)
    with_json = run(*arguments, "--json")
    refused(with_json, 2, *words)
    assert set(json.loads(with_json.stdout)) == {"error"}


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("bogus",), ["No such command", "bogus"]),
        (("load",), ["Missing argument", "name"]),
        (("load", "mnist", "extra"), ["unexpected extra argument"]),
        (("load", "mnist", "--rate", "abc"), ["--rate", "valid number"]),
        (("load", "mnist", "--concurrency", "1.5"), ["--concurrency", "valid integer"]),
        (("load", "mnist", "--bogus"), ["No such option", "--bogus"]),
        (("tune", "mnist", "--instances"), ["--instances", "requires an argument"]),
        (("server", "attach"), ["Missing argument", "url"]),
        (("server", "logs", "--lines", "-3"), ["--lines"]),
        (("study", "list", "--limit", "0"), ["--limit"]),
        (("study", "list", "--limit", "9" * 30), ["--limit"]),
        (("model", "bogus"), ["No such command"]),
        (("compare",), ["Missing argument", "trials"]),
    ],
)
def test_a_wrong_use_of_a_verb_is_a_document_too(arguments: tuple[str, ...], words: list[str]) -> None:
    refused(run(*arguments), 2, *words)
    assert run(*arguments).stdout == ""
    with_json = run(*arguments, "--json")
    refused(with_json, 2)
    document = json.loads(with_json.stdout)
    assert set(document) == {"error"}
    assert document["error"] in with_json.stderr


def test_a_group_without_a_verb_shows_its_help(settings: Settings) -> None:
    for group in ((), ("model",), ("server",), ("study",)):
        result = run(*group)
        assert (result.exit_code, result.stdout) == (2, "")
        assert "Commands:" in result.stderr


@pytest.mark.parametrize("option", ["--note", "--label"])
def test_bytes_that_are_no_text_are_refused_where_they_would_be_kept(option: str) -> None:
    refused(run("load", "mnist", "--concurrency", "1", option, "a=\udcff"), 2, option, "UTF-8")


@pytest.mark.parametrize("text", ["4_0", "\u0664,8", "4,", ",", "4 8", "4.0", "0x4", "9" * 5000])
def test_only_plain_whole_numbers_are_whole_numbers(text: str) -> None:
    refused(run("tune", "mnist", "--preferred-batch-size", text, "--dry-run"), 2, "must be whole numbers")


def test_an_undo_is_no_dry_run() -> None:
    refused(run("tune", "mnist", "--undo", "--dry-run"), 2, "--undo", "--dry-run")


def test_an_interrupt_is_one_word_and_one_document(monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(settings: Settings) -> Any:
        raise KeyboardInterrupt

    monkeypatch.setattr("tritune.servers.status", interrupted)
    result = run("server", "status", "--json")
    refused(result, 130, "Stopped.")
    assert json.loads(result.stdout) == {"error": "Stopped."}


@pytest.mark.parametrize("module", ["typer", "inspect", "tritune.servers"])
def test_an_interrupt_at_any_import_shows_no_traceback(module: str, settings: Settings) -> None:
    code = (
        "import builtins, os, runpy, signal, sys\n"
        "real, seen, sys.argv = builtins.__import__, set(), ['tritune', 'server', 'status', '--json']\n"
        "def interrupting(name, *rest, **options):\n"
        f"    if name == {module!r} and name not in seen:\n"
        "        seen.add(name)\n"
        "        os.kill(os.getpid(), signal.SIGINT)\n"
        "    return real(name, *rest, **options)\n"
        "signal.signal(signal.SIGINT, signal.default_int_handler)\n"
        "builtins.__import__ = interrupting\n"
        "runpy.run_module('tritune', run_name='__main__')\n"
    )
    command, environment = [sys.executable, "-c", code], worker.child_environment(settings)
    done = subprocess.run(command, capture_output=True, text=True, cwd=ROOT, env=environment, timeout=60)
    if module == "tritune.servers":  # imported by the verb itself
        assert (done.returncode, done.stdout, done.stderr) == (130, '{"error": "Stopped."}\n', "Stopped.\n")
    else:
        assert (done.returncode, done.stdout, done.stderr) == (-signal.SIGINT, "", "")


def test_a_terminal_that_knows_few_characters_gets_the_others_as_numbers(settings: Settings) -> None:
    environment = {**worker.child_environment(settings), "PYTHONIOENCODING": "latin-1:strict"}
    command = [sys.executable, "-m", "tritune", "model", "check", "\u2603"]
    for arguments in (command, [*command, "--json"]):
        done = subprocess.run(arguments, capture_output=True, text=True, cwd=ROOT, env=environment, timeout=60)
        assert (done.returncode, "Traceback" in done.stderr) == (2, False)
        assert "\\u2603" in done.stderr
    assert "\u2603" in json.loads(done.stdout)["error"]


def test_a_trial_without_intervals_is_told_without_them(settings: Settings) -> None:
    number = {"value": 12.0, "ci95": None, "at_least": False}
    text = measure.trial_text(
        {
            "trial_id": "t1",
            "model": "mnist",
            "load": LoadPlan(model="mnist", concurrency=1).load(),
            "plan": LoadPlan(model="mnist", concurrency=1).to_dict(),
            "configuration": None,
            "throughput_ips": number,
            "latency_ms": {"p50": 1.0, "p95": 2.0, "p99": number},
            "server": None,
            "warnings": [],
        }
    )
    assert "throughput 12.0/s\n" in text
    assert "P99 12.0 ms" in text
    assert "95 %" not in text


def test_without_a_server_every_verb_that_needs_one_says_how_to_start_it() -> None:
    assert run("model", "build").exit_code == 0
    refused(run("load", "mnist", "--concurrency", "8"), 1, "tritune server start")
    refused(run("tune", "mnist", "--instances", "2"), 1, "tritune server start")


def test_status_without_a_server_is_stopped_and_no_failure() -> None:
    result = run("server", "status", "--json")
    assert result.exit_code == 0
    document = json.loads(result.stdout)
    assert document["state"] == "stopped"
    assert {"kind", "http", "grpc", "metrics", "triton_version"} <= set(document)


def test_a_dry_run_shows_the_change_and_writes_nothing(settings: Settings) -> None:
    run("model", "build")
    config = settings.model_repo / "mnist" / "config.pbtxt"
    before = config.read_text()
    result = run("tune", "mnist", "--preferred-batch-size", "4,8", "--dry-run", "--json")
    assert result.exit_code == 0
    assert "+  preferred_batch_size: [4, 8]" in json.loads(result.stdout)["diff"]
    assert config.read_text() == before


def test_model_verbs_publish_list_and_check(settings: Settings) -> None:
    for version in (1, 2):
        result = run("model", "build", "mnist", "--json")
        document = json.loads(result.stdout)
        assert (document["model"], document["version"], document["loaded"]) == ("mnist", version, False)
        assert document["accuracy"] >= 0.988
        assert document["max_abs_difference"] <= 1e-4
    assert json.loads(run("model", "list", "--json").stdout)["models"] == [
        {"name": "mnist", "versions": [1, 2], "has_config": True}
    ]
    assert run("model", "check", "mnist").exit_code == 0
    config = settings.model_repo / "mnist" / "config.pbtxt"
    config.write_text(config.read_text().replace("INPUT__0", "input.1"))
    result = run("model", "check", "mnist", "--json")
    assert result.exit_code == 3
    findings = json.loads(result.stdout)["findings"]
    assert any("input.1" in f["seen"] and "INPUT__0" in f["fix"] for f in findings)
    assert all(set(f) >= {"code", "severity", "seen", "cause", "fix"} for f in findings)


@pytest.mark.parametrize(("batch", "is_said"), [("batch", False), (1, True)])
def test_a_fixed_batch_dimension_is_said_when_the_model_is_added(
    settings: Settings, tmp_path: Path, batch: str | int, is_said: bool
) -> None:
    import onnx
    from onnx import TensorProto, helper

    x, y = (helper.make_tensor_value_info(name, TensorProto.FLOAT, [batch, 4]) for name in "xy")
    graph = helper.make_graph([helper.make_node("Relu", ["x"], ["y"])], "relu", [x], [y])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    onnx.save(model, tmp_path / "relu.onnx")
    result = run("model", "add", str(tmp_path / "relu.onnx"), "--json")
    assert result.exit_code == 0
    assert ("dimension 0 of x [1,4] is fixed" in result.stderr) == is_said


@pytest.mark.parametrize("opset", ["0", "-1", "8", "999"])
def test_an_opset_out_of_range_is_refused_zero_included(opset: str) -> None:
    refused(run("model", "build", "--opset", opset), 2, f"opset={opset}")


def test_an_unexpected_fault_is_one_sentence_and_its_details_go_to_a_file(
    monkeypatch: pytest.MonkeyPatch, settings: Settings
) -> None:
    def broken() -> Any:
        raise RuntimeError("a fault of ours")

    monkeypatch.setattr("tritune.servers.status", lambda settings: broken())
    result = run("server", "status")
    refused(result, 1, "RuntimeError: a fault of ours", "faults.log")
    assert "Traceback" in (settings.results / "faults.log").read_text()


def test_studies_are_listed_and_shown(settings: Settings) -> None:
    store = Store(settings.database_url)
    plan = LoadPlan(model="mnist", concurrency=8)
    job_id = store.insert_job(JobKind.LOAD_TEST, {"plan": plan.to_dict()})
    store.claim("me")
    trial_id = store.start_trial(job_id, plan, configuration=None, labels={}, note="")
    store.finish_trial(trial_id, TrialState.FAILED, error="the server ended")
    store.finish_job(job_id, "me", JobState.FAILED, result={"trial_id": trial_id}, error="the server ended")
    store.close()
    (row,) = json.loads(run("study", "list", "--json").stdout)["studies"]
    assert (row["study_id"], row["state"], row["error"]) == (f"s{job_id}", "failed", "the server ended")
    shown = json.loads(run("study", "show", f"s{job_id}", "--json").stdout)
    assert [trial["trial_id"] for trial in shown["trials"]] == [trial_id]
    assert run("study", "list").stdout.strip().startswith(f"s{job_id} failed")


def test_the_command_line_starts_without_the_heavy_libraries() -> None:
    code = (
        "import sys; import tritune.cli, tritune.servers, tritune.jobs; "
        "heavy = {'torch', 'onnx', 'onnxruntime', 'pandas', 'streamlit', 'locust', 'gevent', 'scipy', 'altair'}; "
        "print(sorted(heavy & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=ROOT, check=True)
    assert done.stdout.strip() == "[]"


def test_help_names_every_verb() -> None:
    text = run("--help").output
    for verb in ("model", "server", "tune", "load", "compare", "study", "app", "worker", "setup"):
        assert verb in text
