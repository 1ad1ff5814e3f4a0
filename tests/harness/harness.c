/* Runs the C kernels without Python and torch, and compares their results with the numbers in a file.
 *
 *     harness LIBRARY NUMBERS
 *
 * NUMBERS is written by freeze.py, which describes its format. All arguments of a walk have 8 bytes, so this program
 * needs to know nothing of the structs. Each call is made for double and for float and under every instruction set of
 * the processor. The exit code is 1 if a number is wrong, 2 if a file cannot be used. */
#include <math.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#ifdef _WIN32
#include <windows.h>
static void *open_library(const char *file) { return (void *)LoadLibraryA(file); }
static void *find(void *library, const char *name) { return (void *)GetProcAddress((HMODULE)library, name); }
#else
#include <dlfcn.h>
static void *open_library(const char *file) { return dlopen(file, RTLD_NOW); }
static void *find(void *library, const char *name) { return dlsym(library, name); }
#endif

/* Errors are relative to the largest number of an array, or to 1 if that is smaller. A call has sums of up to 30
 * products over up to 6 steps, and the file has 13 digits. */
static const double TOLERANCE_DOUBLE = 1e-11, TOLERANCE_FLOAT = 5e-5;
enum { MOST_FIELDS = 64 };
enum { UNCHANGED, CHANGED, WRITTEN }; /* what a call does to an array */

typedef struct {
    char kind;
    long count;
    void *data;
    double *expected;
} array_t;

static void fail(const char *what, const char *detail) {
    fprintf(stderr, "harness: %s %s\n", what, detail);
    exit(2);
}

static double number(FILE *file) {
    double value;
    if (fscanf(file, "%lf", &value) != 1) fail("the file of numbers", "ends early");
    return value;
}

static void store(array_t *array, long i, double value, int single) {
    if (array->kind == 'l') ((int64_t *)array->data)[i] = (int64_t)value;
    else if (array->kind == 'b') ((uint8_t *)array->data)[i] = (uint8_t)value;
    else if (single) ((float *)array->data)[i] = (float)value;
    else ((double *)array->data)[i] = value;
}

static double load(const array_t *array, long i, int single) {
    if (array->kind == 'l') return (double)((int64_t *)array->data)[i];
    if (array->kind == 'b') return ((uint8_t *)array->data)[i];
    return single ? (double)((float *)array->data)[i] : ((double *)array->data)[i];
}

static array_t read_array(FILE *file, char kind, int single) {
    long count = (long)number(file), what = (long)number(file);
    array_t array = {kind, count, calloc((size_t)count + 1, 8), calloc((size_t)count + 1, sizeof(double))};
    if (!array.data || !array.expected) fail("no", "memory");
    for (long i = 0; i < count; i++) {
        array.expected[i] = what == WRITTEN ? (kind == 'r' ? NAN : -1) : number(file);
        store(&array, i, array.expected[i], single);
    }
    for (long i = 0; i < count && what != UNCHANGED; i++) array.expected[i] = number(file);
    return array;
}

/* Return the largest error of an array, infinity if it has NaN. */
static double error_of(const array_t *array, int single) {
    double worst = 0, scale = 1;
    for (long i = 0; i < array->count; i++) {
        double wrong = fabs(load(array, i, single) - array->expected[i]);
        if (!(wrong <= worst)) worst = isnan(wrong) ? INFINITY : wrong;
        if (fabs(array->expected[i]) > scale) scale = fabs(array->expected[i]);
    }
    return worst / scale;
}

/* Read the arguments of one call, make it, and return its largest error. */
static double run_call(FILE *file, void *library, const char *name, int single) {
    int64_t arguments[MOST_FIELDS];
    array_t arrays[MOST_FIELDS];
    int fields = 0, found = 0;
    char kind, symbol[96];
    while (fscanf(file, " %c", &kind) == 1 && kind != '.') {
        if (fields == MOST_FIELDS) fail(name, "has too many arguments");
        double value;
        switch (kind) {
            case 'n': arguments[fields] = 0; break;
            case 'i': arguments[fields] = (int64_t)number(file); break;
            case 'd': value = number(file), memcpy(&arguments[fields], &value, 8); break;
            default:
                arrays[found] = read_array(file, kind, single);
                arguments[fields] = (int64_t)(intptr_t)arrays[found++].data;
        }
        fields++;
    }
    snprintf(symbol, sizeof symbol, "steadygrad_%s_%s", name, single ? "f32" : "f64");
    int (*function)(const void *) = (int (*)(const void *))find(library, symbol);
    if (!function) fail("the library has no function", symbol);
    double worst = function(arguments) ? INFINITY : 0;
    for (int k = 0; k < found; k++) {
        double error = error_of(&arrays[k], single);
        if (error > worst) worst = error;
        free(arrays[k].data);
        free(arrays[k].expected);
    }
    return worst;
}

int main(int count, char **words) {
    if (count != 3) fail("expects", "LIBRARY NUMBERS");
    void *library = open_library(words[1]);
    if (!library) fail("cannot load", words[1]);
    int (*set_isa)(int) = (int (*)(int))find(library, "steadygrad_set_isa");
    if (!set_isa) fail("no kernels in", words[1]);
    int wrong = 0, best = set_isa(-1);
    for (int isa = 0; isa <= best; isa++)
        for (int single = 0; single < 2; single++) {
            FILE *file = fopen(words[2], "r");
            if (!file) fail("cannot read", words[2]);
            double worst = 0, tolerance = single ? TOLERANCE_FLOAT : TOLERANCE_DOUBLE;
            char name[64];
            int calls = 0;
            set_isa(isa);
            for (; fscanf(file, "%63s", name) == 1; calls++) {
                double error = run_call(file, library, name, single);
                if (error > worst) worst = error;
                if (error > tolerance) wrong = 1, printf("call %d, %s: error %.2g\n", calls + 1, name, error);
            }
            fclose(file);
            if (!calls) fail("no calls in", words[2]);
            printf("instruction set %d, %s: %d calls, largest error %.2g\n", isa, single ? "float" : "double", calls,
                   worst);
        }
    return wrong;
}
