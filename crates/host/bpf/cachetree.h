/* SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause */
/*
 * Walks down the tree of the pages of one inode. Part of cachewalk.bpf.c, which provides the maps,
 * the control block and the kernel's structures.
 */
#ifndef AGEWISE_CACHETREE_H
#define AGEWISE_CACHETREE_H

/* Entries of an XArray (include/linux/xarray.h). */
static __always_inline int is_node(u64 entry) { return (entry & 3) == 2 && entry > 4096; }
static __always_inline int is_folio(u64 entry) { return entry && !(entry & 3); }
/* More of the folio in an earlier slot: a small internal entry with that slot's number. */
static __always_inline int is_tail(u64 entry) { return (entry & 3) == 2 && entry >> 2 < 63; }

/* The same as numbers: kernel addresses have the top bit set, small entries do not. */
static __always_inline u64 folio_bit(u64 entry)
{
	return entry >> 63 & ~(entry | entry >> 1) & 1;
}
static __always_inline u64 tail_bit(u64 entry)
{
	return (~entry & (entry - 254)) >> 63 & entry >> 1 & ~entry & 1;
}

/* Whether each slot has a folio of its own, as in most nodes of files in single pages. */
static __always_inline int are_folios(const u64 *slots)
{
	u64 any = 0, all = ~0ULL;

#pragma clang loop unroll_count(8)
	for (int i = 0; i < CW_SLOTS; i++) {
		any |= slots[i];
		all &= slots[i];
	}
	return all >> 63 && !(any & 3);
}

/* Of the slots that point to an earlier one, those whose chain begins at one of `heads`. */
static __always_inline u64 tails_of(u64 heads, u64 tail)
{
	for (int step = 1; step < CW_SLOTS; step <<= 1) {
		heads |= heads << step & tail;
		tail &= tail << step;
	}
	return heads;
}

struct tree {
	u64 array;		/* of the nodes that belong to the tree */
	u64 head;
	u64 page;		/* current position */
	u64 end;		/* one past the last page the tree can contain */
	u64 above;		/* the node above the last leaf, */
	u64 above_at;		/* and which one of its level that is; ~0 if not known */
	u32 stop;
	u32 tries;
	u32 n_leaves;
};

/*
 * In memory of a map, of which the verifier knows no values: on the stack, it followed the walk of
 * a node once for each combination of them that it could tell apart.
 */
struct tree cw_tree;

/* Reads the head of the tree, and how far it reaches. */
static __always_inline void read_head(struct tree *t)
{
	u8 shift = 0;

	t->head = 0;
	t->end = 0;
	t->above_at = ~0ULL;
	read_at(t->head, field(t->array, struct xarray, xa_head));
	if (is_node(t->head)) {
		read_field(shift, t->head & ~3ULL, struct xa_node, shift);
		t->end = shift >= 58 ? ~0ULL : (u64)CW_SLOTS << shift;
	}
}

/* The node read is no longer in the tree: again from the head, a few times, or on without it. */
static __always_inline void try_again(struct tree *t)
{
	if (t->tries++ < CW_RETRIES) {
		read_head(t);
		return;
	}
	cw_ctl.retries++;
	t->tries = 0;
	t->page = (t->page | (CW_SLOTS - 1)) + 1;
}

/* Kernfs id of the cgroup the folio is charged to, in v2 or the v1 memory hierarchy. */
static __always_inline u64 cgroup_of(u64 folio)
{
	u64 memcg = 0, at = 0, id = 0;

	read_field(memcg, folio, struct folio, memcg_data);
	/*
	 * MEMCG_DATA_KMEM: charged by way of an obj_cgroup. Later kernels charge every folio that
	 * way, so that those of a removed cgroup can pass to its parent; its `is_root` came with
	 * that.
	 */
	if (memcg & 2 || bpf_core_field_exists(struct obj_cgroup, is_root))
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

static __always_inline void taken(struct tree *t)
{
	cw_ctl.n_leaves++;
	t->n_leaves++;
	t->tries = 0;
}

/* Space for the slots of the next leaf; 0 if they are not wanted. */
static __always_inline struct cw_node *next_slots(void)
{
	u32 at = cw_ctl.n_leaves;

	return cw_ctl.with_folios ? bpf_map_lookup_elem(&folios, &at) : 0;
}

/* The only page of a tree, whose entry is in the head itself. */
static __always_inline void single(struct tree *t)
{
	struct cw_leaf *leaf = next_leaf(t);
	struct cw_node *slots = next_slots();
	u64 flags = 0;

	if (!leaf)
		return;
	if (slots)
		slots->slots[0] = t->head;
	/* The flags are the first word of a page on every kernel. */
	read_at(flags, t->head);
	__builtin_memset(leaf, 0, sizeof(*leaf));
	leaf->present = 1;
	leaf->dirty = flags >> bpf_core_enum_value(enum pageflags, PG_dirty) & 1;
	leaf->writeback = flags >> bpf_core_enum_value(enum pageflags, PG_writeback) & 1;
	leaf->cgroup = cgroup_of(t->head);
	taken(t);
}

/* Copies the slots of a node consistently; 0 if the node changed in the meantime. */
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
		try_again(t);
		return;
	}
	if (are_folios(copy->slots)) {
		present = ~0ULL;
		folio = copy->slots[0];
	} else {
		/* Without branches, or the verifier would follow each of 2^64 paths. */
#pragma clang loop unroll(disable)
		for (int i = CW_SLOTS - 1; i >= 0; i--) {
			u64 entry = copy->slots[i], bit = folio_bit(entry);

			present = present << 1 | bit;
			tail = tail << 1 | tail_bit(entry);
			/* Keeps the first of them. */
			folio += (entry - folio) & -bit;
		}
	}
	if (!present)
		goto next;
	/* A removed folio leaves a shadow in its first slot, and the slots that point to it. */
	tail &= tails_of(present, tail);
	present |= tail;
	leaf->first_page = t->page & ~(u64)(CW_SLOTS - 1);
	leaf->present = present;
	leaf->tail = tail;
	/* PAGECACHE_TAG_DIRTY and _WRITEBACK; a large folio is marked at its first slot. */
	leaf->dirty = marks[0] & present;
	leaf->writeback = marks[1] & present;
	leaf->cgroup = cgroup_of(folio);
	taken(t);
next:
	t->tries = 0;
	t->page = (t->page | (CW_SLOTS - 1)) + 1;
}

/* Most slots above the last level that are shown as one leaf: 2 MiB if they are next to it. */
#define SLOTS_AT_ONCE 8

/*
 * Log2 of the slots that a folio fills, which are shown at once. A folio is aligned to its size, so
 * they are all in this node.
 */
static __always_inline u32 slots_shift(const u64 *entries, u32 slot)
{
	u64 tail = (u64)slot << 2 | 2;
	u32 n = 0;

	if (is_folio(entries[0]))
		while (2 << n <= SLOTS_AT_ONCE && !(slot & ((2 << n) - 1)) &&
		       entries[(2 << n) - 1] == tail)
			n++;
	return n;
}

/* Slots above the last level: a large folio, or part of one. */
static __always_inline void upper_slots(struct tree *t, u64 node, u64 entry, u32 shift, u32 slot,
					u32 more)
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
	/* A shadow: its folio was removed. */
	if (!is_folio(head))
		return;
	bpf_probe_read_kernel(marks, sizeof(marks), (void *)field(node, struct xa_node, marks));
	bit = 1ULL << slot;
	leaf->first_page = (t->page & ~((1ULL << shift) - 1)) | (shift - CW_SHIFT + more);
	leaf->present = ~0ULL;
	leaf->dirty = marks[0] & bit ? ~0ULL : 0;
	leaf->writeback = marks[1] & bit ? ~0ULL : 0;
	leaf->cgroup = cgroup_of(head);
	if (slots) {
		slots->slots[0] = head;
		slots->slots[1] = before << 1 | 1;
	}
	taken(t);
}

/* Handles one leaf or one hole. Returns 1 to end the loop. */
static long tree_step(u64 i, void *ctx)
{
	struct tree *t = &cw_tree;
	u64 entry = t->head, node = 0, array, at = t->page >> 2 * CW_SHIFT;
	u64 entries[SLOTS_AT_ONCE] = {};
	u32 more;
	u8 shift = 0;

	if (t->stop || t->page >= t->end)
		return 1;
	/* A file of shadows shows nothing, and must not use the CPU in proportion to its size. */
	if (++cw_ctl.steps > CW_STEPS) {
		t->stop = 1;
		return 1;
	}
	/* Of neighbouring leaves only the first is looked up from the head. */
	if (at == t->above_at)
		entry = t->above;
	for (int level = 0; level < CW_LEVELS; level++) {
		u32 slot;

		node = entry & ~3ULL;
		array = 0;
		if (read_field(shift, node, struct xa_node, shift) ||
		    read_field(array, node, struct xa_node, array) || array != t->array ||
		    shift > 60) {
			try_again(t);
			return 0;
		}
		if (!shift) {
			last_level(t, node);
			return 0;
		}
		if (shift == CW_SHIFT) {
			t->above = entry;
			t->above_at = at;
		}
		slot = t->page >> shift & (CW_SLOTS - 1);
		/* Behind the last slots this is something else, which nothing looks at. */
		read_at(entries, field(node, struct xa_node, slots) + slot * sizeof(u64));
		entry = entries[0];
		if (is_node(entry))
			continue;
		more = slots_shift(entries, slot);
		if (is_folio(entry) || is_tail(entry)) {
			upper_slots(t, node, entry, shift, slot, more);
			if (t->stop)
				return 1;
		}
		t->page = (t->page | ((1ULL << (shift + more)) - 1)) + 1;
		return 0;
	}
	/* Deeper than any tree: the data read is invalid. */
	t->stop = 2;
	return 1;
}

/* Shows the pages of one inode from cw_ctl.page on. Returns 1 if the output is full. */
static __always_inline int show_tree(u64 inode, struct cw_file *file)
{
	struct tree *t = &cw_tree;

	__builtin_memset(t, 0, sizeof(*t));
	t->array = field(inode, struct inode, i_data.i_pages);
	t->page = cw_ctl.page;
	read_head(t);
	if (is_node(t->head))
		bpf_loop(1 << 23, tree_step, 0, 0);
	/* Also one that shrank to it before any page was shown. */
	if (is_folio(t->head) && !t->page)
		single(t);
	file->n_leaves = t->n_leaves;
	cw_ctl.page = t->page;
	if (t->stop == 1)
		return 1;
	if (t->stop == 2)
		file->state = CW_FILE_VOID;
	cw_ctl.page = 0;
	return 0;
}

#endif
