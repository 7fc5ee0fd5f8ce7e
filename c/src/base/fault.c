// fault.c - the rows of fault.def.
#include "base/fault.h"

static const struct {
    const char *name, *message, *more;
} rows[GB_FAULT_COUNT] = {
    [GB_FAULT_NONE] = { "NONE", "", "" },
#define GB_FAULT(kind, message, more) [GB_FAULT_##kind] = { #kind, message, more },
#include "base/fault.def"
};

const char * gb_fault_name(enum gb_fault_kind kind) { return rows[kind].name; }

const char * gb_fault_message(enum gb_fault_kind kind) { return rows[kind].message; }

const char * gb_fault_more(enum gb_fault_kind kind) { return rows[kind].more; }
