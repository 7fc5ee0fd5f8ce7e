// library.h - shared libraries of the operating system: POSIX or Windows. The message of a failure
// has the path and the system's reason, unless a function says otherwise.
#ifndef GB_BASE_LIBRARY_H
#define GB_BASE_LIBRARY_H

#include <stdbool.h>

typedef void (*gb_library_function)(void);

// The absolute path without links and relative parts, owned by the caller; NULL if there is no such file (reported).
char * gb_path_resolve(const char * path);
// True if the path names a folder: "./x" and "/x" do, "x" does not.
bool gb_path_has_directory(const char * path);

// Loads a library. All its symbols are bound now, and other libraries do not see them. The path
// must be absolute, so that the system does not search. NULL on failure (reported).
void * gb_library_open(const char * path);
// The function of that name, or NULL (not reported).
gb_library_function gb_library_find(void * library, const char * name);
// Closes the library. The system unloads it after the last close. Its code must not run any more.
void gb_library_close(void * library);

#endif // GB_BASE_LIBRARY_H
