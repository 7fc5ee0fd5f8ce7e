// graph_print.c - prints graphs for people: a listing on stdout, and a Graphviz file. Names may
// come from files, so characters that act on a terminal or end a quoted text are escaped.
#include <errno.h>
#include <stdio.h>

#include "base/file.h"
#include "base/hash.h"
#include "base/params.h"
#include "tensor.h"

// --------------------------------------------------------------------------------------------------------------- names

// The next character of UTF-8 text and its length. -1 with length 1 if no valid character begins
// here.
static int32_t next_character(const unsigned char * text, int * n) {
    static const int32_t least[] = { 0, 0, 0x80, 0x800, 0x10000 };
    const int size = text[0] < 0x80                      ? 1
                     : text[0] >= 0xF0 && text[0] < 0xF8 ? 4
                     : text[0] >= 0xE0                   ? 3
                     : text[0] >= 0xC0                   ? 2
                                                         : 0;
    *n = 1;
    if (size == 0 || text[0] >= 0xF8) {
        return -1;
    }
    int32_t c = size == 1 ? text[0] : text[0] & (0x7F >> size);
    for (int i = 1; i < size; i++) {
        if ((text[i] & 0xC0) != 0x80) {
            return -1;
        }
        c = c << 6 | (text[i] & 0x3F);
    }
    if (c < least[size] || c > 0x10FFFF || (c >= 0xD800 && c < 0xE000)) {
        return -1;
    }
    *n = size;
    return c;
}

// True if the character moves a terminal's cursor, changes its colours or the direction of text, or
// is invisible.
static bool is_control(int32_t c) {
    return c < 0x20 || (c >= 0x7F && c < 0xA0) || c == 0xAD || c == 0x61C || (c >= 0x200B && c <= 0x200F) ||
           (c >= 0x2028 && c <= 0x202E) || (c >= 0x2060 && c <= 0x206F) || c == 0xFEFF ||
           (c >= 0xFFF9 && c <= 0xFFFB) || c >= 0xE0000;
}

// Writes a text. Unprintable characters become escapes. If `marks` is not NULL, its characters get a
// backslash, and & becomes an entity.
static void put_text(FILE * file, const char * text, const char * marks) {
    const unsigned char * at = (const unsigned char *) text;
    for (int n; *at != '\0'; at += n) {
        const int32_t c = next_character(at, &n);
        if (c < 0 || is_control(c)) {
            for (int i = 0; i < n; i++) {
                fprintf(file, marks ? "\\\\x%02x" : "\\x%02x", at[i]);
            }
        } else if (marks && c == '&') {
            fputs("&amp;", file);
        } else {
            if (marks && c < 0x80 && strchr(marks, c) != NULL) {
                fputc('\\', file);
            }
            fwrite(at, 1, (size_t) n, file);
        }
    }
}

// ------------------------------------------------------------------------------------------------------------- listing

// One line of the listing. "x" marks a parameter, "g" a node with a gradient.
static void print_node(const struct ggml_tensor * t, int i, bool has_grads) {
    const char * mark = t->is_param ? "x" : has_grads && t->grad ? "g" : " ";
    char shape[80];
    snprintf(shape, sizeof(shape), "[%lld, %lld, %lld]", (long long) t->ne[0], (long long) t->ne[1],
        (long long) t->ne[2]);
    printf(" %5d %-24s %-18s %s runs %3d, ms %8.3f, ms/run %8.3f  ", i, shape,
        t->op == GGML_OP_UNARY ? ggml_op_desc(t) : gb_op_name(t->op), mark, t->perf_runs,
        (double) t->perf_time_us / 1e3, (double) t->perf_time_us / 1e3 / GB_MAX(t->perf_runs, 1));
    put_text(stdout, t->name, NULL);
    putchar('\n');
}

// The time of each operator over all its nodes, as recorded in the nodes.
static void print_totals(const struct ggml_cgraph * graph) {
    int64_t time_us[GGML_OP_COUNT] = { 0 };
    int count[GGML_OP_COUNT] = { 0 };
    for (int i = 0; i < graph->n_nodes; i++) {
        const struct ggml_tensor * t = graph->nodes[i];
        if ((int) t->op >= 0 && (int) t->op < GGML_OP_COUNT) {
            time_us[t->op] += t->perf_time_us;
            count[t->op]++;
        }
    }
    for (int op = 0; op < GGML_OP_COUNT; op++) {
        if (count[op] > 0) {
            printf(" %-24s %5d nodes, ms %8.3f\n", gb_op_name((enum ggml_op) op), count[op],
                (double) time_us[op] / 1e3);
        }
    }
}

// The times are those that a program has stored in the nodes. The library stores only perf_runs.
void ggml_graph_print(const struct ggml_cgraph * cgraph) {
    if (gb_graph_check(cgraph, "cgraph", __func__) != GGML_STATUS_SUCCESS) {
        return;
    }
    printf("graph: %d nodes\n", cgraph->n_nodes);
    for (int i = 0; i < cgraph->n_nodes; i++) {
        print_node(cgraph->nodes[i], i, cgraph->grads != NULL);
    }
    printf("graph: %d leafs\n", cgraph->n_leafs);
    for (int i = 0; i < cgraph->n_leafs; i++) {
        char text[GB_DESCRIBE_SIZE];
        printf(" %5d ", i);
        put_text(stdout, gb_plain_text(gb_describe(cgraph->leafs[i], text)), NULL);
        putchar('\n');
    }
    print_totals(cgraph);
}

// ------------------------------------------------------------------------------------------------------------ Graphviz

// Writes text inside the quoted label of a record, where these characters are special.
static void put_escaped(FILE * file, const char * text) { put_text(file, text, "\"\\{}|<>"); }

// Writes the operator's symbol, in which backslashes are already escapes.
static void put_symbol(FILE * file, const struct ggml_tensor * t) {
    char plain[64];
    size_t n = 0;
    const char * symbol = t->op == GGML_OP_UNARY ? ggml_op_desc(t) : ggml_op_symbol(t->op);
    for (; symbol != NULL && *symbol != '\0' && n + 1 < sizeof(plain); symbol++) {
        if (*symbol != '\\') {
            plain[n++] = *symbol;
        }
    }
    plain[n] = '\0';
    put_escaped(file, plain);
}

// The name and the type of a tensor, inside a label.
static void put_name(FILE * file, const struct ggml_tensor * t) {
    const char * type = ggml_type_name(t->type);
    char name[GGML_MAX_NAME];
    put_escaped(file, gb_tensor_read_name(t, name));
    fprintf(file, " (%s)", type ? type : "no type");
}

// The state of one Graphviz file.
struct dot {
    FILE * file;
    const struct ggml_cgraph * graph;
    struct gb_ptrmap owners;  // gradient -> number of its node: gradients are fields of that node's record
    struct gb_ptrmap forward; // nodes of the forward graph
    bool (*may_read)(const struct ggml_tensor * leaf, void * data); // NULL: all leafs
    void * data;
};

// False: memory ran out.
static bool make_maps(struct dot * dot, const struct ggml_cgraph * forward) {
    for (int i = 0; dot->graph->grads != NULL && i < dot->graph->n_nodes; i++) {
        if (dot->graph->grads[i] != NULL && !gb_ptrmap_set(&dot->owners, dot->graph->grads[i], i)) {
            return false;
        }
    }
    for (int i = 0; forward != NULL && i < forward->n_nodes; i++) {
        if (!gb_ptrmap_set(&dot->forward, forward->nodes[i], i)) {
            return false;
        }
    }
    return true;
}

// The node whose gradient is t. NULL: there is none.
static const struct ggml_tensor * gradient_owner(const struct dot * dot, const struct ggml_tensor * t) {
    const int64_t i = gb_ptrmap_get(&dot->owners, t);
    return i == GB_PTRMAP_ABSENT ? NULL : dot->graph->nodes[i];
}

// True if t is a node of the forward graph, and a forward graph was given.
static bool is_forward(const struct dot * dot, const struct ggml_tensor * t) {
    return gb_ptrmap_get(&dot->forward, t) != GB_PTRMAP_ABSENT;
}

// A node is yellow if it is a parameter, green in the forward graph, blue in the backward part,
// white without a gradient.
static void put_node(const struct dot * dot, int i) {
    FILE * file = dot->file;
    const struct ggml_tensor * t = dot->graph->nodes[i];
    const char * color = "white";
    if (t->is_param) {
        color = "yellow";
    } else if (t->grad != NULL) {
        color = is_forward(dot, t) ? "green" : "lightblue";
    }
    fprintf(file, "  \"%p\" [style=filled; fillcolor=%s; shape=record; label=\"", (const void *) t, color);
    put_name(file, t);
    fprintf(file, "|%d [%lld, %lld, %lld, %lld]|<x>", i, (long long) t->ne[0], (long long) t->ne[1],
        (long long) t->ne[2], (long long) t->ne[3]);
    put_symbol(file, t);
    if (t->grad != NULL) {
        fputs("|<g>", file);
        put_symbol(file, t->grad);
    }
    fputs("\"; ]\n", file);
}

// Writes the values of a leaf of at most four elements whose bytes the host may read.
static void put_values(const struct dot * dot, const struct ggml_tensor * t) {
    FILE * file = dot->file;
    if (ggml_nelements(t) >= 5 || ggml_nelements(t) < 1 || (dot->may_read != NULL && !dot->may_read(t, dot->data)) ||
        !gb_tensor_is_host(t)) {
        return;
    }
    if (t->type == GGML_TYPE_I8 || t->type == GGML_TYPE_I16 || t->type == GGML_TYPE_I32) {
        fputs("|(", file);
        for (int i = 0; i < ggml_nelements(t); i++) {
            fprintf(file, i ? ", %d" : "%d", (int) ggml_get_i32_1d(t, i));
        }
        fputc(')', file);
    } else if (t->type == GGML_TYPE_F32 || t->type == GGML_TYPE_F16 || t->type == GGML_TYPE_BF16) {
        fputs("|(", file);
        for (int i = 0; i < ggml_nelements(t); i++) {
            char number[48];
            fprintf(file, i ? ", %s" : "%s", gb_number_text(number, sizeof(number), 3, (double) ggml_get_f32_1d(t, i)));
        }
        fputc(')', file);
    }
}

// A leaf is pink. Only small leafs show values.
static void put_leaf(const struct dot * dot, const struct ggml_tensor * t, int i) {
    FILE * file = dot->file;
    fprintf(file, "  \"%p\" [style=filled; fillcolor=pink; shape=record; label=\"<x>", (const void *) t);
    put_name(file, t);
    fprintf(file, "|const %d [%lld, %lld, %lld, %lld]", i, (long long) t->ne[0], (long long) t->ne[1],
        (long long) t->ne[2], (long long) t->ne[3]);
    put_values(dot, t);
    fputs("\"; ]\n", file);
}

// An edge from each source. Edges of gradients begin and end at the field of their node's record.
static void put_edges(const struct dot * dot, const struct ggml_tensor * t) {
    const struct ggml_tensor * to = gradient_owner(dot, t);
    for (int j = 0; j < GGML_MAX_SRC; j++) {
        const struct ggml_tensor * src = t->src[j];
        if (src == NULL) {
            continue;
        }
        const struct ggml_tensor * from = gradient_owner(dot, src);
        fprintf(dot->file, "  \"%p\":%s -> \"%p\":%s [arrowhead=%s; style=%s; label=\"src %d\"; ]\n",
            (const void *) (from ? from : src), from ? "g" : "x", (const void *) (to ? to : t), to ? "g" : "x",
            to ? "empty" : "vee", to ? "dashed" : "solid", j);
    }
}

// Gradients have no record of their own, because they are fields of their node's record.
static void put_graph(const struct dot * dot) {
    const struct ggml_cgraph * graph = dot->graph;
    fputs("digraph G {\n  newrank = true;\n  rankdir = LR;\n", dot->file);
    for (int i = 0; i < graph->n_nodes; i++) {
        if (gradient_owner(dot, graph->nodes[i]) == NULL) {
            put_node(dot, i);
        }
    }
    for (int i = 0; i < graph->n_leafs; i++) {
        if (gradient_owner(dot, graph->leafs[i]) == NULL) {
            put_leaf(dot, graph->leafs[i], i);
        }
    }
    for (int i = 0; i < graph->n_nodes; i++) {
        put_edges(dot, graph->nodes[i]);
    }
    for (int i = 0; i < graph->n_leafs; i++) {
        put_edges(dot, graph->leafs[i]);
    }
    fputs("}\n", dot->file);
}

// Errors of single writes are checked at the end.
static enum ggml_status write_dot(struct dot * dot, const char * filename) {
    struct gb_file_writer writer;
    GB_TRY(gb_file_writer_open(&writer, filename));
    dot->file = writer.file;
    put_graph(dot);
    if (ferror(dot->file) != 0) {
        writer.failed = true;
        gb_fail(GGML_STATUS_IO_ERROR, "ggml_graph_dump_dot: cannot write '%s': %s", filename, strerror(errno));
    }
    return gb_file_writer_commit(&writer);
}

enum ggml_status ggml_graph_dump_dot(const struct ggml_cgraph * gb, const struct ggml_cgraph * gf,
    const char * filename) {
    return gb_graph_dump_dot(gb, gf, filename, NULL, NULL);
}

enum ggml_status gb_graph_dump_dot(const struct ggml_cgraph * gb, const struct ggml_cgraph * gf, const char * filename,
    bool (*may_read)(const struct ggml_tensor * leaf, void * data), void * data) {
    static const char func[] = "ggml_graph_dump_dot";
    GB_TRY(gb_graph_check(gb, "gb", func));
    if (gf != NULL) {
        GB_TRY(gb_graph_check(gf, "gf", func));
    }
    if (filename == NULL) {
        gb_fail_null(func, "filename");
        return GGML_STATUS_INVALID_ARGUMENT;
    }
    struct dot dot = { .graph = gb, .may_read = may_read, .data = data };
    const enum ggml_status status = make_maps(&dot, gf) ? write_dot(&dot, filename) : GGML_STATUS_ALLOC_FAILED;
    gb_ptrmap_free(&dot.owners);
    gb_ptrmap_free(&dot.forward);
    return status;
}
