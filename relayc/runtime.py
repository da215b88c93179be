"""What runs compiled models: the public names of `relayc.backend.runtime`, under a short name. (TVM: `tvm.runtime`.)"""

from relayc.backend.runtime import *
from relayc.backend.runtime import __all__ as __all__
