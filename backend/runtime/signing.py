"""Detached signatures: who signs an artifact vouches for it to all who have the public key.

A signature is Ed25519 over the bytes of the file, in a file of its own, 64 bytes; OpenSSL checks it as well:

    openssl pkeyutl -verify -pubin -inkey public.pem -rawin -in model.relayc -sigfile model.relayc.sig

The package cryptography is needed only to make and to check signatures, and imported only then.
"""

from __future__ import annotations

import hashlib
import os
from importlib import import_module
from pathlib import Path
from typing import Any

from relayc.backend.runtime.container import is_container, map_file
from relayc.backend.runtime.errors import ArgumentError, ArtifactError, MissingFileError, RelaycError
from relayc.backend.runtime.files import replacing

__all__ = ["check_signature", "sign_artifact"]

_SUFFIX = ".sig"


def sign_artifact(path: str | os.PathLike[str], private_key: str | os.PathLike[str]) -> Path:
    """Signs an artifact with the Ed25519 key in a PEM file; returns the signature's file, the artifact's with ".sig".

    Raises `ArtifactError` for a file that is no artifact, `ArgumentError` for one that holds no such key, `RelaycError`
    when cryptography is not installed.
    """
    key = _key(private_key, "private")
    signature = Path(f"{os.fspath(path)}{_SUFFIX}")
    data = map_file(path)
    if not is_container(data):
        raise ArtifactError(f"{os.fspath(path)} is no compiled model; expected an artifact, as relayc compile writes")
    made: bytes = key.sign(data)
    with replacing(signature) as file:
        file.write(made)
    return signature


def check_signature(
    path: str | os.PathLike[str], public_key: str | os.PathLike[str], signature: str | os.PathLike[str] | None = None
) -> str:
    """The SHA-256 of an artifact that was signed with the private half of an Ed25519 key, given in a PEM file.

    Pass it to `load_model` as `expect_sha256`, and what is loaded is what was signed. `signature`: its file, by default
    the artifact's with ".sig". Raises `ArtifactError` when the signature is of another file or by another key,
    `ArgumentError` for a file that holds no such key, `RelaycError` when cryptography is not installed.
    """
    key = _key(public_key, "public")
    place = Path(f"{os.fspath(path)}{_SUFFIX}" if signature is None else signature)
    remedy = "make it: relayc sign ARTIFACT --key private.pem"
    data, made = map_file(path), _read(place, f"the signature of {os.fspath(path)}", remedy)
    try:
        key.verify(made, data)
    except import_module("cryptography.exceptions").InvalidSignature as error:
        raise ArtifactError(
            f"{os.fspath(path)} is not what was signed: {place} is a signature of another file, or not by the key of "
            f"{os.fspath(public_key)}. Don't load it; copy the file and its signature again from where you trust them"
        ) from error
    return hashlib.sha256(data).hexdigest()


def _key(path: str | os.PathLike[str], half: str) -> Any:
    """The private or the public half of an Ed25519 key in a PEM file."""
    try:
        formats = import_module("cryptography.hazmat.primitives.serialization")
        kinds = import_module("cryptography.hazmat.primitives.asymmetric.ed25519")
    except ImportError as error:
        raise RelaycError(f"signatures need the package cryptography ({error}): pip install 'relayc[sign]'") from error
    text = _read(Path(path), f"the file of the {half} key", f"make one: {_MADE_BY[half]}")
    try:
        if half == "private":
            key = formats.load_pem_private_key(text, password=None)
        else:
            key = formats.load_pem_public_key(text)
    except (ValueError, TypeError) as error:  # no PEM of that half, or encrypted
        raise _no_key(path, half, str(error)) from error
    if not isinstance(key, kinds.Ed25519PrivateKey if half == "private" else kinds.Ed25519PublicKey):
        raise _no_key(path, half, f"it is a {type(key).__name__}")
    return key


_MADE_BY = {
    "private": "openssl genpkey -algorithm ed25519 -out private.pem",
    "public": "openssl pkey -in private.pem -pubout -out public.pem",
}


def _read(path: Path, what: str, remedy: str) -> bytes:
    """The bytes of a file. Raises `MissingFileError`, which says `what` it was to be, if there is none."""
    try:
        return path.read_bytes()
    except FileNotFoundError as error:
        raise MissingFileError(f"{path} does not exist, {what}; name an existing file, or {remedy}") from error


def _no_key(path: str | os.PathLike[str], half: str, why: str) -> ArgumentError:
    return ArgumentError(
        f"{os.fspath(path)} is no {half} Ed25519 key in PEM form, without a password: {why}. Make one: {_MADE_BY[half]}"
    )
