// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause
/*
 * The walk of walk.h on synthetic tables in user space, which lets tests cover five levels, 1 GiB
 * leaves and races on machines without them. Compiled by src/pagewalk/synthetic.rs with the C
 * compiler that building libbpf needs anyway.
 */
#include <stddef.h>
#include <stdint.h>
#include <string.h>

typedef uint64_t u64;
typedef uint32_t u32;
#ifndef __always_inline
#define __always_inline inline __attribute__((always_inline))
#endif

#include "layout.h"

/* The machine under test. Physical address 0 is `memory`. */
struct machine {
	unsigned char *memory;
	u64 bytes;
	struct pw_ctl *ctl;
	struct pw_range *ranges;
	struct pw_entry *entries;
	u32 n_entries;
	struct pw_table *tables;
	u32 n_tables;
	/* Race: store a value at read number race_at of a whole table. 0: none. */
	u32 race_at;
	u32 race_times;
	u64 race_address, race_value;
	u32 table_reads;
};
static struct machine *m;
static struct pw_table upper;

static int read_memory(void *dst, u64 len, u64 address)
{
	u64 at = address - (u64)m->memory;

	if (len == sizeof(struct pw_table) && m->race_at && ++m->table_reads >= m->race_at &&
	    m->race_times) {
		m->race_times--;
		memcpy(m->memory + m->race_address, &m->race_value, sizeof(u64));
		m->race_value ^= 1ULL << 12; /* another table each time */
	}
	if (at > m->bytes || m->bytes - at < len)
		return -14;
	memcpy(dst, m->memory + at, len);
	return 0;
}

static void loop(u32 n, long (*fn)(u64, void *), void *ctx)
{
	for (u32 i = 0; i < n; i++)
		if (fn(i, ctx))
			return;
}

/* Sizes and offsets, for the mirror in layout.rs. */
u64 synthetic_layout(u32 i)
{
	const u64 facts[] = {
		sizeof(struct pw_range), sizeof(struct pw_entry), sizeof(struct pw_table),
		sizeof(struct pw_ctl), offsetof(struct pw_entry, slot),
		offsetof(struct pw_ctl, type_table), offsetof(struct pw_ctl, mmu_bits),
		offsetof(struct pw_ctl, start_ticks), offsetof(struct pw_ctl, va),
		offsetof(struct pw_ctl, tid), offsetof(struct pw_ctl, levels),
		offsetof(struct pw_ctl, search_shift), offsetof(struct pw_ctl, rc),
		offsetof(struct pw_ctl, next_va),
		offsetof(struct pw_ctl, next_range), offsetof(struct pw_ctl, n_tables),
		offsetof(struct pw_ctl, retries), offsetof(struct pw_ctl, seen_start_boottime),
		offsetof(struct pw_ctl, search_phys), offsetof(struct pw_ctl, search_from),
		PW_MAX_RANGES,
	};

	return i < sizeof(facts) / sizeof(facts[0]) ? facts[i] : ~0ULL;
}

#define pw_ctl (*m->ctl)
#define pw_read(dst, len, addr) read_memory(dst, len, addr)
#define pw_loop(n, fn, ctx) loop(n, fn, ctx)
#define pw_range_at(i) (&m->ranges[i])
#define pw_entry_at(i) ((i) < m->n_entries ? &m->entries[i] : 0)
#define pw_table_at(i) ((i) < m->n_tables ? &m->tables[i] : 0)
#define pw_scratch() (&upper)
#include "walk.h"

void synthetic_walk(struct machine *machine, u64 root)
{
	m = machine;
	pw_run((u64)m->memory + root);
	m = 0;
}

int synthetic_is_wanted(u64 start_ns, u64 wanted_ticks)
{
	return pw_is_wanted(start_ns, wanted_ticks);
}
