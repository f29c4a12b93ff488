/* Which sources this library was compiled from; see build.py. */
const char *tp_digest(void) { return DIGEST; }
