#include "kernels.h"

const char *tp_digest(void) { return DIGEST; }
