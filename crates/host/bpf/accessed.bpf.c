// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause
/*
 * Records which pages of the page cache are accessed, in tables of 512 bits like page tables, keyed
 * by inode and index / 512. Only observes.
 *
 * Reads pass mm_filemap_get_pages once per batch of folios, with the pages that the caller still
 * wants; faults pass mm_filemap_fault if fault-around did not find the page; a write to a clean
 * folio passes writeback_dirty_folio. Accesses through page tables pass none of them: the
 * page-table walker sees those. On kernels without the first two (before 6.11) their functions are
 * hooked at entry.
 */
#include <linux/types.h>
#include <linux/bpf.h>
#include <bpf/bpf_helpers.h>
#include <bpf/bpf_tracing.h>
#include <bpf/bpf_core_read.h>

typedef __u64 u64;
typedef __u32 u32;

#pragma clang attribute push(__attribute__((preserve_access_index)), apply_to = record)
struct inode { unsigned long i_ino; long long i_size; };
struct address_space { struct inode *host; };
struct folio { unsigned long index, _flags_1; unsigned char _folio_order; };
struct file { struct address_space *f_mapping; };
struct kiocb { struct file *ki_filp; long long ki_pos; };
struct iov_iter { unsigned long count; };
struct vm_area_struct { struct file *vm_file; };
struct vm_fault { struct vm_area_struct *vma; unsigned long pgoff; };
struct page { unsigned long flags; };
enum pageflags { PG_head = 6 };
#pragma clang attribute pop

/* Must match src/pagecache/accessed.rs. */
struct af_key {
	u64 inode;
	u32 number;	/* low half of i_ino, to detect another inode at the same address */
	u32 block;	/* index / 512 */
};
struct af_table { u64 words[8]; };
/* Events that reported new pages, and events lost because a map was full. */
struct af_counts { u64 events, dropped; };
struct af_ctl {
	volatile u32 epoch;	/* counts the looks: what a CPU remembers is of one epoch */
	u32 exclusive;		/* last_index is one past the last page, as in some kernels */
};
/* The last long read on this CPU: each batch of its folios reports all that is still wanted. */
struct af_long { u64 inode, first, last; u32 epoch, number; };
/* A block recorded on this CPU: if the same pages come again, looking here is enough. */
struct af_known { u64 inode; u32 number, block, epoch, unused; u64 words[8]; };
#define KNOWN 1024

#define BLOCK_SHIFT 9
/* Most blocks recorded per event: the longest read is 2 GiB. */
#define BLOCKS_MAX 1025

/* The tables of the next look. Their map is replaced by an empty one before they are read. */
struct tables {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__uint(max_entries, 1);	/* those that are used have more */
	/* Not by type: clang leaves it out of the BTF of a map in a map. */
	__uint(key_size, sizeof(struct af_key));
	__uint(value_size, sizeof(struct af_table));
};
struct {
	__uint(type, BPF_MAP_TYPE_ARRAY_OF_MAPS);
	__uint(max_entries, 1);
	__type(key, u32);
	__array(values, struct tables);
} written SEC(".maps");
struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	__uint(max_entries, 1);
	__type(key, u32);
	__type(value, struct af_counts);
} counts SEC(".maps");
struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	__uint(max_entries, 1);
	__type(key, u32);
	__type(value, struct af_long);
} longs SEC(".maps");
struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	__uint(max_entries, KNOWN);
	__type(key, u32);
	__type(value, struct af_known);
} known SEC(".maps");

struct af_ctl af_ctl SEC(".data.ctl");

/* Inodes of which only one block in eight is recorded, by the low bits of their numbers. */
#define SAMPLED 1024
volatile u64 af_sampled[SAMPLED] SEC(".data.sampled");

struct span { u64 inode, number, first, last; u32 epoch; };

static __always_inline u64 mix(u64 x)
{
	x *= 0x9e3779b97f4a7c15ULL;
	return x ^ x >> 32;
}

/* Whether a block is not recorded: all but a random one of each group of eight of such an inode. */
static __always_inline int is_left_out(u64 inode, u32 number, u32 block)
{
	return af_sampled[number & (SAMPLED - 1)] == inode &&
	       (block & 7) != mix((u64)number << 32 ^ block >> 3) >> 61;
}

static __always_inline void drop(void)
{
	u32 zero = 0;
	struct af_counts *c = bpf_map_lookup_elem(&counts, &zero);

	if (c)
		c->dropped++;
}

/* Bits `from` to `to` of a 64-bit word. */
static __always_inline u64 bits(u64 from, u64 to)
{
	return ~0ULL >> (63 - (to & 63)) & ~0ULL << (from & 63);
}

/* The bits of word `w` of a block that are between `from` and `to` of 512. */
static __always_inline u64 part(u64 w, u64 from, u64 to)
{
	if (w < from >> 6 || w > to >> 6)
		return 0;
	return bits(w == from >> 6 ? from : 0, w == to >> 6 ? to : 63);
}

static __always_inline int has_all(const u64 *words, u64 from, u64 to)
{
	if (from >> 6 == to >> 6)
		return !(~words[from >> 6 & 7] & bits(from, to));
#pragma clang loop unroll(disable)
	for (u64 w = 0; w < 8; w++)
		if (~words[w] & part(w, from, to))
			return 0;
	return 1;
}

static __always_inline void set_all(u64 *words, u64 from, u64 to)
{
#pragma clang loop unroll(disable)
	for (u64 w = 0; w < 8; w++) {
		u64 wanted = part(w, from, to);

		if (~words[w] & wanted)
			__sync_fetch_and_or(&words[w], wanted);
	}
}

/* Records the part of the span that lies in one block. */
static __always_inline void note_block(struct span *s, u64 block)
{
	struct af_key key = { .inode = s->inode, .number = s->number, .block = block };
	struct af_table *table, none = {};
	u64 from = 0, to = 511;
	u32 zero = 0;
	void *tables;

	if (is_left_out(s->inode, s->number, block))
		return;
	tables = bpf_map_lookup_elem(&written, &zero);
	if (!tables)
		return;
	table = bpf_map_lookup_elem(tables, &key);
	if (!table) {
		bpf_map_update_elem(tables, &key, &none, BPF_NOEXIST);
		table = bpf_map_lookup_elem(tables, &key);
		if (!table) {
			drop();
			return;
		}
	}
	if (block == s->first >> BLOCK_SHIFT)
		from = s->first & 511;
	if (block == s->last >> BLOCK_SHIFT)
		to = s->last & 511;
	if (!has_all(table->words, from, to))
		set_all(table->words, from, to);
}

static long block_step(u64 i, void *ctx)
{
	struct span *s = ctx;
	u64 block = (s->first >> BLOCK_SHIFT) + 1 + i;

	if (block > s->last >> BLOCK_SHIFT)
		return 1;
	note_block(s, block);
	return 0;
}

static __always_inline void count(void)
{
	u32 zero = 0;
	struct af_counts *c = bpf_map_lookup_elem(&counts, &zero);

	if (c)
		c->events++;
}

/* Records a span of more than one block. */
static __always_inline void note_long(struct inode *inode, struct span *s)
{
	u64 first = s->first >> BLOCK_SHIFT, last = s->last >> BLOCK_SHIFT;
	struct af_long *l;
	u32 zero = 0;

	l = bpf_map_lookup_elem(&longs, &zero);
	if (!l || (l->inode == (u64)inode && l->number == (u32)s->number &&
		   l->epoch == s->epoch && l->first <= s->first && s->last <= l->last))
		return;
	/* Through the map, for the verifier: a value read from it is a number, not a pointer. */
	l->inode = (u64)inode;
	s->inode = *(volatile u64 *)&l->inode;
	l->first = s->first;
	/* Later events of a tracepoint record what this event does not. */
	l->last = last >= first + BLOCKS_MAX ? ((first + BLOCKS_MAX) << BLOCK_SHIFT) - 1 : s->last;
	l->epoch = s->epoch;
	l->number = s->number;
	count();
	note_block(s, first);
	bpf_loop(BLOCKS_MAX - 1, block_step, s, 0);
}

static __always_inline int note(struct inode *inode, u64 first, u64 last)
{
	struct span s = { .first = first, .last = last };
	u64 from = first & 511, to = last & 511;
	u32 block = first >> BLOCK_SHIFT, at;
	struct af_known *k;

	if (last < first)
		return 0;
	s.epoch = af_ctl.epoch;
	s.number = inode->i_ino;
	if (first >> BLOCK_SHIFT != last >> BLOCK_SHIFT) {
		note_long(inode, &s);
		return 0;
	}
	if (is_left_out((u64)inode, s.number, block))
		return 0;
	at = (s.number + block) & (KNOWN - 1);
	k = bpf_map_lookup_elem(&known, &at);
	if (!k)
		return 0;
	if (k->inode == (u64)inode && k->block == block && k->number == (u32)s.number &&
	    k->epoch == s.epoch) {
		if (has_all(k->words, from, to))
			return 0;
	} else {
		__builtin_memset(k, 0, sizeof(*k));
		/* As in note_long. */
		k->inode = (u64)inode;
		k->number = s.number;
		k->block = block;
		k->epoch = s.epoch;
	}
	s.inode = *(volatile u64 *)&k->inode;
	count();
	note_block(&s, block);
	set_all(k->words, from, to);
	return 0;
}

SEC("tp_btf/mm_filemap_fault")
int BPF_PROG(fault, struct address_space *mapping, unsigned long index)
{
	return note(mapping->host, index, index);
}

/*
 * Pages of a folio. Its order is a field of its own, in later kernels the low byte of the flags of
 * its second page. Where a kernel has neither, every folio counts as one page.
 */
static __always_inline u64 pages_of(struct folio *folio)
{
	u64 flags = 0;
	unsigned char order = 0;

	/* The flags are the first word of a page on every kernel. */
	bpf_probe_read_kernel(&flags, sizeof(flags), folio);
	if (!(flags >> bpf_core_enum_value(enum pageflags, PG_head) & 1))
		return 1;
	if (bpf_core_field_exists(folio->_folio_order))
		order = BPF_CORE_READ(folio, _folio_order);
	else if (bpf_core_field_exists(folio->_flags_1))
		bpf_probe_read_kernel(&order, 1, (void *)folio + bpf_core_type_size(struct page));
	return 1ULL << (order & 31);
}

/* Only the first write to a clean folio is seen, so any of its pages may have been written. */
SEC("tp_btf/writeback_dirty_folio")
int BPF_PROG(dirty, struct folio *folio, struct address_space *mapping)
{
	u64 first = folio->index;

	if (!mapping)
		return 0;
	return note(mapping->host, first, first + pages_of(folio) - 1);
}

static __always_inline int on_read(struct inode *inode, u64 first, u64 last)
{
	return note(inode, first, last);
}

#include "filecall.h"

SEC("tp_btf/mm_filemap_get_pages")
int BPF_PROG(get_pages, struct address_space *mapping, unsigned long first, unsigned long last)
{
	struct inode *inode = mapping->host;

	return note(inode, first, last_read(inode->i_size, last - af_ctl.exclusive));
}

SEC("fentry/filemap_fault")
int BPF_PROG(fault_call, struct vm_fault *vmf)
{
	return note(vmf->vma->vm_file->f_mapping->host, vmf->pgoff, vmf->pgoff);
}

/* Tracing programs that read kernel structures must be GPL-compatible. */
char _license[] SEC("license") = "Dual BSD/GPL";
