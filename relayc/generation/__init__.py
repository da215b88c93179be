"""Text generation with compiled language models: ``from relayc.generation import Generator``."""

from relayc.generation.errors import GenerationError
from relayc.generation.generator import Generation, Generator, Prefix, Token
from relayc.generation.options import GenerationOptions
from relayc.generation.text import Tokenizer

__all__ = ["Generation", "GenerationError", "GenerationOptions", "Generator", "Prefix", "Token", "Tokenizer"]
