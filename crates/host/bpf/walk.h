/* SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause */
/*
 * The page-table walk, apart from where it reads and where it writes: how a virtual address picks
 * its entry at each of 2 to 5 levels, what an entry says, and where the walk resumes when the
 * output is full. Included by pagewalk.bpf.c (the kernel) and by a test that compiles it for user
 * space over a synthetic table, so both run this very text.
 *
 * The includer includes layout.h and then gives, before including this:
 *   pw_read(dst, len, addr)    copy kernel memory, 0 on success
 *   pw_loop(n, fn, ctx)        call fn(i, ctx) for i < n until it returns 1
 *   pw_ctl                     the control block, an lvalue
 *   pw_range_at(i)             struct pw_range *, or 0
 *   pw_entry_at(i)             struct pw_entry *, or 0 when the output is full
 *   pw_table_at(i)             struct pw_table *, or 0 when the output is full
 *   pw_scratch()               struct pw_table *, one upper table, or 0
 */
#ifndef AGEWISE_WALK_H
#define AGEWISE_WALK_H

struct pw_walk {
	u64 pgd;
	u64 va, end;
	u64 pmds;		/* address of the table above the last level being walked */
	u64 last;		/* last address that it maps, or that is wanted from it */
	u32 first;		/* index of the first entry copied from it */
	u32 count;		/* entries copied from it */
	u32 stop;
	u32 tries;
};

/* What was found at a slot above the last level. */
struct pw_step {
	u64 entry;		/* the entry itself, 0 if there is none */
	u32 level;
	u32 kind;
};
#define PW_STEP_NONE	0
#define PW_STEP_BAD	1
#define PW_STEP_LEAF	2
#define PW_STEP_TABLE	3

#define NS_PER_TICK 10000000ULL /* USER_HZ is 100 on both */

/*
 * Whether a process that started then is the one to walk. In a time namespace the kernel adds its
 * offset before it rounds down to ticks, so our number may be one more or less.
 */
static __always_inline int pw_is_wanted(u64 start_ns, u64 wanted_ticks)
{
	return !wanted_ticks || start_ns / NS_PER_TICK + 1 - wanted_ticks <= 2;
}

/* A table fills a page with entries of 8 bytes. */
static __always_inline u32 pw_index_bits(void)
{
	return pw_ctl.page_shift - 3;
}

/* Address bits below the index of a table this many levels above the last. */
static __always_inline u32 pw_shift(u32 level)
{
	return (pw_ctl.page_shift + level * pw_index_bits()) & 63;
}
#define PW_PMD	1
#define PW_PUD	2

static __always_inline u64 pw_index(u64 va, u32 level)
{
	return (va >> pw_shift(level)) & ((1ULL << (pw_index_bits() & 63)) - 1);
}

/* First address after the slot of `va`, whose size is `size`; saturates at the top. */
static __always_inline u64 pw_next(u64 va, u64 size)
{
	u64 next = (va & ~(size - 1)) + size;

	return next ? next : ~0ULL;
}

/* Whether it is a pointer to a lower table, rather than a leaf or not present. */
static __always_inline int pw_is_pointer(u64 e)
{
	return (e & pw_ctl.type_mask) == pw_ctl.type_table;
}

/* Whether a process can have such a pointer: for user space, with a valid address. */
static __always_inline int pw_sane_pointer(u64 e)
{
	return (e & pw_ctl.pointer_bits) == pw_ctl.pointer_bits &&
	       !(e & PW_ADDR & ~pw_ctl.addr_mask) && (e & pw_ctl.addr_mask);
}

static __always_inline u64 pw_table_address(u64 e)
{
	return pw_ctl.direct_map + (e & pw_ctl.addr_mask);
}

/* One level down: 1 and *table set to the lower table, or 0 and *s giving the reason. */
static __always_inline int pw_descend(u64 *table, u64 va, u32 level, struct pw_step *s)
{
	u64 e = 0;

	s->level = level;
	s->entry = 0;
	if (pw_read(&e, sizeof(e), *table + (pw_index(va, level) << 3))) {
		s->kind = PW_STEP_BAD;
		return 0;
	}
	s->entry = e;
	if (!e) {
		s->kind = PW_STEP_NONE;
		return 0;
	}
	if (level == PW_PUD && !pw_is_pointer(e)) {
		/* A leaf (1 GiB, if pages have 4 KiB), or one in migration. */
		s->kind = PW_STEP_LEAF;
		return 0;
	}
	if (!(e & PW_P)) {
		s->kind = PW_STEP_NONE;
		return 0;
	}
	if (!pw_is_pointer(e) || !pw_sane_pointer(e)) {
		s->kind = PW_STEP_BAD;
		return 0;
	}
	*table = pw_table_address(e);
	s->kind = PW_STEP_TABLE;
	return 1;
}

/* From the root to the table above the last level: its address, or 0 and *s giving the reason. */
static __always_inline u64 pw_find_pmds(u64 pgd, u64 va, struct pw_step *s)
{
	u64 table = pgd;

	if (pw_ctl.levels == 5 && !pw_descend(&table, va, 4, s))
		return 0;
	if (pw_ctl.levels >= 4 && !pw_descend(&table, va, 3, s))
		return 0;
	if (pw_ctl.levels >= 3 && !pw_descend(&table, va, PW_PUD, s))
		return 0;
	return table;
}

/* Appends to the output. Returns 1 if it is full. */
static __always_inline int pw_emit(u64 va, u64 entry, u32 kind)
{
	u32 n = pw_ctl.n_entries;
	struct pw_entry *out = pw_entry_at(n);

	if (!out)
		return 1;
	out->va = va;
	out->entry = entry;
	out->kind = kind;
	out->slot = pw_ctl.n_tables;
	pw_ctl.n_entries = n + 1;
	return 0;
}

/*
 * One slot of the table above the last level, or PW_PTRS entries of the table it points to. 1 ends
 * the loop: end of the copy or of the range, or output full.
 */
static long pw_pmd_slot(u64 i, void *ctx)
{
	struct pw_walk *w = ctx;
	struct pw_table *pmds = pw_scratch();
	struct pw_table *out;
	u64 va = w->va, size = 1ULL << pw_shift(PW_PMD), e, now, k;

	if (va > w->last || !pmds)
		return 1;
	k = pw_index(va, PW_PMD) - w->first;
	if (k >= w->count)
		return 1;
	e = pmds->e[k & (PW_PTRS - 1)];
	if (!e)
		goto next;
	if (!pw_is_pointer(e)) {
		if (pw_emit(va, e, PW_KIND_PMD))
			goto full;
		goto next;
	}
	if (!pw_sane_pointer(e))
		goto bad;
	out = pw_table_at(pw_ctl.n_tables);
	if (!out)
		goto full;
	if (pw_read(out, sizeof(*out),
		    pw_table_address(e) + ((pw_index(va, 0) & ~(PW_PTRS - 1ULL)) << 3)))
		goto bad;
	/*
	 * The kernel clears the entry before it frees the table. If the entry is unchanged, the
	 * copy is from this table, except that the MMU may have set the accessed bit.
	 */
	now = 0;
	if (pw_read(&now, sizeof(now), w->pmds + (pw_index(va, PW_PMD) << 3)))
		goto bad;
	if ((now ^ e) & ~pw_ctl.mmu_bits) {
		if (w->tries++ >= PW_RETRIES)
			goto bad;
		pw_ctl.retries++;
		pmds->e[k & (PW_PTRS - 1)] = now;
		return 0;
	}
	if (pw_emit(va, e, PW_KIND_TABLE))
		goto full;
	pw_ctl.n_tables++;
	size = (u64)PW_PTRS << pw_shift(0);
	goto next;
bad:
	if (pw_emit(va, e, PW_KIND_BAD_TABLE))
		goto full;
	pw_ctl.unreadable++;
next:
	w->tries = 0;
	w->va = pw_next(va, size);
	return 0;
full:
	w->stop = 1;
	return 1;
}

/* Up to PW_PTRS entries of a table above the last level, or the whole empty slot above it. */
static long pw_pud_slot(u64 i, void *ctx)
{
	struct pw_walk *w = ctx;
	struct pw_table *pmds = pw_scratch();
	struct pw_step s = {}, again = {};
	u64 va = w->va, table, last;

	if (va >= w->end || w->stop || !pmds)
		return 1;
	table = pw_find_pmds(w->pgd, va, &s);
	if (!table) {
		if (s.kind == PW_STEP_LEAF && pw_emit(va, s.entry, PW_KIND_PUD))
			goto full;
		if (s.kind == PW_STEP_BAD) {
			if (pw_emit(va, s.entry, PW_KIND_BAD_TABLE + s.level - PW_PMD))
				goto full;
			pw_ctl.unreadable++;
		}
		w->va = pw_next(va, 1ULL << pw_shift(s.level));
		return 0;
	}
	last = w->end - 1;
	if ((last ^ va) >> pw_shift(PW_PUD))
		last = va | ((1ULL << pw_shift(PW_PUD)) - 1);
	w->first = pw_index(va, PW_PMD);
	w->count = pw_index(last, PW_PMD) - w->first + 1;
	w->count = w->count > PW_PTRS ? PW_PTRS : w->count;
	w->last = last;
	w->pmds = table;
	if (pw_read(pmds, (w->count & 1023) << 3, table + ((u64)w->first << 3)))
		goto bad;
	/* The same check as for a last-level table, for the whole path. */
	if (pw_find_pmds(w->pgd, va, &again) != table) {
		if (w->tries++ < PW_RETRIES) {
			pw_ctl.retries++;
			return 0;
		}
		goto bad;
	}
	w->tries = 0;
	pw_loop(PW_PTRS * 2, pw_pmd_slot, w);
	return w->stop ? 1 : 0;
bad:
	if (pw_emit(va, s.entry, PW_KIND_BAD_TABLE + PW_PUD - PW_PMD))
		goto full;
	pw_ctl.unreadable++;
	w->tries = 0;
	w->va = pw_next(va, 1ULL << pw_shift(PW_PUD));
	return 0;
full:
	w->stop = 1;
	return 1;
}

static long pw_one_range(u64 i, void *ctx)
{
	struct pw_walk *w = ctx;
	struct pw_range *r;
	u32 n = pw_ctl.next_range;

	if (n >= pw_ctl.n_ranges)
		return 1;
	r = pw_range_at(n);
	if (!r)
		return 1;
	/* A slot may reach into later ranges: each gets its own entry. */
	if (n != pw_ctl.first_range || w->va < r->start)
		w->va = r->start;
	w->end = r->end;
	w->tries = 0;
	pw_loop(PW_MAX_STEPS, pw_pud_slot, w);
	pw_ctl.next_va = w->va;
	if (w->stop || w->va < w->end) {
		w->stop = 1;
		return 1;
	}
	pw_ctl.next_range = n + 1;
	return 0;
}

/* Walks from (first_range, va) under the root `pgd` until done or full. */
static __always_inline void pw_run(u64 pgd)
{
	struct pw_walk w = { .pgd = pgd, .va = pw_ctl.va };

	pw_ctl.next_range = pw_ctl.first_range;
	pw_ctl.next_va = pw_ctl.va;
	pw_ctl.n_entries = 0;
	pw_ctl.n_tables = 0;
	pw_ctl.unreadable = 0;
	pw_ctl.retries = 0;
	pw_loop(PW_MAX_RANGES, pw_one_range, &w);
	pw_ctl.rc = w.stop ? PW_FULL : PW_DONE;
}

#endif
