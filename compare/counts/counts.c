// A plugin for QEMU's user-mode emulators that counts how often the instructions of an address range run. counts.py
// builds and reads it.
//
//   qemu-aarch64 -plugin counts.so,first=ADDRESS,end=ADDRESS,to=NAME PROGRAM
//
// NAME gets a line for every block of instructions that ran: how often, then the addresses of its instructions. Written
// against version 1 of the interface (QEMU 4.2 to 8.2; later ones with their own qemu-plugin.h), of which it needs so
// little that it is declared here where the header is not installed.
#include <inttypes.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#if __has_include(<qemu-plugin.h>)
#include <qemu-plugin.h>
#else
#define QEMU_PLUGIN_EXPORT __attribute__((visibility("default")))
#define QEMU_PLUGIN_VERSION 1
typedef uint64_t qemu_plugin_id_t;
typedef struct qemu_info_t qemu_info_t;
struct qemu_plugin_tb;
struct qemu_plugin_insn;
enum qemu_plugin_cb_flags { QEMU_PLUGIN_CB_NO_REGS };
void qemu_plugin_register_vcpu_tb_trans_cb(qemu_plugin_id_t, void (*)(qemu_plugin_id_t, struct qemu_plugin_tb *));
void qemu_plugin_register_vcpu_tb_exec_cb(struct qemu_plugin_tb *, void (*)(unsigned, void *), enum qemu_plugin_cb_flags,
                                          void *);
void qemu_plugin_register_atexit_cb(qemu_plugin_id_t, void (*)(qemu_plugin_id_t, void *), void *);
size_t qemu_plugin_tb_n_insns(const struct qemu_plugin_tb *);
struct qemu_plugin_insn *qemu_plugin_tb_get_insn(const struct qemu_plugin_tb *, size_t);
uint64_t qemu_plugin_insn_vaddr(const struct qemu_plugin_insn *);
#endif

QEMU_PLUGIN_EXPORT int qemu_plugin_version = QEMU_PLUGIN_VERSION;

// A block of translated instructions. Blocks are translated again when QEMU's cache is emptied, and then are other ones
// here; counts.py adds them up.
struct block {
	struct block *next;
	uint64_t runs;
	size_t n;
	uint64_t at[];
};

static struct block *blocks;
static uint64_t first, end;
static char *file;

static void ran(unsigned vcpu, void *b) { __atomic_fetch_add(&((struct block *)b)->runs, 1, __ATOMIC_RELAXED); }

static void translated(qemu_plugin_id_t id, struct qemu_plugin_tb *tb)
{
	size_t n = qemu_plugin_tb_n_insns(tb);
	uint64_t at = qemu_plugin_insn_vaddr(qemu_plugin_tb_get_insn(tb, 0));
	if (at < first || at >= end)
		return;

	struct block *b = calloc(1, sizeof *b + n * sizeof *b->at);
	b->n = n;
	for (size_t i = 0; i < n; i++)
		b->at[i] = qemu_plugin_insn_vaddr(qemu_plugin_tb_get_insn(tb, i));
	do
		b->next = __atomic_load_n(&blocks, __ATOMIC_RELAXED);
	while (!__atomic_compare_exchange_n(&blocks, &b->next, b, false, __ATOMIC_RELEASE, __ATOMIC_RELAXED));
	qemu_plugin_register_vcpu_tb_exec_cb(tb, ran, QEMU_PLUGIN_CB_NO_REGS, b);
}

static void done(qemu_plugin_id_t id, void *unused)
{
	FILE *out = fopen(file, "w");
	if (!out) {
		perror(file);
		return;
	}
	for (struct block *b = blocks; b; b = b->next) {
		if (!b->runs)
			continue;
		fprintf(out, "%" PRIu64, b->runs);
		for (size_t i = 0; i < b->n; i++)
			fprintf(out, " %" PRIx64, b->at[i]);
		fputc('\n', out);
	}
	if (fclose(out))
		perror(file);
}

QEMU_PLUGIN_EXPORT int qemu_plugin_install(qemu_plugin_id_t id, const qemu_info_t *info, int argc, char **argv)
{
	for (int i = 0; i < argc; i++) {
		if (!strncmp(argv[i], "first=", 6))
			first = strtoull(argv[i] + 6, NULL, 16);
		else if (!strncmp(argv[i], "end=", 4))
			end = strtoull(argv[i] + 4, NULL, 16);
		else if (!strncmp(argv[i], "to=", 3))
			file = strdup(argv[i] + 3);
	}
	if (!file || first >= end) {
		fprintf(stderr, "counts: needs first, end and to\n");
		return 1;
	}
	qemu_plugin_register_vcpu_tb_trans_cb(id, translated);
	qemu_plugin_register_atexit_cb(id, done, NULL);
	return 0;
}
