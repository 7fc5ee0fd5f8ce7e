// library.h - shared libraries of the operating system: POSIX or Windows. A failure is reported with the path and the
// reason that the system gives, unless a function says otherwise.
#ifndef GB_BASE_LIBRARY_H
#define GB_BASE_LIBRARY_H

#include <stdbool.h>

typedef void (*gb_library_function)(void);

// The absolute path without links and relative parts, owned by the caller; NULL if there is no such file (reported).
char * gb_path_resolve(const char * path);
// True if the path says where the file is: "./x" and "/x" do, "x" does not.
bool gb_path_has_directory(const char * path);

// Loads a library: all its symbols are bound now, and none is visible to other libraries. The path must be absolute, so
// that the system searches nowhere. NULL on failure (reported).
void * gb_library_open(const char * path);
// The function of that name, or NULL (not reported).
gb_library_function gb_library_find(void * library, const char * name);
// Closes the library. The system unloads it after the last close. None of its code may run any more.
void gb_library_close(void * library);

#endif // GB_BASE_LIBRARY_H
