"""Lowering of a graph function to a compiled model."""

from relayc.relay.lowering.driver import BuildReport, bind_params_by_name, build, optimize

__all__ = ["BuildReport", "bind_params_by_name", "build", "optimize"]
