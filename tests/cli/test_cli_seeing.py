"""Pages, traces and remarks of profiles, and mistakes on the command line that are found before anything compiles."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from html.parser import HTMLParser
from pathlib import Path
from xml.etree import ElementTree

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper
from typer.testing import CliRunner

from relayc import relay
from relayc.backend.runtime import memory_use
from relayc.backend.runtime.ceilings import Ceilings
from relayc.backend.runtime.profiler import NodeTiming, Report
from relayc.backend.runtime.remarks import remarks
from relayc.cli import console, environment, models
from relayc.cli.main import app
from relayc.frontends.compiling import compile_onnx
from relayc.runtime import ArgumentError, GraphModule, device
from relayc.te.ir import IRModule

runner = CliRunner()


def embed(*sizes: int | str) -> onnx.ModelProto:
    """y = relu(x)[i] with x[sizes, 4] and positions i[k]."""
    nodes = [
        helper.make_node("Relu", ["x"], ["h"], name="a<b>&c"),
        helper.make_node("Gather", ["h", "i"], ["y"], name="pick", axis=0),
    ]
    values = [
        helper.make_tensor_value_info("x", TensorProto.FLOAT, [*sizes, 4]),
        helper.make_tensor_value_info("i", TensorProto.INT64, ["k"]),
    ]
    graph = helper.make_graph(nodes, "g", values, [helper.make_empty_tensor_value_info("y")])
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=10)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("seeing")
    onnx.save(embed("batch", "seq"), folder / "m.onnx")
    (folder / "floats.json").write_text(json.dumps({"x": [[[1, 2, 3, 4]]], "i": [0.5]}))
    return folder


class Tags(HTMLParser):
    """Checks that elements are closed in order, and collects addresses."""

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.addresses: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.addresses += [str(value) for name, value in attrs if name in ("src", "href")]
        if tag != "meta":
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        """An element without content."""

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag


def test_a_profile_is_a_page_and_a_trace(folder: Path, tmp_path: Path) -> None:
    page, trace = tmp_path / "p.html", tmp_path / "t.json"
    command = ["profile", str(folder / "m.onnx"), "-s", "batch=2", "-s", "seq=3", "-s", "k=2", "--fill", "zeros"]
    result = runner.invoke(app, [*command, "-n", "2", "--rounds", "1", "--html", str(page), "--trace", str(trace)])
    assert result.exit_code == 0, result.output
    text, tags = page.read_text(), Tags()
    tags.feed(text)
    assert tags.open == [] and tags.addresses == [], "it works offline"
    assert not re.findall(r"(?:https?:)?//(?!www\.w3\.org/2000/svg)[a-z]", text.split("<script>")[0])
    for part in ("Remarks", "Roofline", "Kernels", "Graph", "take", "a&lt;b&gt;&amp;c"):
        assert part in text
    for svg in re.findall(r"<svg.*?</svg>", text, re.S):
        ElementTree.fromstring(svg)
    events = json.loads(trace.read_text())
    nodes = [event for event in events if event.get("cat") == "Node"]
    (run,) = [event for event in events if event.get("cat") == "Session"]
    assert len(nodes) >= 1 and all(event["ph"] == "X" and event["dur"] >= 0 for event in nodes)
    assert sum(event["dur"] for event in nodes) == pytest.approx(run["dur"])
    assert nodes[0]["ts"] == 0 and {event["pid"] for event in events} == {run["pid"]}


@pytest.mark.parametrize(
    ("arguments", "texts"),
    [
        (["--fill", "foo"], ["random, ones or zeros"]),
        (["-i", "none.npz"], ["none.npz", "there is no such file"]),
        (["-i", "x=none.json"], ["none.json", "there is no such file"]),
        (["-i", "m.onnx"], ["expected a .npy, .npz or .json file", "not .onnx"]),
        (["--fill", "ones", "--device", "cuda"], ["--device cuda", "llvm", "'cpu'"]),
        (["--fill", "ones", "--device", "nosuch"], ["nosuch", "known are"]),
        (["--fill", "ones"], ["batch, seq, k of", "--shape batch=8 --shape seq=8 --shape k=8"]),
        (["--fill", "ones", "-s", "seq=3"], ["batch, k of", "--shape batch=8 --shape k=8"]),
        (["--fill", "ones", "-s", "x:b,3,4"], ["b, k of", "--shape b=8 --shape k=8"]),
        ([], ["no value for x, i"]),
    ],
)
def test_mistakes_are_found_before_compiling(
    folder: Path, monkeypatch: pytest.MonkeyPatch, arguments: list[str], texts: list[str]
) -> None:
    monkeypatch.chdir(folder)
    monkeypatch.setenv("RELAYC_CACHE_DIR", "off")
    result = runner.invoke(app, ["run", "m.onnx", *arguments])
    assert result.exit_code in (1, 2), result.output
    for text in texts:
        assert text in " ".join(result.output.split()), result.output
    assert "optimize" not in result.output, "nothing was compiled"


def test_floats_for_integers_are_refused(folder: Path) -> None:
    result = runner.invoke(app, ["run", str(folder / "m.onnx"), "-i", str(folder / "floats.json")])
    assert result.exit_code == 2 and "holds a float; expected int64" in " ".join(result.output.split()), result.output


def test_a_spinner_begins_after_a_while_and_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(console, "_PATIENCE", 0.0)
    monkeypatch.setattr(console, "err", console.Console(stderr=True, force_terminal=True))
    with console.Steps().step("work") as step:
        step.show("kernels", 1, 2)
    assert console.err._live_stack == []


def test_remarks_name_what_stands_out() -> None:
    far = NodeTiming("big", "fused_big", "nn.dense", "", "float32[8]", 80e-6, 1000, 1000)
    small = [NodeTiming(f"n{i}", "f", "add", "", "", 2e-6, 10, 10) for i in range(10)]
    texts = remarks(Report([far, *small], {"run us": 200.0}, Ceilings(100.0, 10.0)))
    assert texts[0] == "1 of 11 nodes take 80 % of the time; the slowest is big (nn.dense) with 80 %."
    assert any("50 % of it is outside of kernels" in text for text in texts)
    assert any("big" in text and "--kernel fused_big" in text for text in texts)
    assert remarks(Report([], {})) == ["No node took any time."]
    assert any("fewer threads" in text for text in remarks(Report(small, {})))


def test_noise_is_reported_with_its_reason() -> None:
    assert environment.noise_of(0.05, 0.0) is None and environment.noise_of(0.05, None) is None
    assert "other processes took 1.5 CPUs" in str(environment.noise_of(0.05, 1.5))
    assert "50 % of the median" in str(environment.noise_of(0.5, None))
    before = environment.Load(0.0, 10.0, 1.0)
    assert environment.Load(10.0, 35.0, 11.0).others_since(before) == pytest.approx(1.5)
    assert environment.Load(0.1, 10.0, 1.0).others_since(before) is None
    assert environment.Load.now().own > 0


def test_objects_show_themselves_in_notebooks() -> None:
    model = compile_onnx(embed(2), opt_level=1, config={"relay.tuning.records": "off"})
    executor = GraphModule(model["default"](device("cpu")))
    feed = {"x": np.ones((2, 4), np.float32), "i": np.array([0, 1])}
    shown = [model, executor, executor.profile(1, **feed), executor.benchmark(repeat=2, number=1)]
    for each in [*shown, *([] if model.build_report is None else [model.build_report])]:
        tags, text = Tags(), each._repr_html_()
        tags.feed(text)
        assert tags.open == [] and "<table" in text
    assert "x: float32" in executor._repr_html_() and "i: int64(k,)" in model._repr_html_()


def test_memory_of_given_sizes() -> None:
    model = compile_onnx(embed("batch"))
    small, large = [memory_use(model, {"x": (n, 4), "i": (3,)}) for n in (8, 8000)]
    assert large.inputs - small.inputs == (8000 - 8) * 16 and large.weights == small.weights
    assert small.total == small.weights + small.activations + small.inputs + small.outputs + small.code
    with pytest.raises(ArgumentError, match=r"dynamic shape.*`shapes`"):
        memory_use(model)
    with pytest.raises(ArgumentError, match=r"got shape \(8, 5\)"):
        memory_use(model, {"x": (8, 5), "i": (3,)})


@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="reads the memory of a process as Linux tells it")
@pytest.mark.parametrize(("rows", "width"), [(2, 4096), (8192, 1024)])
def test_the_memory_of_a_process_is_predicted(rows: int, width: int, tmp_path: Path) -> None:
    """Within 5 %, of a model that is mostly weights and of one that is mostly activations."""
    x = relay.var("x", (rows, width))
    hidden = relay.tanh(relay.nn.dense(x, relay.const(np.ones((width, width), np.float32))))
    body = relay.nn.dense(hidden, relay.const(np.full((8, width), 2.0, np.float32)))
    relay.build(IRModule({"main": relay.Function((x,), body)}), "llvm").save(tmp_path / "m.relayc")
    code = (
        "from pathlib import Path\nimport numpy as np\nfrom relayc.runtime import GraphModule, load_model\n"
        "m = GraphModule.of(load_model('m.relayc'))\n"
        f"m.set_input('x', np.broadcast_to(np.float32(1), ({rows}, {width})))\nm.run()\nm.get_output(0)\n"
        "print(Path('/proc/self/status').read_text())"
    )
    done = subprocess.run([sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True, check=True)
    (most,) = re.findall(r"VmHWM:\s+(\d+) kB", done.stdout)
    facts = json.loads(runner.invoke(app, ["inspect", str(tmp_path / "m.relayc"), "--json"]).stdout)
    assert facts["process_bytes"] == pytest.approx(1024 * int(most), rel=0.05)


def test_the_graph_is_not_read_where_the_cache_has_the_model(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("RELAYC_CACHE_DIR", str(tmp_path))
    command = ["run", str(folder / "m.onnx"), "-s", "batch=1", "-s", "seq=1", "-s", "k=1", "--fill", "zeros"]
    assert runner.invoke(app, command).exit_code == 0
    monkeypatch.setattr(models, "_check_inputs", lambda *_: pytest.fail("read again"))
    assert runner.invoke(app, command).exit_code == 0
