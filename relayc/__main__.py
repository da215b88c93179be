"""`python -m relayc` is the `relayc` command."""

from relayc.frontends.cli.main import app

if __name__ == "__main__":
    app(prog_name="python -m relayc")
