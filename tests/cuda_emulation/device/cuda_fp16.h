// Everything it declares is in emulation.h already.
#pragma once
