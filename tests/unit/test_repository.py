"""The model repository: nothing half is ever visible, and what Triton would ignore or refuse is found."""

from __future__ import annotations

import errno
import os
import subprocess
import sys
import threading
from pathlib import Path

import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from tritune import model_config, onnx_model
from tritune.errors import ConfigError, InputError, OnnxError, TrituneError, UnknownModelError
from tritune.model_config import ModelConfig
from tritune.plan import Configuration
from tritune.repository import ModelRepository
from tritune.servers import embedded

# Publishes in a forked child that dies at the N-th line of repository.py, for every N, and tells after each death what
# a server would see and, after one more publish, what is left beside the repository.
KILLED_AT_EVERY_LINE = """
import os, shutil, sys
from pathlib import Path
from tritune import model_config, onnx_model, repository
from tritune.repository import ModelRepository

folder, source, kind = Path(sys.argv[1]), Path(sys.argv[2]), sys.argv[3]
root = folder / "repo"
config = model_config.generate(onnx_model.inspect(source), "m")

def fresh():
    shutil.rmtree(folder, ignore_errors=True)
    root.mkdir(parents=True)
    if kind == "next":
        ModelRepository(root).publish("m", source, config)
    if kind == "config":
        (root / "m" / "1").mkdir(parents=True)
        shutil.copyfile(source, root / "m" / "1" / "model.onnx")
    if kind == "write":
        ModelRepository(root).publish("m", source, config)

def act():
    if kind == "write":
        ModelRepository(root).write_config("m", config.text + 'runtime: "x"' + chr(10))
    else:
        ModelRepository(root).publish("m", source, config)

def seen():
    # Folders too: an empty m/2 would be a version to Triton.
    sizes = {path.relative_to(root): path.stat().st_size if path.is_file() else "" for path in root.rglob("*")}
    return ";".join(sorted(f"{path}={size}" for path, size in sizes.items()))

def trace(limit):
    count = 0
    def lines(frame, event, argument):
        nonlocal count
        if event == "line":
            count += 1
            if count == limit:
                os._exit(9)
        return lines
    def calls(frame, event, argument):
        return lines if frame.f_code.co_filename == repository.__file__ else None
    return calls

states, step = [], 0
while True:
    step += 1
    fresh()
    child = os.fork()
    if child == 0:
        sys.settrace(trace(step))
        act()
        os._exit(0)
    died = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 9
    states.append(seen())
    if not died:
        break
    act()
    left = [path.name for path in folder.iterdir()]
    assert left == ["repo"], (step, left)
print(step)
print("\\n".join(dict.fromkeys(states)))
"""


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save(tmp_path_factory.mktemp("source") / "relu.onnx")


@pytest.fixture
def repository(tmp_path: Path) -> ModelRepository:
    return ModelRepository(tmp_path / "a repo")


def save(path: Path, *, batch: str | int = "n", external: bool = False) -> Path:
    weight = numpy_helper.from_array(helper.np.ones((4, 4), dtype="float32"), "w")
    graph = helper.make_graph(
        [helper.make_node("MatMul", ["x", "w"], ["y"])],
        "g",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, [batch, 4])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, [batch, 4])],
        [weight],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)])
    model.ir_version = 8
    onnx.save(model, path, save_as_external_data=external, location="w.bin", size_threshold=0)
    return path


def generated(source: Path, name: str = "m") -> ModelConfig:
    return model_config.generate(onnx_model.inspect(source), name)


def everything(folder: Path) -> list[str]:
    return sorted(str(path.relative_to(folder)) for path in folder.rglob("*"))


class TestPublishing:
    def test_the_first_version_brings_its_configuration(self, repository: ModelRepository, source: Path) -> None:
        assert repository.publish("m", source, generated(source)) == 1
        assert everything(repository.path) == ["m", "m/1", "m/1/model.onnx", "m/config.pbtxt"]
        assert (repository.path / "m/1/model.onnx").read_bytes() == source.read_bytes()
        assert repository.config("m") == generated(source)
        assert [path.name for path in repository.path.parent.iterdir()] == [repository.path.name]

    def test_the_next_version_leaves_the_configuration_alone(self, repository: ModelRepository, source: Path) -> None:
        repository.publish("m", source, generated(source))
        repository.write_config("m", "# mine\n")
        assert repository.publish("m", source, generated(source)) == 2
        assert repository.config_text("m") == "# mine\n"
        assert repository.entry("m").versions == (1, 2)

    def test_a_model_without_a_configuration_gets_one(self, repository: ModelRepository, source: Path) -> None:
        repository.publish("m", source, None)
        assert repository.config_text("m") is None
        assert repository.publish("m", source, generated(source)) == 2
        assert repository.config("m") == generated(source)

    def test_numbers_go_on_after_gaps_files_and_odd_folders(self, repository: ModelRepository, source: Path) -> None:
        for folder in ("m/3", "m/007", "m/9.bak"):
            (repository.path / folder).mkdir(parents=True)
        (repository.path / "m/11").write_text("a file")
        assert repository.publish("m", source, None) == 12

    def test_outside_weights_come_along(self, repository: ModelRepository, tmp_path: Path) -> None:
        (tmp_path / "large").mkdir()
        large = save(tmp_path / "large/model.onnx", external=True)
        repository.publish("m", large, generated(large))
        assert (repository.path / "m/1/w.bin").stat().st_size == 64
        assert repository.check("m") == ()
        assert repository.model_hash("m", 1) == onnx_model.inspect(large).sha256

    def test_publishers_at_once_get_different_numbers(self, repository: ModelRepository, source: Path) -> None:
        config, numbers = generated(source), []
        start = threading.Barrier(6)

        def publish() -> None:
            start.wait()
            numbers.append(repository.publish("m", source, config))

        threads = [threading.Thread(target=publish) for _ in range(6)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert sorted(numbers) == [1, 2, 3, 4, 5, 6]
        assert repository.entry("m").versions == (1, 2, 3, 4, 5, 6)
        assert repository.config("m") == config
        assert [path.name for path in repository.path.parent.iterdir()] == [repository.path.name]

    @pytest.mark.parametrize("kind", ["first", "next", "config", "write"])
    def test_killed_at_any_line_it_leaves_all_or_nothing(self, kind: str, source: Path, tmp_path: Path) -> None:
        command = [sys.executable, "-c", KILLED_AT_EVERY_LINE, str(tmp_path / "work"), str(source), kind]
        done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
        assert done.returncode == 0, done.stderr
        steps, *states = done.stdout.split("\n")[:-1]
        model, config = source.stat().st_size, len(generated(source).text)
        first = f"m/1/model.onnx={model};m/1="
        second, written = f"m/2/model.onnx={model};m/2=", f"m/config.pbtxt={config}"
        longer = f"m/config.pbtxt={config + 13}"
        allowed = {
            "first": ["", f"{first};{written};m="],
            "next": [f"{first};{written};m=", f"{first};{second};{written};m="],
            # Two renames: in between the version is whole and Triton completes the configuration.
            "config": [f"{first};m=", f"{first};{second};m=", f"{first};{second};{written};m="],
            "write": [f"{first};{written};m=", f"{first};{longer};m="],
        }
        assert int(steps) > 20
        assert states == allowed[kind]

    def test_a_place_beside_that_cannot_be_written_is_not_needed(
        self, repository: ModelRepository, source: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        repository.path.mkdir()
        monkeypatch.setattr("tritune.repository._mount", lambda path: str(path))
        assert repository.publish("m", source, generated(source)) == 1
        assert everything(repository.path) == ["m", "m/1", "m/1/model.onnx", "m/config.pbtxt"]

    @pytest.mark.parametrize("name", ["a b", "$(touch x)", "", ".hidden", "../m", "a/b", "m\n", "x" * 65, "é", "-m"])
    def test_unsafe_names_are_refused(self, repository: ModelRepository, source: Path, name: str) -> None:
        with pytest.raises(InputError, match="cannot be a model's name"):
            repository.publish(name, source, None)
        assert not repository.path.exists()

    def test_what_is_not_onnx_is_refused(self, repository: ModelRepository, tmp_path: Path) -> None:
        (tmp_path / "text.onnx").write_text("hello")
        for path in (tmp_path / "text.onnx", tmp_path / "missing.onnx", tmp_path):
            with pytest.raises(OnnxError):
                repository.publish("m", path, None)
        assert not repository.path.exists()

    @pytest.mark.parametrize(
        ("number", "said"),
        [
            (errno.ENOSPC, "no space is left on the disk. Free some"),
            (errno.EACCES, "Change its permissions"),
            (errno.EIO, "Check the folder"),
        ],
    )
    def test_a_failing_disk_is_one_sentence_and_changes_nothing(
        self,
        repository: ModelRepository,
        source: Path,
        monkeypatch: pytest.MonkeyPatch,
        number: int,
        said: str,
    ) -> None:
        repository.publish("m", source, generated(source))
        before = everything(repository.path.parent)

        def fail(*arguments: object) -> None:
            raise OSError(number, os.strerror(number))

        monkeypatch.setattr("tritune.repository.shutil.copyfile", fail)
        with pytest.raises(TrituneError, match=said):
            repository.publish("m", source, None)
        monkeypatch.setattr("tritune.repository.os.fsync", fail)
        with pytest.raises(TrituneError, match=said):
            repository.write_config("m", "name: 'x'")
        assert everything(repository.path.parent) == before
        assert repository.config("m") == generated(source)

    def test_a_file_in_the_place_of_the_model_is_said(self, repository: ModelRepository, source: Path) -> None:
        repository.path.mkdir()
        (repository.path / "m").write_text("")
        with pytest.raises(InputError, match="is a file"):
            repository.publish("m", source, None)


class TestReading:
    def test_a_missing_folder_holds_no_model(self, repository: ModelRepository) -> None:
        assert repository.models() == ()
        assert repository.strays() == ()
        with pytest.raises(UnknownModelError, match="tritune model build"):
            repository.entry("mnist")

    def test_an_unknown_model_names_the_known_ones(self, repository: ModelRepository, source: Path) -> None:
        repository.publish("mnist", source, None)
        with pytest.raises(UnknownModelError, match=r"no model nobody .* It has: mnist"):
            repository.check("nobody")
        with pytest.raises(UnknownModelError, match=r"no version 7\. Its versions: 1"):
            repository.model_hash("mnist", 7)

    def test_folders_with_unsafe_names_are_found_and_never_models(
        self, repository: ModelRepository, source: Path
    ) -> None:
        repository.publish("good", source, generated(source, "good"))
        for name in ("a b", "$(touch pwned)"):
            (repository.path / name / "1").mkdir(parents=True)
        (repository.path / "README.md").write_text("a file is no model")
        assert [entry.name for entry in repository.models()] == ["good"]
        assert [finding.seen for finding in repository.strays()] == ["the folder '$(touch pwned)'", "the folder 'a b'"]
        assert repository.check("a b") == repository.strays()[1:]

    def test_the_newest_version_is_the_greatest_number(self, repository: ModelRepository, source: Path) -> None:
        for number in ("2", "10", "011", "x"):
            (repository.path / "m" / number).mkdir(parents=True)
            (repository.path / "m" / number / "model.onnx").write_bytes(source.read_bytes())
        entry = repository.entry("m")
        assert entry.versions == (2, 10)
        assert entry.onnx_path == repository.path / "m/10/model.onnx"

    def test_another_file_name_is_honoured(self, repository: ModelRepository, source: Path) -> None:
        repository.publish("m", source, generated(source))
        (repository.path / "m/1/model.onnx").rename(repository.path / "m/1/net.onnx")
        text = generated(source).text
        repository.write_config("m", text + 'default_model_filename: "net.onnx"\n')
        assert repository.entry("m").onnx_path == repository.path / "m/1/net.onnx"
        assert repository.check("m") == ()

    def test_what_auto_complete_would_add_is_written_out(self, repository: ModelRepository, source: Path) -> None:
        repository.publish("m", source, None)
        assert repository.config("m").configuration == Configuration(4, True)
        repository.write_config("m", "max_batch_size: 8\n")
        assert repository.config("m").configuration == Configuration(8, True)
        assert repository.config("m").signature.inputs[0].name == "x"
        repository.remove_config("m")
        assert repository.config_text("m") is None

    def test_bytes_that_are_no_text_are_one_clear_error(self, repository: ModelRepository, source: Path) -> None:
        repository.publish("m", source, generated(source))
        (repository.path / "m/config.pbtxt").write_bytes(b"\xff\xfe")
        with pytest.raises(ConfigError, match="not UTF-8"):
            repository.config("m")
        assert [finding.code for finding in repository.check("m")] == ["config_file"]


class TestChecking:
    def test_a_published_model_is_without_fault(self, repository: ModelRepository, source: Path) -> None:
        repository.publish("m", source, generated(source))
        assert repository.check("m") == ()

    def test_faults_of_the_configuration_are_findings(self, repository: ModelRepository, source: Path) -> None:
        repository.publish("m", source, generated(source))
        good = generated(source).text
        repository.write_config("m", good + "\nbatching_option [ { preferred_batch_size: [ 4 ] } ]\n")
        assert "dynamic_batching" in repository.check("m")[0].fix
        repository.write_config("m", good.replace('"x"', '"input.1"'))
        assert '"x"' in repository.check("m")[0].fix
        repository.write_config("m", good + "version_policy { specific { versions: [ 1, 7 ] } }\n")
        assert [(finding.code, "7" in finding.seen) for finding in repository.check("m")] == [("version_missing", True)]

    @pytest.mark.parametrize(
        ("old", "new", "code", "severity", "fix"),
        [
            ("m/config.pbtxt", "m/1/config.pbtxt", "config_place", "error", "Move it to m/config.pbtxt"),
            ("m/1/model.onnx", "m/1/relu.onnx", "model_file", "error", "Rename relu.onnx to model.onnx"),
            ("m/1/model.onnx", "m/model.onnx", "model_place", "warning", "m/1/model.onnx"),
            ("m/1", "m/01", "version_name", "warning", "Rename m/01 to m/1"),
            ("m/1", "m/v1", "no_version", "error", "m/1/model.onnx"),
            ("m/1", "m/1.bak", "version_name", "warning", "out of the repository"),
            ("m/config.pbtxt", "m/config.pbtxt.txt", "config_name", "warning", "Rename it to config.pbtxt"),
            ("m/config.pbtxt", "m/.config.pbtxt.swp", "editor_file", "warning", "Close the editor"),
            ("m/config.pbtxt", "elsewhere", "no_config", "info", "in full"),
        ],
    )
    def test_what_lies_in_the_wrong_place_is_found(
        self,
        repository: ModelRepository,
        source: Path,
        old: str,
        new: str,
        code: str,
        severity: str,
        fix: str,
    ) -> None:
        repository.publish("m", source, generated(source))
        (repository.path / old).rename(repository.path / new)
        found = {finding.code: finding for finding in repository.check("m")}
        assert code in found, found
        assert (found[code].severity, fix in found[code].fix) == (severity, True)

    def test_a_damaged_model_is_a_finding_and_the_rest_is_still_checked(
        self, repository: ModelRepository, source: Path
    ) -> None:
        repository.publish("m", source, generated(source))
        (repository.path / "m/1/model.onnx").write_bytes(source.read_bytes()[:50])
        repository.write_config("m", generated(source).text.replace('name: "m"', 'name: "n"'))
        assert [finding.code for finding in repository.check("m")] == ["onnx", "name_mismatch"]

    def test_a_fixed_batch_with_batching_is_found(self, repository: ModelRepository, tmp_path: Path) -> None:
        fixed = save(tmp_path / "fixed.onnx", batch=1)
        repository.publish("m", fixed, generated(fixed))
        assert repository.check("m") == ()
        repository.write_config("m", repository.config("m").text + "max_batch_size: 8\n")
        assert "fixed_batch" in {finding.code for finding in repository.check("m")}

    @pytest.mark.parametrize("kind", ["fifo", "device", "folder", "huge"])
    def test_a_configuration_that_is_no_short_text_file_is_told_and_never_read(
        self, repository: ModelRepository, kind: str
    ) -> None:
        (repository.path / "m" / "1").mkdir(parents=True)
        path = repository.path / "m" / "config.pbtxt"
        if kind == "fifo":
            os.mkfifo(path)
        elif kind == "device":
            path.symlink_to("/dev/zero")
        elif kind == "folder":
            path.mkdir()
        else:
            with path.open("wb") as file:
                file.truncate(1 << 40)
        with pytest.raises(ConfigError, match=r"no regular file|larger than 16 MiB"):
            repository.config_text("m")
        assert "config_file" in {finding.code for finding in repository.check("m")}
        if kind != "huge":
            with pytest.raises(InputError, match="no regular file"):
                embedded.check_loadable(repository.path, "m")
