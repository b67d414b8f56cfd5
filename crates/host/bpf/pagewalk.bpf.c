// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause
/*
 * Reads the page tables of a process. Read only: nothing here can change a page table.
 *
 * Two entry points share one walk: a syscall program (kernels that permit task kfuncs in this
 * program type, 6.10 and later) and a task iterator (5.17 and later). No vmlinux.h: the few fields
 * used are declared here and relocated on loading (CO-RE).
 */
#include <linux/types.h>
#include <linux/bpf.h>
#include <bpf/bpf_helpers.h>
#include <bpf/bpf_tracing.h>
#include <bpf/bpf_core_read.h>

typedef __u64 u64;
typedef __u32 u32;
typedef __s32 s32;

#pragma clang attribute push(__attribute__((preserve_access_index)), apply_to = record)
typedef struct { unsigned long pgd; } pgd_t;
struct mm_struct { pgd_t *pgd; };
struct task_struct {
	unsigned int flags;
	struct mm_struct *mm;
	int pid;
	int tgid;
	struct task_struct *group_leader;
	u64 start_boottime;
};
struct bpf_iter_meta { struct seq_file *seq; u64 session_id; u64 seq_num; };
struct bpf_iter__task { struct bpf_iter_meta *meta; struct task_struct *task; };
#pragma clang attribute pop

#define PF_KTHREAD 0x00200000

/* Weak: if they are missing, only the syscall programs fail to load, not the iterators. */
extern struct task_struct *bpf_task_from_pid(s32 pid) __ksym __weak;
extern void bpf_task_release(struct task_struct *p) __ksym __weak;
extern const void page_offset_base __ksym __weak;

#include "layout.h"

/* Sizes are set on loading, so that the caller can limit their memory. */
struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(map_flags, BPF_F_MMAPABLE);
	__uint(max_entries, 1);
	__type(key, u32);
	__type(value, struct pw_table);
} tables SEC(".maps");
struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(map_flags, BPF_F_MMAPABLE);
	__uint(max_entries, 1);
	__type(key, u32);
	__type(value, struct pw_entry);
} entries SEC(".maps");
struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(map_flags, BPF_F_MMAPABLE);
	__uint(max_entries, PW_MAX_RANGES);
	__type(key, u32);
	__type(value, struct pw_range);
} ranges SEC(".maps");
struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, 1);
	__type(key, u32);
	__type(value, struct pw_table);
} scratch SEC(".maps");

struct pw_ctl pw_ctl SEC(".data.ctl");

#define pw_read(dst, len, addr) bpf_probe_read_kernel(dst, len, (const void *)(addr))
#define pw_loop(n, fn, ctx) bpf_loop(n, fn, ctx, 0)
#define pw_range_at(i) ({ u32 k_ = (i); (struct pw_range *)bpf_map_lookup_elem(&ranges, &k_); })
#define pw_entry_at(i) ({ u32 k_ = (i); (struct pw_entry *)bpf_map_lookup_elem(&entries, &k_); })
#define pw_table_at(i) ({ u32 k_ = (i); (struct pw_table *)bpf_map_lookup_elem(&tables, &k_); })
#define pw_scratch() ({ u32 k_ = 0; (struct pw_table *)bpf_map_lookup_elem(&scratch, &k_); })
#include "walk.h"

/* Walks the address space of `t`. Discards the output if the task left it meanwhile. */
static __always_inline void walk_task(struct task_struct *t)
{
	struct mm_struct *mm;
	u64 pgd;

	pw_ctl.n_entries = 0;
	pw_ctl.n_tables = 0;
	pw_ctl.seen_start_boottime = BPF_CORE_READ(t, group_leader, start_boottime);
	if (BPF_CORE_READ(t, tgid) != (int)pw_ctl.tgid ||
	    !pw_is_wanted(pw_ctl.seen_start_boottime, pw_ctl.start_ticks)) {
		pw_ctl.rc = PW_OTHER_TASK;
		return;
	}
	if (BPF_CORE_READ(t, flags) & PF_KTHREAD) {
		pw_ctl.rc = PW_KTHREAD;
		return;
	}
	mm = BPF_CORE_READ(t, mm);
	pgd = mm ? (u64)BPF_CORE_READ(mm, pgd) : 0;
	if (!pgd) {
		pw_ctl.rc = PW_NO_MM;
		return;
	}
	pw_run(pgd);
	if (BPF_CORE_READ(t, mm) != mm || (u64)BPF_CORE_READ(mm, pgd) != pgd) {
		pw_ctl.n_entries = 0;
		pw_ctl.n_tables = 0;
		pw_ctl.rc = PW_CHANGED;
	}
}

SEC("syscall")
int walk_syscall(void *ctx)
{
	struct task_struct *t = bpf_task_from_pid(pw_ctl.tid);

	if (!t) {
		pw_ctl.rc = PW_NO_TASK;
		return 0;
	}
	walk_task(t);
	bpf_task_release(t);
	return 0;
}

SEC("iter/task")
int walk_iter(struct bpf_iter__task *ctx)
{
	struct task_struct *t = ctx->task;

	/* The caller sets PW_NO_TASK; the end of the iteration (a null task) must not. */
	if (!t || (u32)t->pid != pw_ctl.tid)
		return 0;
	walk_task(t);
	return 0;
}

/* Tests one candidate: is the magic word at its physical address? */
static long search_step(u64 i, void *ctx)
{
	u64 base = pw_ctl.search_from - (i << (pw_ctl.search_shift & 63));
	u64 word = 0;

	if (pw_read(&word, sizeof(word), base + pw_ctl.search_phys))
		return 0;
	if (word != pw_ctl.search_magic)
		return 0;
	pw_ctl.search_found = base;
	return 1;
}

/*
 * Finds the direct map. Tries the symbol first, if it resolves; then every step (its
 * granularity under KASLR) down from the root table of `t`, which is inside it.
 */
static __always_inline void search_task(struct task_struct *t)
{
	struct mm_struct *mm = BPF_CORE_READ(t, mm);
	u64 pgd = mm ? (u64)BPF_CORE_READ(mm, pgd) : 0;

	pw_ctl.search_found = 0;
	pw_ctl.search_symbol = 0;
	if (!pgd) {
		pw_ctl.rc = PW_NO_MM;
		return;
	}
	pw_ctl.rc = PW_DONE;
	if (&page_offset_base) {
		pw_read(&pw_ctl.search_symbol, sizeof(u64), &page_offset_base);
		pw_ctl.search_from = pw_ctl.search_symbol;
		if (search_step(0, 0))
			return;
	}
	pw_ctl.search_from = pgd & ~((1ULL << (pw_ctl.search_shift & 63)) - 1);
	pw_loop(pw_ctl.search_steps, search_step, 0);
}

SEC("syscall")
int search_syscall(void *ctx)
{
	struct task_struct *t = bpf_task_from_pid(pw_ctl.tid);

	if (!t) {
		pw_ctl.rc = PW_NO_TASK;
		return 0;
	}
	search_task(t);
	bpf_task_release(t);
	return 0;
}

SEC("iter/task")
int search_iter(struct bpf_iter__task *ctx)
{
	struct task_struct *t = ctx->task;

	if (!t || (u32)t->pid != pw_ctl.tid)
		return 0;
	search_task(t);
	return 0;
}

/* Task kfuncs and probe reads are only available to GPL-compatible programs. */
char _license[] SEC("license") = "Dual BSD/GPL";
