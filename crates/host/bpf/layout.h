/* SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause */
/*
 * Data exchanged between the walker and its caller. src/pagewalk/layout.rs mirrors it; a test
 * compares the two. One object serves x86-64 and AArch64, and pages of 4, 16 and 64 KiB: pw_ctl
 * says what the bits of an entry mean and how large a page is. A table always fills one page, so
 * that is all the walk needs to know of its shape.
 */
#ifndef AGEWISE_LAYOUT_H
#define AGEWISE_LAYOUT_H

#define PW_P		0x001ULL	/* present, on both */
#define PW_ADDR		0x000ffffffffff000ULL

#define PW_PTRS		512	/* entries copied at a time: a table of 4 KiB */

/* Limits of the loops. The walk reports where it stopped, so they only limit one call. */
#define PW_MAX_RANGES	1024
#define PW_MAX_STEPS	65536
/* A table that changes during the copy is read again, at most this often in a row. */
#define PW_RETRIES	3

/* Kinds of output entries. */
#define PW_KIND_TABLE		0	/* part of a last-level table, copied to the next table slot */
#define PW_KIND_PMD		1	/* leaf one level up, or such an entry in migration */
#define PW_KIND_PUD		2	/* leaf two levels up */
#define PW_KIND_BAD_TABLE	3	/* last-level table that was unreadable or inconsistent; 4, 5
				   and 6: a table one, two and three levels above it */

/* Why a call stopped. */
#define PW_DONE		0	/* all ranges walked */
#define PW_FULL		1	/* output full: call again from next_range, next_va */
#define PW_NO_TASK	2	/* no such task */
#define PW_NO_MM	3	/* the task has no address space: exiting, or a zombie */
#define PW_KTHREAD	4	/* a kernel thread */
#define PW_CHANGED	5	/* exec or exit during the call: its output is void */
#define PW_OTHER_TASK	6	/* the id now belongs to another process */

struct pw_range { u64 start, end; };
struct pw_entry { u64 va, entry; u32 kind, slot; };
struct pw_table { u64 e[PW_PTRS]; };

struct pw_ctl {
	/* in */
	u64 direct_map;		/* virtual address of physical address 0 */
	u64 addr_mask;		/* valid address bits of an entry */
	u64 type_mask, type_table;	/* (e & type_mask) == type_table: points to a lower table */
	u64 pointer_bits;	/* set in every pointer to a lower table of a process */
	u64 mmu_bits;		/* may be set by the MMU in such a pointer at any time */
	u64 start_ticks;	/* start of the process, 1/100 s since boot; 0: any */
	u64 va;			/* where to begin in the first range */
	u32 tid, tgid;
	u32 levels;		/* 2 to 5 */
	u32 page_shift;		/* 12, 14 or 16 */
	u32 search_shift;	/* the direct map starts at a multiple of this power of two */
	u32 first_range, n_ranges;
	/* out */
	u32 rc;
	u64 next_va;
	u32 next_range;
	u32 n_entries, n_tables;
	u32 unreadable;		/* tables skipped */
	u32 retries;		/* tables read again because they changed */
	u64 seen_start_boottime;
	/* the search for the direct map */
	u64 search_phys, search_magic, search_steps;
	u64 search_found, search_symbol, search_from;
};

#endif
