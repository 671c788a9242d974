"""Files and texts that are not what they should be get one clear error: no traceback, no hang, no gigabytes."""

import json
import os
import random
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from baselines.strategy import parse_strategy
from baselines.text import TextError
from crossover.arbiter.roster import Roster
from crossover.errors import Refused
from crossover.settings import Settings
from harness.predict.calibration import read_calibration
from harness.predict.costs import PredictError
from harness.systems import system_of
from models.codec_profile import load_codecs
from models.data import imagefolder
from models.data.imagefolder import Unreadable, list_images, read_image
from models.data.text import read_corpus
from models.layer_profile import load_profile
from models.values import WorkloadError
from results.codec import CodecError
from results.files import parse_json, read_json
from results.record import RecordError, read_record
from scripts import fuzz
from suites.cli import command_parser
from suites.cli import main as command_line

BAD_JSON = {
    "nested a hundred thousand deep": "[" * 100_000,
    "nested objects": '{"a":' * 100_000,
    "an integer of 5,000 digits": "9" * 5_000,
    "not a number": "NaN",
    "cut off": '{"schema": ',
    "bytes that are no text": "\udcff",
}
READERS: dict[str, tuple[Callable[[Path], object], type[Exception]]] = {
    "record": (read_record, RecordError),
    "calibration": (read_calibration, PredictError),
    "layer profile": (lambda path: load_profile(str(path)), WorkloadError),
    "codec profile": (lambda path: load_codecs(str(path)), WorkloadError),
}


@pytest.mark.parametrize("content", BAD_JSON.values(), ids=BAD_JSON)
@pytest.mark.parametrize(("read", "error"), READERS.values(), ids=READERS)
def test_a_file_that_is_no_json_is_refused_by_name(
    tmp_path: Path, content: str, read: Callable[[Path], object], error: type[Exception]
) -> None:
    path = tmp_path / "given.json"
    path.write_text(content, errors="surrogateescape")
    with pytest.raises(error, match=r"given\.json"):
        read(path)


@pytest.mark.parametrize("content", BAD_JSON.values(), ids=BAD_JSON)
@pytest.mark.parametrize("read", [Settings.from_json, Roster.from_json])
def test_the_scheduler_refuses_what_is_no_json(content: str, read: Callable[[str], object]) -> None:
    with pytest.raises(Refused):
        read(content)


def test_a_pipe_a_device_and_a_folder_are_no_files(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe.json")
    for path in (tmp_path / "pipe.json", tmp_path, Path("/dev/zero")):
        with pytest.raises(CodecError):
            read_json(path)


def test_a_file_larger_than_what_is_read_is_refused_before_it_is_read(tmp_path: Path) -> None:
    (tmp_path / "large.json").write_text("[" + " " * 1_000 + "]")
    with pytest.raises(CodecError, match="1,002 bytes, more than the 1,000"):
        read_json(tmp_path / "large.json", most_bytes=1_000)


def test_a_number_beyond_floats_is_refused_with_its_field(tmp_path: Path) -> None:
    text = Path("models/profiles/resnet50-v100.json").read_text()
    for number in ("1" + "0" * 400, "1e400"):
        bent = text.replace('"forward_s": 0', f'"forward_s": {number}, "x": 0', 1)
        assert bent != text
        (tmp_path / "bent.json").write_text(bent)
        with pytest.raises(WorkloadError, match=r"bent\.json"):
            load_profile(str(tmp_path / "bent.json"))
    assert parse_json("1e400") == float("inf")  # what the reader of fields then refuses


@pytest.mark.parametrize("size", ["-5", "0"])
def test_a_layer_of_no_elements_is_refused_by_name(tmp_path: Path, size: str) -> None:
    text = Path("models/profiles/elman_rnn-cpu.json").read_text()
    bent = text.replace("2048", size, 1)
    assert bent != text
    (tmp_path / "bent.json").write_text(bent)
    with pytest.raises(WorkloadError, match=rf"bent\.json: 'embedding.weight' has the shape \[{size}, 256\]"):
        load_profile(str(tmp_path / "bent.json"))


def entry(**changes: object) -> str:
    costs = {"world": 2, "primitives": {"AllReduce": {"alpha_s": 1e-5, "beta_s_per_byte": 1e-9}}}
    return json.dumps(
        {"entries": [{"kind": "emulated", "num_hosts": 2, "rate_bps": 1e9, "costs": costs, "rows": [], **changes}]}
    )


def times(world: int, *stages_s: float) -> dict[str, object]:
    return {"world": world, "stages_s": stages_s}


def codecs(*rows: dict[str, object], copy_s: float = 1e-10) -> str:
    told = {"device": "d", "source": "s", "network": "n", "num_elements": 1, "copy_s": copy_s}
    return json.dumps({**told, "methods": {"half": rows}})


def layer(*shape: int, forward_s: float = 1.0) -> str:
    own = {"name": "l", "parameters": [{"name": "w", "shape": shape}], "forward_s": forward_s, "backward_s": 1.0}
    told = {"network": "n", "provenance": "derived", "source": "s", "device": "d", "precision": "p", "batch_size": 1}
    return json.dumps({**told, "sample": "s", "num_steps": 0, "layers": [own]})


ROW = {"probe": "engine", "num_tensors": 10**12, "num_bytes": 4}
NUMBERS = {
    "ranks of a calibration": ("calibration", entry(num_hosts=10**9), "num_hosts is 1000000000; .*from 1 to 1e"),
    "a rate of 0": ("calibration", entry(rate_bps=0.0), "rate_bps is 0.0; .*measure it again"),
    "tensors of a row": ("calibration", entry(rows=[{"row": ROW, "seconds": 1.0}]), "num_tensors is 1000000000000;"),
    "time of a row": ("calibration", entry(rows=[{"row": {**ROW, "num_tensors": 1}, "seconds": 0}]), "seconds is 0.0;"),
    "a size beyond floats": ("layer profile", layer(10**400), "more than 1e.18 elements together; record it again"),
    "sizes that are too much together": ("layer profile", layer(10**12, 10**12), "more than 1e.18 elements"),
    "a negative time": ("layer profile", layer(1, forward_s=-1.0), "forward_s is -1.0; .*record it again"),
    "a copy in no time": ("codec profile", codecs(times(2, 1e-9), copy_s=0.0), "copy_s is 0.0; .*record them again"),
    "ranks of a codec": ("codec profile", codecs(times(10**9, 1e-9)), "world is 1000000000;"),
    "a number of ranks twice": ("codec profile", codecs(times(2, 1e-9), times(2, 1e-9)), "half has no row, or unequal"),
    "unequal stages": ("codec profile", codecs(times(2, 1e-9), times(4, 1e-9, 1e-9)), "half has no row, or unequal"),
}


@pytest.mark.parametrize(("kind", "content", "message"), NUMBERS.values(), ids=NUMBERS)
def test_a_number_that_cannot_be_is_refused_by_every_reader(
    tmp_path: Path, kind: str, content: str, message: str
) -> None:
    read, error = READERS[kind]
    (tmp_path / "given.json").write_text(content)
    with pytest.raises(error, match=rf"given\.json.*{message}"):
        read(tmp_path / "given.json")


@pytest.mark.parametrize(("read", "error"), READERS.values(), ids=READERS)
def test_every_reader_knows_its_files_by_the_first_field(
    tmp_path: Path, read: Callable[[Path], object], error: type[Exception]
) -> None:
    (tmp_path / "given.json").write_text('{"fields": [' + "[]," * 10_000 + "0]}")
    with pytest.raises(error, match="not with one of the fields "):
        read(tmp_path / "given.json")


TEXTS = {
    "topk(inner=1)": "no parameter 'inner'",
    "topk+error-feedback(inner=1)": "no parameter 'inner'",
    "topk(density=" + "-" * 1_500 + "1)": "name=value",
    "topk(density=" + "[" * 1_500 + ")": "name=value",
    "topk" * 1_000: "4,000 characters; at most 2,000",
    "fifo(depth=100000)": "depth is 100000; between 1 and 64",
    "p3(depth=0)": "depth is 0; between 1 and 64",
    "adam(lr=-1)": "lr is -1; use 0 or more",
    "sgd(momentum=-0.5)": "momentum is -0.5; use 0 or more and less than 1",
    "sgd(momentum=5.0)": "momentum is 5.0; use 0 or more and less than 1",
    "tensor-fusion(cycle_s=1e400)": "no finite number",
    "tensor-fusion(cycle_s=" + "9" * 400 + ")": "no finite number",
}


@pytest.mark.parametrize(("text", "message"), TEXTS.items(), ids=[text[:40] for text in TEXTS])
def test_a_strategy_text_beyond_reason_is_refused(text: str, message: str) -> None:
    with pytest.raises(TextError, match=message):
        parse_strategy(text)


def test_a_system_takes_no_wrapped_plug_in() -> None:
    with pytest.raises(TextError, match="no parameter 'inner'"):
        system_of("torch-ddp(inner=1)")


def test_a_small_image_that_unpacks_to_gigabytes_is_not_decoded(tmp_path: Path) -> None:
    header = b"\x89PNG\r\n\x1a\n\0\0\0\rIHDR" + (60_000).to_bytes(4) * 2 + b"\x08\x02\0\0\0"
    (tmp_path / "bomb.png").write_bytes(header + b"\0" * 64)
    found = read_image(tmp_path / "bomb.png")
    assert isinstance(found, Unreadable)
    assert "bomb.png" in found.reason


def test_an_image_with_more_pixels_than_any_photograph_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(imagefolder, "MOST_PIXELS", 99)
    Image.fromarray(np.zeros((10, 10, 3), np.uint8)).save(tmp_path / "large.png")
    assert read_image(tmp_path / "large.png") == Unreadable(
        f"{tmp_path / 'large.png'} has 10 × 10 pixels, more than 99"
    )


def test_pipes_and_folders_among_the_data_are_passed_over(tmp_path: Path) -> None:
    (tmp_path / "cat").mkdir()
    os.mkfifo(tmp_path / "cat" / "pipe.png")
    (tmp_path / "cat" / "folder.jpg").mkdir()
    Image.new("RGB", (4, 4)).save(tmp_path / "cat" / "real.png")
    assert [path.name for path in list_images(tmp_path).paths] == ["real.png"]
    os.mkfifo(tmp_path / "pipe.txt")
    (tmp_path / "folder.txt").mkdir()
    (tmp_path / "real.txt").write_text("some words")
    assert read_corpus(str(tmp_path)) == ["some words"]


@pytest.mark.parametrize("kind", [kind for kind in fuzz.KINDS if kind != "options"])
def test_no_drawn_input_of_this_kind_ends_in_a_traceback(kind: str) -> None:
    assert [failure for number in range(60) if (failure := fuzz.play(kind, number, seed=7))] == []


def test_no_drawn_command_line_ends_in_a_traceback() -> None:
    assert [failure for number in range(12) if (failure := fuzz.play("options", number, seed=7))] == []


def test_command_lines_are_made_mostly_of_the_commands_own_options() -> None:
    """Strange ones end in the parser's first refusal: with those alone no command's own code was reached."""
    made = [fuzz.make_options(random.Random(f"options/{number}")) for number in range(400)]
    flags = [(words[0], word) for words in made for word in words[1:] if word.startswith("--") and word[2:3].isalpha()]
    own = [word in fuzz.options_of_commands()[command] for command, word in flags if command != "rum"]
    assert sum(own) > len(own) / 2
    assert not {"--calibrate", "--refit"} & {word for _, word in flags}  # they would measure, and write


def test_who_runs_many_command_lines_reads_them_with_one_parser(capsys: pytest.CaptureFixture[str]) -> None:
    """A parser keeps nothing of one line for the next, lists of options least of all."""
    parser = command_parser()
    for _ in range(2):
        assert command_line(["predict", "quick", "--only", "no-cell", "--alpha", "1us"], parser=parser) == 2
        assert "'no-cell' matches no cell" in " ".join(capsys.readouterr().err.split())
    assert parser.parse_args(["predict", "quick"]).only == []
