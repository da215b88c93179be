// Filled when the prelude's tensor-core functions are known.
#pragma once
