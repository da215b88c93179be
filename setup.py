"""Each top-level folder of code is installed as a subpackage of `relayc`; everything else is in pyproject.toml."""

from setuptools import find_packages, setup

PACKAGES = ("te", "backend", "topi", "relay", "frontends")

setup(
    package_dir={"relayc": "relayc", **{f"relayc.{package}": package for package in PACKAGES}},
    packages=[
        "relayc",
        *(f"relayc.{name}" for name in find_packages("relayc")),
        *(f"relayc.{name}" for package in PACKAGES
          for name in (package, *(f"{package}.{sub}" for sub in find_packages(package)))),
    ],
)
