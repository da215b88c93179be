"""Detached signatures of artifacts."""

from __future__ import annotations

import hashlib
import shutil
import subprocess
import sys
from importlib import import_module
from pathlib import Path

import pytest
from typer.testing import CliRunner

from relayc.backend.runtime import ArgumentError, ArtifactError, RelaycError, check_signature, load_model, sign_artifact
from relayc.backend.runtime.artifact import CompiledModel
from relayc.cli.main import app


@pytest.fixture
def keys() -> tuple[bytes, bytes]:
    pytest.importorskip("cryptography")
    formats = import_module("cryptography.hazmat.primitives.serialization")
    key = import_module("cryptography.hazmat.primitives.asymmetric.ed25519").Ed25519PrivateKey.generate()
    private = key.private_bytes(
        formats.Encoding.PEM, formats.PrivateFormat.PKCS8, formats.NoEncryption()
    )
    public = key.public_key().public_bytes(formats.Encoding.PEM, formats.PublicFormat.SubjectPublicKeyInfo)
    return private, public


@pytest.fixture
def folder(small, keys, tmp_path):
    CompiledModel(small.graph(None), small.weights, small.Python()).save(tmp_path / "model.relayc")
    for name, key in zip(("private.pem", "public.pem"), keys, strict=True):
        (tmp_path / name).write_bytes(key)
    return tmp_path


def test_what_was_signed_is_loaded(folder: Path) -> None:
    path = folder / "model.relayc"
    assert sign_artifact(path, folder / "private.pem") == folder / "model.relayc.sig"
    sha256 = check_signature(path, folder / "public.pem")
    assert sha256 == hashlib.sha256(path.read_bytes()).hexdigest()
    assert load_model(path, expect_sha256=sha256).graph.name
    moved = (folder / "model.relayc.sig").rename(folder / "elsewhere")
    assert check_signature(path, folder / "public.pem", moved) == sha256


@pytest.mark.skipif(shutil.which("openssl") is None, reason="needs openssl")
def test_openssl_makes_keys_and_checks_signatures(folder: Path) -> None:
    def openssl(*words: str) -> None:
        subprocess.run(["openssl", *words], cwd=folder, check=True, capture_output=True)

    openssl("genpkey", "-algorithm", "ed25519", "-out", "private.pem")
    openssl("pkey", "-in", "private.pem", "-pubout", "-out", "public.pem")
    sign_artifact(folder / "model.relayc", folder / "private.pem")
    openssl("pkeyutl", "-verify", "-pubin", "-inkey", "public.pem", "-rawin", "-in", "model.relayc", "-sigfile",
            "model.relayc.sig")  # fmt: skip


@pytest.mark.parametrize("changed", ["model.relayc", "model.relayc.sig"])
def test_what_was_changed_is_not_what_was_signed(folder: Path, changed: str) -> None:
    sign_artifact(folder / "model.relayc", folder / "private.pem")
    data = bytearray((folder / changed).read_bytes())
    data[-1] ^= 1
    (folder / changed).write_bytes(data)
    with pytest.raises(ArtifactError, match=r"model\.relayc is not what was signed: .*\.sig is a signature of"):
        check_signature(folder / "model.relayc", folder / "public.pem")


def test_only_artifacts_are_signed(folder: Path) -> None:
    other = folder / "model.onnx"
    other.write_bytes(b"no artifact" * 100)
    with pytest.raises(ArtifactError, match=r"model\.onnx is no compiled model; expected an artifact"):
        sign_artifact(other, folder / "private.pem")
    assert not (folder / "model.onnx.sig").exists()


def test_files_that_are_no_keys(folder: Path) -> None:
    path = folder / "model.relayc"
    with pytest.raises(ArgumentError, match=r"public\.pem is no private Ed25519 key in PEM form.*openssl genpkey"):
        sign_artifact(path, folder / "public.pem")
    with pytest.raises(ArgumentError, match=r"model\.relayc is no public Ed25519 key.*openssl pkey -in"):
        check_signature(path, path)
    formats = import_module("cryptography.hazmat.primitives.serialization")
    other = import_module("cryptography.hazmat.primitives.asymmetric.x25519").X25519PrivateKey.generate()
    text = other.private_bytes(formats.Encoding.PEM, formats.PrivateFormat.PKCS8, formats.NoEncryption())
    (folder / "other.pem").write_bytes(text)
    with pytest.raises(ArgumentError, match=r"other\.pem is no private Ed25519 key .*: it is a X25519PrivateKey"):
        sign_artifact(path, folder / "other.pem")
    signature = r"model\.relayc\.sig does not exist, the signature of .*model\.relayc; .*relayc sign ARTIFACT --key"
    with pytest.raises(FileNotFoundError, match=signature):
        check_signature(path, folder / "public.pem")
    for use, half in ((check_signature, "public"), (sign_artifact, "private")):
        with pytest.raises(ArgumentError, match=rf"none\.pem does not exist, the file of the {half} key; .*openssl"):
            use(path, folder / "none.pem")


def test_without_cryptography_the_error_says_what_to_install(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "cryptography.hazmat.primitives.serialization", None)
    with pytest.raises(RelaycError, match=r"signatures need the package cryptography .*pip install 'relayc\[sign\]'"):
        sign_artifact(folder / "model.relayc", folder / "private.pem")
    assert load_model(folder / "model.relayc").graph.name


def test_the_command_signs_and_checks(folder: Path) -> None:
    path, runner = str(folder / "model.relayc"), CliRunner()
    made = runner.invoke(app, ["sign", path, "--key", str(folder / "private.pem")])
    assert made.exit_code == 0 and made.stdout == f"wrote {path}.sig\n"
    checked = runner.invoke(app, ["sign", path, "--check", "--key", str(folder / "public.pem")])
    digest = hashlib.sha256(Path(path).read_bytes()).hexdigest()
    assert checked.exit_code == 0 and checked.stdout == f"{digest}  {path}\n"
    Path(f"{path}.sig").write_bytes(bytes(64))
    refused = runner.invoke(app, ["sign", path, "--check", "--key", str(folder / "public.pem")])
    assert refused.exit_code == 1 and "is not what was signed" in refused.output
