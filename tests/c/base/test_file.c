// Files are replaced whole: content, rights, links, special files, and leftovers of a killed
// process.
#ifndef _GNU_SOURCE
#    define _GNU_SOURCE
#endif
#include "test.h"

#ifdef _WIN32
int main(void) {
    printf("skipped: rights, links and pipes are POSIX\n");
    return 77;
}
#else

#    include <dirent.h>
#    include <errno.h>
#    include <signal.h>
#    include <sys/stat.h>
#    include <sys/wait.h>
#    include <unistd.h>

#    include "base/file.h"

static char folder[] = "/tmp/ggml_file_XXXXXX";
static char name[2][64];

static const char * in_folder(int i, const char * leaf) {
    snprintf(name[i], sizeof(name[i]), "%s/%s", folder, leaf);
    return name[i];
}

static int entries(void) {
    DIR * dir = opendir(folder);
    int n = 0;
    for (struct dirent * e; dir && (e = readdir(dir)) != NULL;) {
        n += e->d_name[0] != '.';
    }
    closedir(dir);
    return n;
}

static void put(const char * path, const char * text) {
    FILE * f = fopen(path, "wb");
    fputs(text, f);
    fclose(f);
}

static bool holds(const char * path, const char * text) {
    char got[64] = { 0 };
    FILE * f = fopen(path, "rb");
    const size_t n = f ? fread(got, 1, sizeof(got) - 1, f) : 0;
    if (f) {
        fclose(f);
    }
    return f && n == strlen(text) && memcmp(got, text, n) == 0;
}

static enum ggml_status write_text(const char * path, const char * text) {
    struct gb_file_writer w;
    enum ggml_status status = gb_file_writer_open(&w, path);
    if (status == GGML_STATUS_SUCCESS) {
        gb_file_writer_write(&w, text, strlen(text));
        status = gb_file_writer_commit(&w);
    }
    return status;
}

static void files_are_replaced_whole(void) {
    const char * path = in_folder(0, "a");
    struct stat info;
    CHECK_INT(write_text(path, "one"), GGML_STATUS_SUCCESS);
    CHECK(holds(path, "one"));
    const mode_t mask = umask(0);
    umask(mask);
    CHECK(stat(path, &info) == 0 && (info.st_mode & 07777) == (0666 & ~mask));
    CHECK(chmod(path, 0640) == 0);
    FILE * reader = fopen(path, "rb"); // an open descriptor keeps the old content
    CHECK_INT(write_text(path, "two"), GGML_STATUS_SUCCESS);
    CHECK(reader && fgetc(reader) == 'o');
    fclose(reader);
    CHECK(holds(path, "two") && stat(path, &info) == 0 && (info.st_mode & 07777) == 0640);
    struct gb_file_writer w;
    REQUIRE(gb_file_writer_open(&w, path) == GGML_STATUS_SUCCESS);
    gb_file_writer_write(&w, "three", 5);
    CHECK(holds(path, "two"));
    gb_file_writer_abandon(&w);
    CHECK(holds(path, "two"));
    CHECK_INT(entries(), 1);
    CHECK(symlink("a", in_folder(1, "link")) == 0);
    CHECK_INT(write_text(name[1], "behind"), GGML_STATUS_SUCCESS);
    CHECK(holds(path, "behind") && lstat(name[1], &info) == 0 && S_ISLNK(info.st_mode));
    unlink(name[1]);
    unlink(path);
}

static void special_files(void) {
    CHECK_INT(write_text(folder, "x"), GGML_STATUS_IO_ERROR);
    CHECK_INT(write_text("/dev/full", "x"), GGML_STATUS_IO_ERROR);
    CHECK_INT(write_text("/dev/null", "x"), GGML_STATUS_SUCCESS);
    CHECK_INT(write_text(in_folder(0, "absent/x"), "x"), GGML_STATUS_IO_ERROR);
    CHECK_INT(write_text("", "x"), GGML_STATUS_IO_ERROR);
    const char * pipe = in_folder(0, "pipe");
    CHECK(mkfifo(pipe, 0600) == 0);
    const pid_t child = fork();
    if (child == 0) {
        _exit(holds(pipe, "through") ? 0 : 1);
    }
    CHECK_INT(write_text(pipe, "through"), GGML_STATUS_SUCCESS);
    int status;
    CHECK(waitpid(child, &status, 0) == child && status == 0);
    unlink(pipe);
    CHECK_INT(entries(), 0);
}

static void killed(void) {
    const char * path = in_folder(0, "a");
    put(path, "old");
    int ready[2];
    REQUIRE(pipe(ready) == 0);
    const pid_t child = fork();
    if (child == 0) {
        struct gb_file_writer w;
        gb_file_writer_open(&w, path);
        gb_file_writer_zeros(&w, 1 << 20);
        fflush(w.file);
        _exit(write(ready[1], w.nameless ? "n" : "b", 1) == 1 && sleep(60) == 0);
    }
    char how = 0;
    CHECK(read(ready[0], &how, 1) == 1);
    kill(child, SIGKILL);
    waitpid(child, NULL, 0);
    CHECK(holds(path, "old"));
    if (how == 'n') {
        CHECK_INT(entries(), 1);
    }
    close(ready[0]);
    close(ready[1]);
}

// Files beside the target, left by a killed process with the same process number.
static void leftovers_do_no_harm(void) {
    enum { LEFT = 40 };
    const char * path = in_folder(0, "b");
    char left[96];
    for (int i = 0; i < LEFT; i++) {
        snprintf(left, sizeof(left), "%s.%ld.%d.part", path, (long) getpid(), i);
        put(left, "left");
    }
    const int before = entries();
    CHECK_INT(write_text(path, "new"), GGML_STATUS_SUCCESS);
    CHECK(holds(path, "new"));
    CHECK_INT(entries(), before + 1);
    for (int i = 0; i < LEFT; i++) {
        snprintf(left, sizeof(left), "%s.%ld.%d.part", path, (long) getpid(), i);
        CHECK(holds(left, "left"));
        unlink(left);
    }
}

static void the_reason_stays(void) {
    struct gb_file_writer w;
    CHECK_INT(gb_file_writer_open(&w, in_folder(0, "absent/c")), GGML_STATUS_IO_ERROR);
    CHECK_INT(w.error, ENOENT);
    CHECK_INT(gb_file_writer_open(&w, "/dev/full"), GGML_STATUS_SUCCESS);
    CHECK_INT(gb_file_writer_zeros(&w, 1 << 20), GGML_STATUS_IO_ERROR);
    CHECK_INT(gb_file_writer_commit(&w), GGML_STATUS_IO_ERROR);
    CHECK_INT(w.error, ENOSPC);
}

static void folders_end(void) {
    char command[128];
    snprintf(command, sizeof(command), "rm -rf %s", folder);
    CHECK(system(command) == 0);
}

static void folders_begin(void) { CHECK(mkdtemp(folder) != NULL); }

TEST_MAIN(TEST(folders_begin), TEST(files_are_replaced_whole), TEST(special_files), TEST(killed),
    TEST(leftovers_do_no_harm), TEST(the_reason_stays), TEST(folders_end))

#endif
