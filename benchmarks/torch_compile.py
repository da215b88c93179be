"""`torch.compile(backend="relayc")` beside inductor and eager mode, on one thread: python -m benchmarks.torch_compile

The three run in turns, each turn one call of each. Times are of the thread's clock, which other programs on the machine
disturb least, and medians of the turns, in milliseconds; a ratio is the median of the turns' ratios: another's time by
ours. `--record` adds a line for each model to `results/torch_compile.jsonl`.

Needs `pip install '.[torch]' transformers torchvision`, and for inductor a C++ compiler.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from functools import partial
from typing import Any

import torch

from benchmarks.records import RESULTS, append, origin
from benchmarks.timing import in_turns, seconds_of


def resnet18() -> tuple[Any, torch.Tensor]:
    from torchvision.models import resnet18 as make

    return make(), torch.randn(1, 3, 224, 224)


def mobilenet_v3_small() -> tuple[Any, torch.Tensor]:
    from torchvision.models import mobilenet_v3_small as make

    return make(), torch.randn(1, 3, 224, 224)


def bert_6_layers() -> tuple[Any, torch.Tensor]:
    from transformers import BertConfig, BertModel

    config = BertConfig(hidden_size=384, num_hidden_layers=6, num_attention_heads=6, intermediate_size=1536)
    return BertModel(config), torch.randint(0, 30000, (1, 128))


def gpt2_6_layers() -> tuple[Any, torch.Tensor]:
    from transformers import GPT2Config, GPT2Model

    config = GPT2Config(n_embd=384, n_layer=6, n_head=6, use_cache=False)
    return GPT2Model(config), torch.randint(0, 30000, (1, 128))


MODELS = {make.__name__: make for make in (resnet18, mobilenet_v3_small, bert_6_layers, gpt2_6_layers)}


def measured(name: str, turns: int) -> dict[str, Any]:
    """The times of one model, and of the first calls, which compile."""
    torch.manual_seed(0)
    torch._dynamo.reset()
    model, x = MODELS[name]()
    model.eval()
    ours = torch.compile(model, backend="relayc", options={"threads": 1})
    calls = {"relayc": ours, "inductor": torch.compile(model), "eager": model}
    runs = {kind: partial(call, x) for kind, call in calls.items()}
    with torch.no_grad():
        first = {kind: seconds_of(run, 0.0, time.thread_time) for kind, run in runs.items()}
        times = in_turns(runs, turns, 0.0, time.thread_time)
    row: dict[str, Any] = {"case": name, "turns": turns, "torch": torch.__version__}
    row |= {f"{kind}_ms": round(1e3 * statistics.median(values), 2) for kind, values in times.items()}
    for kind in ("inductor", "eager"):
        ratios = [theirs / mine for theirs, mine in zip(times[kind], times["relayc"], strict=True)]
        row[f"{kind}_ratio"] = round(statistics.median(ratios), 2)
    return row | {f"{kind}_first_s": round(first[kind], 1) for kind in ("relayc", "inductor")}


def main() -> None:
    parser = argparse.ArgumentParser(description="torch.compile with relayc, inductor, and eager mode")
    parser.add_argument("--models", default=",".join(MODELS), help="names, separated by commas")
    parser.add_argument("--turns", type=int, default=30)
    parser.add_argument("--record", action="store_true", help="add the figures to the results")
    options = parser.parse_args()
    torch.set_num_threads(1)
    for name in options.models.split(","):
        row = measured(name, options.turns)
        print(json.dumps(row), flush=True)
        if options.record:
            append(RESULTS / "torch_compile.jsonl", {**origin("torch_compile"), **row})


if __name__ == "__main__":
    main()
