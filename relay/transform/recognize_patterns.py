"""RecognizePatterns: fuses normalisations and activations that are decomposed into small operators."""

from __future__ import annotations

from typing import ClassVar

from relayc.relay.expr import Function
from relayc.relay.pattern import PatternRule, rewrite
from relayc.relay.transform.decomposed_activations import ACTIVATION_RULES
from relayc.relay.transform.decomposed_channel_norms import CHANNEL_NORM_RULES
from relayc.relay.transform.decomposed_moments import MOMENT_RULES
from relayc.relay.transform.decomposed_rotary import ROTARY_RULES
from relayc.relay.transform.decomposed_row_norms import ROW_NORM_RULES
from relayc.relay.transform.decomposed_softmax import SOFTMAX_RULES
from relayc.relay.transform.function_pass import FunctionPass
from relayc.te.ir import PassContext

__all__ = ["RecognizePatterns"]


class RecognizePatterns(FunctionPass):
    """Decomposed normalisations, softmax, activations and rotary embeddings become one operator each, and one kernel.

    The rules are in the modules `decomposed_*` by family; each docstring is the rule.
    """

    opt_level: ClassVar[int] = 2

    def transform(self, function: Function, context: PassContext) -> Function:
        return rewrite([rule() for rule in RULES], function)


RULES: tuple[type[PatternRule], ...] = (
    *MOMENT_RULES,
    *SOFTMAX_RULES,
    *ROW_NORM_RULES,
    *ACTIVATION_RULES,
    *ROTARY_RULES,
    *CHANNEL_NORM_RULES,
)
