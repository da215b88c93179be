"""The command `generate`."""

from __future__ import annotations

import time
from dataclasses import asdict
from functools import partial
from importlib import import_module
from pathlib import Path
from typing import Annotated, Any

import typer

from relayc.backend.runtime.array_files import read_arrays
from relayc.cli.console import Steps, err, guarded, out, print_result
from relayc.cli.options import Activations, Precision, UsageError
from relayc.cli.parameters import InPrecision, Json, OfActivations, OptLevel, Target, Threads, build_options

__all__ = ["generate"]


@guarded
def generate(
    model: Annotated[Path, typer.Argument(help="a model's folder, an .onnx decoder, or an artifact of one")],
    prompt: Annotated[
        list[str] | None, typer.Option("--prompt", "-p", help="a text to continue; repeatable: a batch")
    ] = None,
    ids: Annotated[
        list[str] | None, typer.Option("--ids", help="token ids to continue, 1,15,27; repeatable: a batch")
    ] = None,
    features: Annotated[
        Path | None, typer.Option("--features", help="a .npy of what an encoder takes, as of a spectrogram")
    ] = None,
    decoder_ids: Annotated[
        str | None, typer.Option("--decoder-ids", help="with an encoder: the tokens that the decoder begins with")
    ] = None,
    tokenizer: Annotated[
        Path | None, typer.Option("--tokenizer", help="a tokenizer.json, or its folder; default: the model's folder")
    ] = None,
    max_new_tokens: Annotated[int | None, typer.Option("--max-new-tokens", "-n", help="most new tokens")] = None,
    temperature: Annotated[float | None, typer.Option("--temperature", help="0: the likeliest token")] = None,
    top_k: Annotated[int | None, typer.Option("--top-k", help="sample among so many likeliest tokens")] = None,
    top_p: Annotated[float | None, typer.Option("--top-p", help="sample among the likeliest of this sum")] = None,
    min_p: Annotated[float | None, typer.Option("--min-p", help="sample above this share of the best")] = None,
    repetition_penalty: Annotated[
        float | None, typer.Option("--repetition-penalty", help="above 1: what there is becomes less likely")
    ] = None,
    stop: Annotated[list[str] | None, typer.Option("--stop", help="a text that ends it; repeatable")] = None,
    seed: Annotated[int | None, typer.Option("--seed", min=0, help="seed of sampling; default: a new one")] = None,
    num_beams: Annotated[int | None, typer.Option("--num-beams", min=1, help="beam search with so many beams")] = None,
    target: Target = "llvm",
    opt_level: OptLevel = 3,
    precision: InPrecision = Precision.FLOAT32,
    activations: OfActivations = Activations.AUTO,
    threads: Threads = None,
    json: Json = False,
) -> None:
    """Generate text, or token ids where there is no tokenizer, with a language model; what is generated is printed.

    Example: relayc generate model/ --prompt "Once upon a time" --temperature 0.8 --top-p 0.95
    """
    prompts = _prompts(prompt or [], ids or [], features)
    door = import_module("relayc.generation")
    steps, how = Steps(), build_options(target, None, opt_level, precision, activations=activations)
    with steps.step("load"):
        generator = door.Generator(
            model, tokenizer, target=target, num_threads=threads, opt_level=how.opt_level, config=how.config
        )
    if prompt and generator.tokenizer is None:
        raise UsageError(
            f"--prompt: {model} comes without a tokenizer; expected --tokenizer FILE, a tokenizer.json (pip install "
            "'relayc[generation]'), or --ids 1,15,27"
        )
    passed = {
        "max_new_tokens": max_new_tokens, "temperature": temperature, "top_k": top_k, "top_p": top_p, "min_p": min_p,
        "repetition_penalty": repetition_penalty, "stop": stop, "seed": seed, "num_beams": num_beams,
    }  # fmt: skip
    options = {name: value for name, value in passed.items() if value is not None}
    begin = None if decoder_ids is None else _parse_ids(decoder_ids, "--decoder-ids")
    start = time.perf_counter()
    if not json and len(prompts) == 1 and (num_beams or generator.defaults.num_beams) == 1:
        count = _print_stream(generator, generator.stream(prompts[0], decoder_ids=begin, **options))
    else:
        found = generator.generate(prompts, decoder_ids=begin, **options)
        count = sum(len(result.ids) for result in found)
        print_result(
            json, "generate", _record(model, found, time.perf_counter() - start), partial(_print_all, generator, found)
        )
    seconds = time.perf_counter() - start
    err.print(f"{count} tokens in {seconds:.3f} s, {count / seconds:.1f} tokens/s", soft_wrap=True)


def _print_all(generator: Any, found: list[Any]) -> None:
    """Print what was generated for each prompt: its text, or its token ids."""
    for result in found:
        out.print(result.text if generator.tokenizer else " ".join(map(str, result.ids)), soft_wrap=True)


def _record(model: Path, found: list[Any], seconds: float) -> dict[str, Any]:
    """What was generated, for programs."""
    results = [asdict(result) for result in found]
    return {"model": str(model), "results": results, "tokens": sum(len(r["ids"]) for r in results), "seconds": seconds}


def _print_stream(generator: Any, tokens: Any) -> int:
    """Print tokens as they come; returns their number."""
    count = 0
    for token in tokens:
        text = token.text if generator.tokenizer else f"{' ' if count else ''}{token.id}"
        out.file.write(text)
        out.file.flush()
        count += 1
    out.file.write("\n")
    return count


def _prompts(texts: list[str], ids: list[str], features: Path | None) -> list[Any]:
    """The prompts of the options."""
    found: list[Any] = [*texts, *[_parse_ids(text, "--ids") for text in ids]]
    if features is not None:
        try:
            array = read_arrays(features)
        except (OSError, ValueError) as error:
            raise UsageError(f"--features {features}: {error}; expected a .npy file") from error
        if isinstance(array, dict):
            raise UsageError(f"--features {features}: it holds several arrays; expected a .npy file")
        found.append(array)
    if not found:
        raise UsageError('expected a prompt: --prompt "Once upon a time", or --ids 1,15,27')
    return found


def _parse_ids(text: str, option: str) -> list[int]:
    """Token ids, separated by commas or spaces."""
    words = text.replace(",", " ").split()
    if not words or not all(word.isascii() and word.isdigit() for word in words):
        raise UsageError(f"{option} {text!r}: expected token ids, as 1,15,27")
    return [int(word) for word in words]
