"""The tables of benchmarks/README.md and low_precision.md, made from the figures in ``benchmarks/results``.

    python -m benchmarks.report            writes the tables into the pages
    python -m benchmarks.report --check    changes nothing; exits with 1 if a page is not what the figures give
    python -m benchmarks.report --print bandwidth      prints all figures of a file of results

A page has a pair of markers for each table; what stands between them is replaced:

    <!-- table: batch 1 -->
    <!-- end -->
"""

from __future__ import annotations

import argparse
import re
import statistics
import sys
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path

from benchmarks import models
from benchmarks.records import CPUS, RESULTS, Record, geometric_mean, markdown, ratio, read

PAGES = tuple(Path(__file__).parent / name for name in ("README.md", "low_precision.md"))
ENOUGH = 80
"""Percent of a copy's bandwidth that a memory-bound kernel is expected to have."""

_BLOCK = re.compile(r"(<!-- table: (?P<name>[^>]+) -->\n).*?(<!-- end -->)", re.DOTALL)
_PRECISIONS = ("float32", "float16")

Rows = list[list[str]]


def render(page: str) -> str:
    """The page with its tables made anew. Raises KeyError for a marker of an unknown table."""
    return _BLOCK.sub(lambda block: f"{block[1]}\n{markdown(TABLES[block['name']]())}\n\n{block[3]}", page)


def span(low: float, high: float, digits: int = 0) -> str:
    """One figure, or the range of two that print differently."""
    first, last = f"{low:.{digits}f}", f"{high:.{digits}f}"
    return first if first == last else f"{first}-{last}"


def _ratio(record: Record | None) -> str:
    value = float("nan") if record is None else ratio(record)
    return "-" if value != value else f"{value:.2f}"


def _figure(value: float | None, form: str) -> str:
    return "-" if value is None else format(value, form)


def _pivot(records: Iterable[Record], key: Callable[[Record], object], columns: Sequence[object]) -> Rows:
    """A row of ratios for each case, a column for each value of `key`."""
    found: dict[str, dict[object, Record]] = {}
    for record in records:
        found.setdefault(record["case"], {})[key(record)] = record
    return [[case, *[_ratio(cells.get(column)) for column in columns]] for case, cells in found.items()]


def _by_threads(records: Iterable[Record], head: str) -> Rows:
    return [[head, "1t", "2t"], *_pivot(records, lambda record: record["threads"], (1, 2))]


def machines() -> Rows:
    """The CPUs: caches, measured ceilings, and the versions of the peers."""
    rows = [["machine", "instruction set", "L2 KiB", "GFLOP/s, 1t", "copy GB/s, 1t", "onnxruntime"]]
    for r in read("machines"):
        if r["machine"] in CPUS:
            ceilings = [span(r[f"{name}_low"], r[f"{name}_high"]) for name in ("gflops", "copy_gb_per_s")]
            rows.append([r["case"], r["isa"], str(r["l2_kib"]), *ceilings, r["onnxruntime"]])
    return rows


def whole_models(batch: int) -> Rows:
    """Ratios of whole models at a batch size on all CPUs, by number of threads."""
    results = {name: models.read_results(RESULTS / f"{name}.jsonl") for name in CPUS}
    columns = [(name, threads) for name in CPUS for threads in (1, 2)]
    rows = [["model", *[f"{CPUS[name]}, {threads}t" for name, threads in columns]]]
    values: list[list[float]] = []
    for model in models.all_models():
        values.append([models.ratio(results[name][model, batch, threads]) for name, threads in columns])
        rows.append([model, *[f"{value:.2f}" for value in values[-1]]])
    means = [geometric_mean(column) for column in zip(*values, strict=True)]
    return [*rows, ["geometric mean", *[f"{mean:.2f}" for mean in means]]]


def costs() -> Rows:
    """Median (and largest) seconds before the first run, and peaks of memory relative to the smaller peer's."""
    rows = [["machine", "compile, cold", "compile, cached", "load", "onnxruntime", "OpenVINO", "memory"]]
    for name, title in CPUS.items():
        records = models.smallest_cases(models.read_results(RESULTS / f"{name}.jsonl")).values()
        columns = [[r["compile"][key] for r in records] for key in ("cold_s", "warm_s")]
        columns += [[r["engines"][engine]["prepare_s"] for r in records] for engine in ("relayc", *models.PEERS)]
        memory = [r["engines"]["relayc"]["peak_mb"] / min(r["engines"][peer]["peak_mb"] for peer in models.PEERS)
                  for r in records]  # fmt: skip
        cells = [f"{statistics.median(column):.2f} ({max(column):.1f})" for column in columns]
        rows.append([title, *cells, f"{statistics.median(memory):.2f} ({max(memory):.2f})"])
    return rows


def architectures() -> Rows:
    """Ratios of the other architectures on the CPUs where all were measured, one thread."""
    columns = ("zen5", "zen4")
    records = [record for record in read("architectures") if record["machine"] in columns]
    return [["model", *[CPUS[name] for name in columns]], *_pivot(records, lambda record: record["machine"], columns)]


def model_sets() -> Rows:
    """Sets of models: how many, and the mean and the extremes of their ratios."""
    rows = [["models", "machine", "count", "ratio to", "mean", "lowest"]]
    records = read("model_sets")
    for total in records:
        if total["case"] != "all models":
            continue
        same = ("set", "machine", "threads")
        singles = [r["ratio"] for r in records if "ratio" in r and all(r[key] == total[key] for key in same)]
        means = {"ratio_geometric_mean": "", "ratio_median": " (median)"}
        mean = next((f"{total[key]:.2f}{note}" for key, note in means.items() if key in total), "-")
        lowest = total.get("ratio_lowest", min(singles, default=None))
        where = f"{CPUS[total['machine']]}, {total['threads']}t"
        peer = total.get("peer", "fastest peer")
        rows.append([total["set"], where, str(total["models"]), peer, mean, _figure(lowest, ".2f")])
    return rows


def dynamic() -> Rows:
    """Times of models with a dynamic dimension relative to the same models compiled for one size."""
    rows = [["model, dynamic dimension", "machine", "size: relative time"]]
    found: dict[tuple[str, str], list[str]] = {}
    for record in read("dynamic"):
        figure = f"{record['size']}: {record['dynamic_over_static']:.2f}"
        found.setdefault((record["case"], CPUS[record["machine"]]), []).append(figure)
    return [*rows, *[[*key, ", ".join(figures)] for key, figures in found.items()]]


def roofline() -> Rows:
    """The range of the shares of the multiply-add peak of two models, over all runs while the host was not busy."""
    cases = ("resnet50, GEMM convolutions", "resnet50, all kernels", "bert_base, products", "bert_base, all kernels")
    rows = [["machine", *cases]]
    for name, title in CPUS.items():
        cells: list[str] = []
        for case in cases:
            runs = [r for r in read("roofline") if (r["machine"], r["case"]) == (name, case)]
            runs = [r for r in runs if "busy" not in r.get("note", "")]
            low, high = min(r["percent_of_peak_low"] for r in runs), max(r["percent_of_peak_high"] for r in runs)
            cells.append(span(low, high))
        rows.append([title, *cells])
    return rows


def _bandwidth(machine: str, threads: int) -> list[Record]:
    return [r for r in read("bandwidth") if r["program"] == "benchmarks.bandwidth" and
            (r["machine"], r["threads"]) == (machine, threads)]  # fmt: skip


def bandwidth() -> Rows:
    """How many memory-bound kernels have `ENOUGH` percent of a copy's bandwidth, and the lowest."""
    rows = [["machine", "threads", "kernels", f"at {ENOUGH} % or more", "lowest, %"]]
    for name, title in CPUS.items():
        for threads in (1, 2):
            records = _bandwidth(name, threads)
            total = next((r for r in records if r["case"] == "all kernels"), None)
            cases = {r["case"]: r["percent_of_copy"] for r in records if r is not total}
            counted = {"kernels": len(cases), "kernels_at_80_percent": sum(s >= ENOUGH for s in cases.values())}
            found = counted if total is None else total
            lowest = min(cases.values(), default=found.get("percent_of_copy_lowest"))
            counts = [str(found["kernels"]), str(found["kernels_at_80_percent"])]
            rows.append([title, str(threads), *counts, _figure(lowest, ".0f")])
    return rows


def below() -> Rows:
    """The memory-bound kernels below `ENOUGH` percent of a copy's bandwidth on any CPU, with one thread."""
    shares = {name: {r["case"]: r["percent_of_copy"] for r in _bandwidth(name, 1) if "percent_of_copy" in r}
              for name in CPUS}  # fmt: skip
    cases = dict.fromkeys(case for cells in shares.values() for case, share in cells.items() if share < ENOUGH)
    rows = [["kernel", *CPUS.values()]]
    return rows + [[case, *[f"{shares[name][case]:.0f}" if case in shares[name] else "-" for name in CPUS]]
                   for case in cases]  # fmt: skip


def products() -> Rows:
    """Matrix products beside the fastest peer."""
    rows = [["product", "1t", "2t"]]
    for kind in ("float16", "int8", "few rows", "split-K"):
        suffix = ", split-K" if kind == "split-K" else ""
        records = [{**r, "case": r["case"] + suffix} for r in read("products") if r["kind"] == kind]
        rows += _pivot(records, lambda record: record["threads"], (1, 2))
    return rows


def on(machine: str, subject: str) -> list[Record]:
    """The records of a subject on one machine."""
    return [r for r in read(subject) if r["machine"] == machine]


def bfloat16(machine: str) -> Rows:
    """Models in bfloat16 beside float32 and OpenVINO's bfloat16, and the errors of both, one thread."""
    rows = [["model", "of float32's speed", "ratio to OpenVINO", "error", "OpenVINO's error"]]
    for r in {r["case"]: r for r in on(machine, "bfloat16")}.values():
        gain = r["relayc_float32_ms"] / r["relayc_ms"]
        rows.append([r["case"], f"{gain:.2f}", f"{ratio(r):.2f}", f"{r['relayc_error']}", f"{r['openvino_error']}"])
    return rows


def _on_threads(count: int, machine: str, subject: str) -> list[Record]:
    return [r for r in on(machine, subject) if r.get("threads") == count]


def language_models(records: Sequence[Record]) -> Rows:
    """Decode and prefill of a language model by formats: ratios to the fastest peer, and relayc's shares of roofs where
    they were measured."""
    timed = [r for r in {r["case"]: r for r in records}.values() if "cell" in r and "relayc_ms" in r]
    kinds, cells = [list(dict.fromkeys(r[key] for r in timed)) for key in ("kind", "cell")]
    shares = {r["case"]: f" ({r['relayc_roof']:.0%})" if "relayc_roof" in r else "" for r in timed}
    found = {(r["cell"], r["kind"]): f"{r['ratio']:.2f}{shares[r['case']]}" for r in timed if "ratio" in r}
    rows = [[cell, *[found.get((cell, kind), "-") for kind in kinds]] for cell in cells]
    means = [geometric_mean(r["ratio"] for r in timed if r["kind"] == kind and "ratio" in r) for kind in kinds]
    return [["", *[kind.replace("_", ", ") for kind in kinds]], *rows, ["geometric mean", *[f"{m:.2f}" for m in means]]]


def gemm() -> Rows:
    """Matrix products and attention as shares of the multiply-add peak, one thread."""
    rows = [["product", "operands", "% of peak"]]
    for r in read("products"):
        if "percent_of_peak" in r:
            constant = r["kind"] == "constant weights" or "constant" in r["case"]
            case = r["case"].removesuffix(", constant weights")
            rows.append([case, "constant weights" if constant else "computed", f"{r['percent_of_peak']:.0f}"])
    return rows


def convolutions() -> Rows:
    """Direct convolutions as shares of the peak, and the speed-up by Winograd's algorithm."""
    rows = [["layer", "direct, % of peak", "Winograd, speed-up"]]
    for r in read("convolutions"):
        if "direct_gflops" in r:
            gain = f"{r['winograd_gain']:.2f}" if "winograd_gain" in r else "-"
            rows.append([r["case"], str(r["direct_percent_of_peak"]), gain])
    return rows


def other_convolutions() -> Rows:
    """Other convolutions, pooling, resizing and padding beside onnxruntime, one thread: the mean and the extremes."""
    found: dict[tuple[str, str], list[float]] = {}
    for record in [*read("convolutions"), *read("pooling_and_resizing")]:
        if "onnxruntime_us" in record:
            found.setdefault((record["kind"], CPUS[record["machine"]]), []).append(ratio(record))
    rows = [["operator", "machine", "count", "lowest", "mean", "highest"]]
    return rows + [[*key, str(len(values)), *[f"{v:.2f}" for v in (min(values), geometric_mean(values), max(values))]]
                   for key, values in found.items()]  # fmt: skip


def gpu_models() -> Rows:
    """Whole models on the GPU beside torch.compile."""
    columns = [(batch, precision) for batch in (1, 8) for precision in _PRECISIONS]
    records = [r for r in read("gpu") if r["kind"] == "model"]
    rows = [["model", *[f"batch {batch}, {precision}" for batch, precision in columns]]]
    rows += _pivot(records, lambda r: (r["batch"], r["precision"]), columns)
    means = [geometric_mean(ratio(r) for r in records if (r["batch"], r["precision"]) == column and
                            r["case"] != "lstm_tagger") for column in columns]  # fmt: skip
    return [*rows, ["geometric mean without lstm_tagger", *[f"{mean:.2f}" for mean in means]]]


def gpu_products() -> Rows:
    """Matrix products on the GPU beside cuBLAS."""
    records = [r for r in read("gpu") if r["kind"] == "product"]
    return [["M x N x K", *_PRECISIONS], *_pivot(records, lambda r: r["precision"], _PRECISIONS)]


def packages() -> Rows:
    """Packages with their models, on relayc.onnxruntime beside onnxruntime."""
    found: dict[str, dict[int, str]] = {}
    for record in read("packages"):
        figure = f"{record['onnxruntime_ms'] / record['relayc_ms']:.2f}"
        found.setdefault(record["case"], {})[record["threads"]] = figure
    return [["package", "1t", "2t"], *[[name, *[row.get(n, "-") for n in (1, 2)]] for name, row in found.items()]]


TABLES: dict[str, Callable[[], Rows]] = {
    "machines": machines,
    "batch 1": lambda: whole_models(1),
    "batch 8": lambda: whole_models(8),
    "costs": costs,
    "architectures": architectures,
    "model sets": model_sets,
    "segmentation": lambda: _by_threads(read("segmentation"), "model"),
    "quantised": lambda: _by_threads(on("xeon", "quantised"), "model"),
    "quantised, Emerald Rapids": lambda: _by_threads(on("emeraldrapids", "quantised"), "model"),
    "bfloat16": lambda: bfloat16("zen4"),
    "bfloat16, Emerald Rapids": lambda: bfloat16("emeraldrapids"),
    "bfloat16, Zen 5": lambda: bfloat16("zen5"),
    "float16": lambda: _by_threads(read("float16"), "model"),
    "language models": lambda: language_models(_on_threads(1, "zen4", "llm")),
    "language models, Emerald Rapids": lambda: language_models(_on_threads(1, "emeraldrapids", "llm")),
    "language models, Zen 5": lambda: language_models(_on_threads(1, "zen5", "llm")),
    "language models, two threads": lambda: language_models(_on_threads(2, "emeraldrapids", "llm")),
    "dynamic": dynamic,
    "roofline": roofline,
    "bandwidth": bandwidth,
    "below": below,
    "gemm": gemm,
    "products": products,
    "recurrences": lambda: _by_threads(read("recurrences"), "steps x batch x hidden units"),
    "convolutions": convolutions,
    "other convolutions": other_convolutions,
    "packages": packages,
    "gpu models": gpu_models,
    "gpu products": gpu_products,
}
"""The tables of the page, by the names in its markers."""


def figures(records: Sequence[Record]) -> str:
    """All records in Markdown: a table for each set of keys."""
    alike: dict[tuple[str, ...], Rows] = {}
    for record in records:
        alike.setdefault(tuple(record), []).append([str(value) for value in record.values()])
    return "\n\n".join(markdown([list(keys), *rows]) for keys, rows in alike.items())


def main(arguments: Sequence[str] | None = None) -> None:
    """Write the tables, check them, or print figures."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    action = parser.add_mutually_exclusive_group()
    action.add_argument("--check", action="store_true", help="exit with 1 if the page is not what the figures give")
    action.add_argument("--print", metavar="NAME", help="print the figures of results/NAME.jsonl")
    options = parser.parse_args(arguments)
    if options.print in CPUS:
        print(models.tables(models.read_results(RESULTS / f"{options.print}.jsonl")))
        return
    if options.print:
        print(figures(read(options.print)))
        return
    for path in PAGES:
        page = path.read_text()
        made = render(page)
        if not options.check:
            path.write_text(made)
        elif made != page:
            sys.exit(f"{path} is not what the figures give: run python -m benchmarks.report")


if __name__ == "__main__":
    main()
