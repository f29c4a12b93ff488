#include "kernels.h"

const char *tp_digest(void) { return DIGEST; }

Index tp_plan_size(void) { return sizeof(Plan); }
