// library.h - shared libraries of the operating system: POSIX or Windows. Failures are reported with the path and the
// system's reason.
#ifndef GB_BASE_LIBRARY_H
#define GB_BASE_LIBRARY_H

#include <stdbool.h>

typedef void (*gb_library_function)(void);

// The path without links and relative parts, owned by the caller; NULL and reported when there is no such file.
char * gb_path_resolve(const char * path);
bool   gb_path_has_directory(const char * path); // "./x" and "/x" do, "x" does not

// All symbols bound now, none visible to other libraries. The path must be absolute: nothing is searched for.
void *              gb_library_open(const char * path);
gb_library_function gb_library_find(void * library, const char * name); // NULL, unreported: no such symbol
void                gb_library_close(void * library);

#endif // GB_BASE_LIBRARY_H
