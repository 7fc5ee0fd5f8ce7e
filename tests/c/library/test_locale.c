// Numbers are read and written with a decimal point, also if the program's locale uses a comma.
// Searches for such a locale, or makes one with localedef if that is installed.
#ifndef _GNU_SOURCE
#    define _GNU_SOURCE
#endif
#include <float.h>
#include <locale.h>
#include <stdlib.h>
#include <unistd.h>

#include "base/mem.h"
#include "base/params.h"
#include "ggml-backend.h"
#include "test.h"

static bool has_comma(void) { return strcmp(localeconv()->decimal_point, ".") != 0; }

static bool try_locales(void) {
    static const char * const names[] = { "de_DE.UTF-8", "de_DE.utf8", "fr_FR.UTF-8", "fr_FR.utf8", "pt_BR.UTF-8",
        "ru_RU.UTF-8", "de_DE", "German" };
    for (size_t i = 0; i < GB_ARRAY_LEN(names); i++) {
        if (setlocale(LC_ALL, names[i]) != NULL && has_comma()) {
            return true;
        }
    }
    return false;
}

static char made[] = "/tmp/gb_locale_XXXXXX";

static bool make_locale(void) {
    char command[200];
    if (mkdtemp(made) == NULL) {
        return false;
    }
    snprintf(command, sizeof(command), "localedef --no-archive -c -i de_DE -f UTF-8 %s/de_DE.UTF-8 >/dev/null 2>&1",
        made);
    return system(command) >= 0 && setenv("LOCPATH", made, 1) == 0 && try_locales();
}

static void remove_locale(void) {
    char command[100];
    snprintf(command, sizeof(command), "rm -rf %s", made);
    if (strchr(made, 'X') == NULL || strcmp(made + strlen(made) - 6, "XXXXXX") != 0) {
        if (system(command) != 0) {
            printf("cannot remove %s\n", made);
        }
    }
}

// Equal to strtod in the C locale if a double holds the number exactly, or its nearest double is
// unique: up to 15 digits.
static void reads_decimals(void) {
    for (int i = 0; i < 20000; i++) {
        char text[64];
        const int digits = rand() % 16, point = digits ? rand() % (digits + 1) : 0, exponent = rand() % 21 - 10;
        size_t n = 0;
        text[n++] = (char) ('0' + rand() % 10);
        for (int k = 0; k < GB_MIN(digits, 14); k++) {
            if (k == point) {
                text[n++] = '.';
            }
            text[n++] = (char) ('0' + rand() % 10);
        }
        snprintf(text + n, sizeof(text) - n, i % 3 == 0 ? "e%dms" : i % 3 == 1 ? "E%+d" : "s", exponent);
        char * expected_end;
        const char * end;
        double value;
        const double expected = strtod(text, &expected_end);
        CHECK(gb_number_read(text, &value, &end));
        CHECK_MSG(fabs(value - expected) <= DBL_EPSILON * expected && end == expected_end,
            "%s is %.17g, expected %.17g", text, value, expected);
    }
    static const char * const others[] = { "", "x", "-1", "+1", ".5", " 1", "inf", "nan" };
    const char * end;
    double value;
    for (size_t i = 0; i < GB_ARRAY_LEN(others); i++) {
        CHECK(!gb_number_read(others[i], &value, &end));
    }
    CHECK(gb_number_read("1e", &value, &end) && value == 1 && strcmp(end, "e") == 0);
    CHECK(gb_number_read("1.e+", &value, &end) && value == 1 && strcmp(end, "e+") == 0);
    CHECK(gb_number_read("1e99999999999999999999", &value, &end) && value >= DBL_MAX / 10 && *end == '\0');
    CHECK(gb_number_read("1e-99999999999999999999", &value, &end) && value < 1e-290 && *end == '\0');
    CHECK(gb_number_read("123456789012345678901234567890.5", &value, &end) &&
          fabs(value / 123456789012345678901234567890.5 - 1) < 1e-15);
}

static void numbers_in(const char * where) {
    char text[48];
    size_t bytes;
    int64_t ns;
    CHECK_MSG(gb_params_size("1.5M", &bytes) && bytes == 3 << 19, "%s", where);
    CHECK_MSG(gb_params_duration("1.5ms", &ns) && ns == 1500000, "%s", where);
    CHECK_MSG(!gb_params_size("1,5M", &bytes), "%s", where);
    CHECK_STR(gb_number_text(text, sizeof(text), 3, 1.25), "1.25");
    CHECK_STR(gb_number_text(text, sizeof(text), 3, -1.5e-10), "-1.5e-10");
    CHECK_STR(gb_number_text(text, sizeof(text), 3, 12), "12");
    CHECK_STR(gb_number_text(text, sizeof(text), 3, (double) INFINITY), "inf");
    const ggml_backend_t sim = ggml_backend_reg_init_backend_from_str("SIM:delay=1.5us,mem=0.5G");
    CHECK_MSG(sim != NULL, "%s: %s", where, ggml_last_error());
    ggml_backend_free(sim);
}

static void dot_in(const char * where) {
    char path[] = "/tmp/gb_dot_XXXXXX", content[4000] = { 0 };
    struct ggml_context * ctx = ggml_init((struct ggml_init_params){ 1 << 16, NULL, false });
    struct ggml_cgraph * graph = ggml_new_graph_custom(ctx, 16, false);
    close(mkstemp(path));
    ggml_build_forward_expand(graph, ggml_neg(ctx, ggml_new_f32(ctx, 1.25f)));
    ggml_graph_dump_dot(graph, NULL, path);
    FILE * file = fopen(path, "r");
    CHECK(file != NULL && fread(content, 1, sizeof(content) - 1, file) > 0);
    fclose(file);
    unlink(path);
    CHECK_MSG(strstr(content, "(1.25)") != NULL, "%s: %s", where, content);
    ggml_free(ctx);
}

static void in_the_c_locale(void) {
    numbers_in("C");
    dot_in("C");
}

static void in_a_locale_with_a_comma(void) {
    if (!try_locales() && !make_locale()) {
        printf("no locale with a decimal comma is installed, and localedef made none: not tested\n");
    } else {
        numbers_in(setlocale(LC_ALL, NULL));
        dot_in(setlocale(LC_ALL, NULL));
    }
    setlocale(LC_ALL, "C");
    remove_locale();
}

TEST_MAIN(TEST(reads_decimals), TEST(in_the_c_locale), TEST(in_a_locale_with_a_comma))
