// ggml-export.h - macros for public declarations: visibility, calling convention, attributes.
#ifndef GGML_EXPORT_H
#define GGML_EXPORT_H

#if defined(GGML_SHARED)
#    if defined(_WIN32) && !defined(__MINGW32__)
#        ifdef GGML_BUILD
#            define GGML_API __declspec(dllexport)
#        else
#            define GGML_API __declspec(dllimport)
#        endif
#    else
#        define GGML_API __attribute__((visibility("default")))
#    endif
#else
#    define GGML_API
#endif

#if defined(GGML_MULTIPLATFORM) && !defined(_WIN32)
#    define GGML_CALL __attribute__((__ms_abi__))
#else
#    define GGML_CALL
#endif

#if defined(__GNUC__)
#    define GGML_DEPRECATED(decl, hint) decl __attribute__((deprecated(hint)))
#elif defined(_MSC_VER)
#    define GGML_DEPRECATED(decl, hint) __declspec(deprecated(hint)) decl
#else
#    define GGML_DEPRECATED(decl, hint) decl
#endif

#if defined(__MINGW32__)
#    define GGML_ATTRIBUTE_FORMAT(i, j) __attribute__((format(gnu_printf, i, j)))
#elif defined(__GNUC__)
#    define GGML_ATTRIBUTE_FORMAT(i, j) __attribute__((format(printf, i, j)))
#else
#    define GGML_ATTRIBUTE_FORMAT(i, j)
#endif

#ifdef __cplusplus
#    define GGML_RESTRICT
#else
#    define GGML_RESTRICT restrict
#endif

#endif // GGML_EXPORT_H
