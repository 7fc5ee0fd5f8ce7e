// mini.h - for programs that link the example backend instead of loading it.
#ifndef MINI_H
#define MINI_H

#include "ggml.h"

enum ggml_status mini_register(void);

#endif // MINI_H
