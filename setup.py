"""Each top-level folder of code is installed as a subpackage of `relayc`; everything else is in pyproject.toml."""

from setuptools import find_packages, setup

ROOMS = ("te", "backend", "topi", "relay", "frontends")

setup(
    package_dir={"relayc": "relayc", **{f"relayc.{room}": room for room in ROOMS}},
    packages=[
        "relayc",
        *(f"relayc.{name}" for room in ROOMS for name in (room, *(f"{room}.{sub}" for sub in find_packages(room)))),
    ],
)
