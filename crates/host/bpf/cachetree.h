/* SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause */
/*
 * Down the tree of the pages of one inode: part of cachewalk.bpf.c, which gives the maps, the
 * control block and the kernel's structures.
 */
#ifndef AGEWISE_CACHETREE_H
#define AGEWISE_CACHETREE_H

/* Entries of an XArray (include/linux/xarray.h). */
static __always_inline int is_node(u64 entry) { return (entry & 3) == 2 && entry > 4096; }
static __always_inline int is_folio(u64 entry) { return entry && !(entry & 3); }
/* More of the folio in a slot before it: the slot's number, in a small internal entry. */
static __always_inline int is_tail(u64 entry) { return (entry & 3) == 2 && entry >> 2 < 63; }

/* The same as numbers: kernel addresses have their top bit set, small entries have not. */
static __always_inline u64 folio_bit(u64 entry)
{
	return entry >> 63 & ~(entry | entry >> 1) & 1;
}
static __always_inline u64 tail_bit(u64 entry)
{
	return (~entry & (entry - 254)) >> 63 & entry >> 1 & ~entry & 1;
}

/* Of the slots that point to one before: those whose chain begins at one of `heads`. */
static __always_inline u64 tails_of(u64 heads, u64 tail)
{
	for (int step = 1; step < CW_SLOTS; step <<= 1) {
		heads |= heads << step & tail;
		tail &= tail << step;
	}
	return heads;
}

struct tree {
	u64 array;		/* of the nodes that belong to it */
	u64 head;
	u64 page;		/* where it is */
	u64 end;		/* behind the last page that it can hold */
	u32 stop;
	u32 tries;
	u32 n_leaves;
};

/* Whom the folio is charged to: cgroup v2's, or the memory hierarchy's, by kernfs id. */
static __always_inline u64 cgroup_of(u64 folio)
{
	u64 memcg = 0, at = 0, id = 0;

	read_field(memcg, folio, struct folio, memcg_data);
	if (memcg & 2) /* MEMCG_DATA_KMEM: charged by way of an obj_cgroup */
		read_field(memcg, memcg & ~7ULL, struct obj_cgroup, memcg);
	memcg &= ~7ULL;
	if (!memcg)
		return 0;
	if (memcg == cw_ctl.memcg)
		return cw_ctl.cgroup;
	read_field(at, memcg, struct mem_cgroup, css.cgroup);
	read_field(at, at, struct cgroup, kn);
	if (!read_field(id, at, struct kernfs_node, id)) {
		cw_ctl.memcg = memcg;
		cw_ctl.cgroup = id;
	}
	return id;
}

static __always_inline struct cw_leaf *next_leaf(struct tree *t)
{
	u32 at = cw_ctl.n_leaves;
	struct cw_leaf *leaf = bpf_map_lookup_elem(&leaves, &at);

	if (!leaf)
		t->stop = 1;
	return leaf;
}

static __always_inline void about_folio(struct cw_leaf *leaf, u64 folio)
{
	u64 flags = 0;

	/* Flags are the first word of a page on every kernel. */
	read_at(flags, folio);
	leaf->folio = folio;
	leaf->folio_flags = flags;
	leaf->cgroup = cgroup_of(folio);
}

static __always_inline void taken(struct tree *t)
{
	cw_ctl.n_leaves++;
	t->n_leaves++;
	t->tries = 0;
}

/* Where the slots of the next leaf go; none where nobody asks for them. */
static __always_inline struct cw_node *next_slots(void)
{
	u32 at = cw_ctl.n_leaves;

	return cw_ctl.with_folios ? bpf_map_lookup_elem(&folios, &at) : 0;
}

/* Its only page, which stands in the head itself. */
static __always_inline void single(struct tree *t)
{
	struct cw_leaf *leaf = next_leaf(t);
	struct cw_node *slots = next_slots();

	if (!leaf)
		return;
	if (slots)
		slots->slots[0] = t->head;
	__builtin_memset(leaf, 0, sizeof(*leaf));
	leaf->present = 1;
	about_folio(leaf, t->head);
	leaf->dirty = leaf->folio_flags >> bpf_core_enum_value(enum pageflags, PG_dirty) & 1;
	leaf->writeback = leaf->folio_flags >> bpf_core_enum_value(enum pageflags, PG_writeback) & 1;
	taken(t);
}

/* The slots of a node, as they stood together in its tree; 0 when they did not. */
static __always_inline int copy_node(struct tree *t, u64 node, struct cw_node *to, u64 marks[2])
{
	u64 array = 0;

	if (bpf_probe_read_kernel(to, sizeof(*to), (void *)field(node, struct xa_node, slots)) ||
	    bpf_probe_read_kernel(marks, 2 * sizeof(u64),
				  (void *)field(node, struct xa_node, marks)) ||
	    read_field(array, node, struct xa_node, array))
		return 0;
	return array == t->array;
}

static __always_inline void last_level(struct tree *t, u64 node)
{
	u64 marks[2] = {}, present = 0, tail = 0, folio = 0;
	struct cw_leaf *leaf = next_leaf(t);
	u32 zero = 0;
	struct cw_node *copy = next_slots();

	if (!copy)
		copy = bpf_map_lookup_elem(&scratch, &zero);
	if (!leaf || !copy)
		return;
	if (!copy_node(t, node, copy, marks)) {
		/* From the head again, a few times. */
		if (t->tries++ < CW_RETRIES)
			return;
		cw_ctl.retries++;
		goto next;
	}
	/* Without branches in it, or the verifier follows each of 2^64 ways. */
#pragma clang loop unroll(disable)
	for (int i = CW_SLOTS - 1; i >= 0; i--) {
		u64 entry = copy->slots[i], bit = folio_bit(entry);

		present = present << 1 | bit;
		tail = tail << 1 | tail_bit(entry);
		/* The first of them stays. */
		folio += (entry - folio) & -bit;
	}
	if (!present)
		goto next;
	/* What went leaves a shadow in its first slot, and the slots that point to it. */
	tail &= tails_of(present, tail);
	present |= tail;
	leaf->first_page = t->page & ~(u64)(CW_SLOTS - 1);
	leaf->present = present;
	leaf->tail = tail;
	/* PAGECACHE_TAG_DIRTY and _WRITEBACK; marks of a large folio stand at its first slot. */
	leaf->dirty = marks[0] & present;
	leaf->writeback = marks[1] & present;
	about_folio(leaf, folio);
	taken(t);
next:
	t->tries = 0;
	t->page = (t->page | (CW_SLOTS - 1)) + 1;
}

/* A slot above the last level: a large folio, or more of one. */
static __always_inline void upper_slot(struct tree *t, u64 node, u64 entry, u32 shift, u32 slot)
{
	u64 marks[2] = {}, head = entry, bit, before = 0;
	struct cw_leaf *leaf = next_leaf(t);
	struct cw_node *slots = next_slots();

	if (!leaf)
		return;
	__builtin_memset(leaf, 0, sizeof(*leaf));
	if (is_tail(entry)) {
		u32 first = entry >> 2 & (CW_SLOTS - 1);

		before = (u64)((slot - first) & (CW_SLOTS - 1)) << shift;
		slot = first;
		read_at(head, field(node, struct xa_node, slots) + slot * sizeof(u64));
		leaf->tail = ~0ULL;
	} else {
		leaf->tail = ~1ULL;
	}
	/* A shadow: its folio is gone. */
	if (!is_folio(head))
		return;
	bpf_probe_read_kernel(marks, sizeof(marks), (void *)field(node, struct xa_node, marks));
	bit = 1ULL << slot;
	leaf->first_page = (t->page & ~((1ULL << shift) - 1)) | (shift - CW_SHIFT);
	leaf->present = ~0ULL;
	leaf->dirty = marks[0] & bit ? ~0ULL : 0;
	leaf->writeback = marks[1] & bit ? ~0ULL : 0;
	about_folio(leaf, head);
	if (slots) {
		slots->slots[0] = head;
		slots->slots[1] = before << 1 | 1;
	}
	taken(t);
}

/* One leaf, or one hole. 1 ends the loop. */
static long tree_step(u64 i, void *ctx)
{
	struct tree *t = ctx;
	u64 entry = t->head, node = 0, array;
	u8 shift = 0;

	if (t->stop || t->page >= t->end)
		return 1;
	/* A file of shadows shows nothing, and must not hold the CPU for as long as it is large. */
	if (++cw_ctl.steps > CW_STEPS) {
		t->stop = 1;
		return 1;
	}
	for (int level = 0; level < CW_LEVELS; level++) {
		u32 slot;

		node = entry & ~3ULL;
		array = 0;
		if (read_field(shift, node, struct xa_node, shift) ||
		    read_field(array, node, struct xa_node, array) || array != t->array ||
		    shift > 60) {
			/* It left the tree; the caller looked up the head before. */
			if (t->tries++ < CW_RETRIES)
				return 0;
			cw_ctl.retries++;
			t->tries = 0;
			t->page = (t->page | (CW_SLOTS - 1)) + 1;
			return 0;
		}
		if (!shift) {
			last_level(t, node);
			return 0;
		}
		slot = t->page >> shift & (CW_SLOTS - 1);
		entry = 0;
		read_at(entry, field(node, struct xa_node, slots) + slot * sizeof(u64));
		if (is_node(entry))
			continue;
		if (is_folio(entry) || is_tail(entry)) {
			upper_slot(t, node, entry, shift, slot);
			if (t->stop)
				return 1;
		}
		t->page = (t->page | ((1ULL << shift) - 1)) + 1;
		return 0;
	}
	/* Deeper than any tree: nonsense was read. */
	t->stop = 2;
	return 1;
}

/* Shows the pages of one inode from cw_ctl.page on. 1: the output is full. */
static __always_inline int show_tree(u64 inode, struct cw_file *file)
{
	struct tree t = {};
	u8 shift = 0;

	t.array = field(inode, struct inode, i_data.i_pages);
	t.page = cw_ctl.page;
	t.n_leaves = 0;
	if (read_field(t.head, inode, struct inode, i_data.i_pages.xa_head))
		return 0;
	if (is_folio(t.head)) {
		if (!t.page)
			single(&t);
	} else if (is_node(t.head)) {
		read_field(shift, t.head & ~3ULL, struct xa_node, shift);
		t.end = shift >= 58 ? ~0ULL : (u64)CW_SLOTS << shift;
		bpf_loop(1 << 23, tree_step, &t, 0);
	}
	file->n_leaves = t.n_leaves;
	cw_ctl.page = t.page;
	if (t.stop == 1)
		return 1;
	if (t.stop == 2)
		file->state = CW_FILE_VOID;
	cw_ctl.page = 0;
	return 0;
}

#endif
