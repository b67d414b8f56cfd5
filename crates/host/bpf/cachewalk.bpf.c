// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause
/*
 * Reads what is in the page cache: super blocks, their inodes, and the trees of their pages. Read
 * only, without locks: whatever was read is checked afterwards, and discarded if it had become
 * something else. Nodes and inodes that go away carry a mark of it (a node has no array any more, an
 * inode's place in its list points to itself), and memory that is no longer mapped cannot be read.
 *
 * No vmlinux.h: the few fields used are declared here and relocated on loading (CO-RE).
 */
#include <linux/types.h>
#include <linux/bpf.h>
#include <bpf/bpf_helpers.h>
#include <bpf/bpf_tracing.h>
#include <bpf/bpf_core_read.h>

typedef __u64 u64;
typedef __u32 u32;
typedef __u8 u8;

#pragma clang attribute push(__attribute__((preserve_access_index)), apply_to = record)
struct list_head { struct list_head *next, *prev; };
struct hlist_node { struct hlist_node *next; };
struct hlist_head { struct hlist_node *first; };
struct file_system_type { const char *name; };
struct dentry;
struct super_block {
	struct list_head s_list;
	u32 s_dev;
	struct file_system_type *s_type;
	unsigned long s_magic;
	struct dentry *s_root;
	struct list_head s_inodes;
	char s_id[32];
};
struct xarray { void *xa_head; };
struct address_space { struct xarray i_pages; unsigned long nrpages; };
struct inode {
	struct super_block *i_sb;
	unsigned long i_ino;
	unsigned int i_nlink;
	u32 i_generation;
	long long i_size;
	struct list_head i_sb_list;
	struct hlist_head i_dentry;
	struct address_space i_data;
};
struct xa_node {
	unsigned char shift;
	struct xarray *array;
	void *slots[64];
	unsigned long marks[3];
};
struct qstr { const unsigned char *name; };
struct dentry {
	struct dentry *d_parent;
	struct qstr d_name;
	struct inode *d_inode;
	union { struct hlist_node d_alias; } d_u;
};
struct kernfs_node { u64 id; };
struct cgroup { struct kernfs_node *kn; };
struct cgroup_subsys_state { struct cgroup *cgroup; };
struct mem_cgroup { struct cgroup_subsys_state css; };
struct obj_cgroup { struct mem_cgroup *memcg; };
struct folio { unsigned long memcg_data; };
struct file { struct inode *f_inode; };
struct fdtable { unsigned int max_fds; struct file **fd; };
struct files_struct { struct fdtable *fdt; };
struct task_struct { struct files_struct *files; };
enum pageflags { PG_dirty, PG_writeback };
#pragma clang attribute pop

#include "cachewalk.h"

#define field(address, type, name) \
	((u64)(address) + bpf_core_field_offset(type, name))
#define read_at(to, address) bpf_probe_read_kernel(&(to), sizeof(to), (const void *)(address))
#define read_field(to, address, type, name) read_at(to, field(address, type, name))

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(map_flags, BPF_F_MMAPABLE);
	__uint(max_entries, 1);
	__type(key, u32);
	__type(value, struct cw_super);
} supers SEC(".maps");
struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(map_flags, BPF_F_MMAPABLE);
	__uint(max_entries, 1);
	__type(key, u32);
	__type(value, struct cw_file);
} files SEC(".maps");
struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(map_flags, BPF_F_MMAPABLE);
	__uint(max_entries, 1);
	__type(key, u32);
	__type(value, struct cw_leaf);
} leaves SEC(".maps");
struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(map_flags, BPF_F_MMAPABLE);
	__uint(max_entries, 1);
	__type(key, u32);
	__type(value, struct cw_path);
} path SEC(".maps");
struct cw_node { u64 slots[CW_SLOTS]; };
struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, 1);
	__type(key, u32);
	__type(value, struct cw_node);
} scratch SEC(".maps");

struct cw_ctl cw_ctl SEC(".data.ctl");

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

/* Its only page, which stands in the head itself. */
static __always_inline void single(struct tree *t)
{
	struct cw_leaf *leaf = next_leaf(t);

	if (!leaf)
		return;
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
	struct cw_node *copy = bpf_map_lookup_elem(&scratch, &zero);

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
	u64 marks[2] = {}, head = entry, bit;
	struct cw_leaf *leaf = next_leaf(t);

	if (!leaf)
		return;
	__builtin_memset(leaf, 0, sizeof(*leaf));
	if (is_tail(entry)) {
		slot = entry >> 2 & (CW_SLOTS - 1);
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

struct list {
	u64 head;	/* of the inodes of the super block */
	u64 at;		/* the place of the inode, or the head */
	u32 resume;	/* of the inode at which it stands the rest is wanted first */
};

/* Shows one inode; 1 if the output is full. */
static __always_inline int show_inode(u64 inode)
{
	u64 pages = 0, sb = 0, number = 0;
	u32 n = cw_ctl.n_files;
	struct cw_file *file;
	int full;

	read_field(pages, inode, struct inode, i_data.nrpages);
	if (!pages) {
		cw_ctl.page = 0;
		return 0;
	}
	file = bpf_map_lookup_elem(&files, &n);
	if (!file)
		return 1;
	__builtin_memset(file, 0, sizeof(*file));
	file->inode = inode;
	file->pages = pages;
	read_field(file->number, inode, struct inode, i_ino);
	read_field(file->generation, inode, struct inode, i_generation);
	read_field(file->links, inode, struct inode, i_nlink);
	read_field(file->size_bytes, inode, struct inode, i_size);
	file->state = CW_FILE_WHOLE;
	cw_ctl.n_files = n + 1;
	cw_ctl.number = file->number;
	full = show_tree(inode, file);
	if (full)
		file->state = 0;
	read_field(sb, inode, struct inode, i_sb);
	read_field(number, inode, struct inode, i_ino);
	if (sb != cw_ctl.super || number != file->number)
		file->state = CW_FILE_VOID;
	return full;
}

/* Whether the inode is where it was in the list: others point to it. */
static __always_inline int stands(u64 inode, u64 number)
{
	u64 at = field(inode, struct inode, i_sb_list), sb = 0, now = 0, next = 0, prev = 0;

	read_field(sb, inode, struct inode, i_sb);
	read_field(now, inode, struct inode, i_ino);
	read_field(next, at, struct list_head, next);
	read_field(prev, next, struct list_head, prev);
	return sb == cw_ctl.super && now == number && prev == at && next != at;
}

struct back { u64 at; u32 from; };

/* The inode passed before, while none stands. 1 ends the loop. */
static long back_step(u64 i, void *ctx)
{
	struct back *b = ctx;
	struct cw_place *place = &cw_ctl.trail[(b->from - 1 - (u32)i) & (CW_TRAIL - 1)];

	if (!stands(place->inode, place->number))
		return 0;
	b->at = field(place->inode, struct inode, i_sb_list);
	return 1;
}

/* The inode at hand went away. On behind one passed before, which shows some again; 0: there is none. */
static __always_inline int go_back(struct list *l)
{
	struct back b = { .from = cw_ctl.passed };
	u32 known = cw_ctl.passed;

	cw_ctl.steps_back++;
	bpf_loop(known < CW_TRAIL ? known : CW_TRAIL, back_step, &b, 0);
	if (b.at)
		l->at = b.at;
	else if (known < CW_TRAIL)
		l->at = l->head;
	else
		return 0;
	return 1;
}

/* On to the next inode of the list. 1 ends the loop. */
static long inode_step(u64 i, void *ctx)
{
	struct list *l = ctx;
	u64 next = 0, prev = 0, inode, sb = 0;

	if (l->resume) {
		inode = cw_ctl.inode;
		goto show;
	}
	if (cw_ctl.visited >= cw_ctl.visits_max) {
		cw_ctl.rc = CW_FULL;
		return 1;
	}
	for (int tries = 0; tries < CW_RETRIES; tries++) {
		if (read_field(next, l->at, struct list_head, next))
			break;
		if (next == l->head) {
			cw_ctl.rc = CW_DONE;
			return 1;
		}
		prev = 0;
		read_field(prev, next, struct list_head, prev);
		if (prev == l->at && next != l->at)
			goto found;
	}
lost:
	cw_ctl.visited++;
	if (go_back(l))
		return 0;
	cw_ctl.rc = CW_LOST;
	return 1;
found:
	inode = next - bpf_core_field_offset(struct inode, i_sb_list);
	read_field(sb, inode, struct inode, i_sb);
	if (sb != cw_ctl.super)
		goto lost;
	cw_ctl.visited++;
	cw_ctl.inode = inode;
	cw_ctl.page = 0;
	read_field(cw_ctl.number, inode, struct inode, i_ino);
	l->at = next;
show:
	l->resume = 0;
	if (show_inode(inode)) {
		cw_ctl.rc = CW_FULL;
		return 1;
	}
	/* It was shown whole: this is where to go on behind. */
	cw_ctl.page = ~0ULL;
	cw_ctl.trail[cw_ctl.passed & (CW_TRAIL - 1)].inode = inode;
	cw_ctl.trail[cw_ctl.passed & (CW_TRAIL - 1)].number = cw_ctl.number;
	cw_ctl.passed++;
	return 0;
}

/* Whether the super block is still in the list, and itself. */
static __always_inline int is_super(u64 sb)
{
	u64 list = field(sb, struct super_block, s_list), next = 0, back = 0;

	return !read_field(next, list, struct list_head, next) &&
	       !read_field(back, next, struct list_head, prev) && back == list;
}

/*
 * The inodes of cw_ctl.super behind cw_ctl.inode, or the rest of that one from cw_ctl.page on (~0: it
 * was shown to its end).
 */
SEC("syscall")
int walk_inodes(void *ctx)
{
	struct list l = {};

	cw_ctl.n_files = 0;
	cw_ctl.n_leaves = 0;
	cw_ctl.visited = 0;
	cw_ctl.retries = 0;
	cw_ctl.steps_back = 0;
	cw_ctl.steps = 0;
	cw_ctl.memcg = 0;
	if (!is_super(cw_ctl.super)) {
		cw_ctl.rc = CW_NOT_HERE;
		return 0;
	}
	l.head = field(cw_ctl.super, struct super_block, s_inodes);
	l.at = l.head;
	if (cw_ctl.inode) {
		if (stands(cw_ctl.inode, cw_ctl.number)) {
			l.at = field(cw_ctl.inode, struct inode, i_sb_list);
			l.resume = cw_ctl.page != ~0ULL;
		} else if (!go_back(&l)) {
			cw_ctl.rc = CW_LOST;
			return 0;
		}
	}
	bpf_loop(1 << 23, inode_step, &l, 0);
	return 0;
}

/* One super block. 1 ends the loop. */
static long super_step(u64 i, void *ctx)
{
	u32 n = cw_ctl.n_supers;
	struct cw_super *out;
	u64 next = 0, type = 0, name = 0;

	/* The head of the list stands in the kernel's image, all others in the direct map below it. */
	if ((long long)cw_ctl.super < -0x80000000LL) {
		out = bpf_map_lookup_elem(&supers, &n);
		if (!out) {
			cw_ctl.rc = CW_FULL;
			return 1;
		}
		__builtin_memset(out, 0, sizeof(*out));
		out->address = cw_ctl.super;
		read_field(out->magic, cw_ctl.super, struct super_block, s_magic);
		read_field(out->device, cw_ctl.super, struct super_block, s_dev);
		read_field(out->id, cw_ctl.super, struct super_block, s_id);
		read_field(type, cw_ctl.super, struct super_block, s_type);
		read_field(name, type, struct file_system_type, name);
		bpf_probe_read_kernel_str(out->type, sizeof(out->type), (void *)name);
		cw_ctl.n_supers = n + 1;
	}
	if (read_field(next, cw_ctl.super, struct super_block, s_list.next) || !next) {
		cw_ctl.rc = CW_LOST;
		return 1;
	}
	cw_ctl.super = next - bpf_core_field_offset(struct super_block, s_list);
	if (cw_ctl.super == *(u64 *)ctx) {
		cw_ctl.rc = CW_DONE;
		return 1;
	}
	return 0;
}

/* All super blocks, from that of the descriptor around to it. */
SEC("syscall")
int list_supers(void *ctx)
{
	struct task_struct *task = (void *)bpf_get_current_task();
	struct fdtable *table = BPF_CORE_READ(task, files, fdt);
	u64 file = 0, first = 0;

	cw_ctl.n_supers = 0;
	cw_ctl.rc = CW_NOT_HERE;
	if (cw_ctl.fd >= BPF_CORE_READ(table, max_fds))
		return 0;
	read_at(file, (u64)BPF_CORE_READ(table, fd) + cw_ctl.fd * sizeof(u64));
	first = (u64)BPF_CORE_READ((struct file *)file, f_inode, i_sb);
	if (!first)
		return 0;
	cw_ctl.super = first;
	bpf_loop(1 << 16, super_step, &first, 0);
	return 0;
}

struct climb { u64 dentry, root; };

/* The name of one entry, and up to its directory. 1 ends the loop. */
static long climb_step(u64 i, void *ctx)
{
	struct climb *c = ctx;
	u64 parent = 0, name = 0;
	u32 zero = 0, n = cw_ctl.names;
	struct cw_path *to = bpf_map_lookup_elem(&path, &zero);

	if (!to || n >= CW_DEPTH)
		return 1;
	if (c->dentry == c->root) {
		cw_ctl.rc = CW_DONE;
		return 1;
	}
	read_field(parent, c->dentry, struct dentry, d_parent);
	read_field(name, c->dentry, struct dentry, d_name.name);
	if (!parent || parent == c->dentry ||
	    bpf_probe_read_kernel_str(to->names[n], CW_NAME_BYTES, (void *)name) <= 0)
		return 1;
	cw_ctl.names = n + 1;
	c->dentry = parent;
	return 0;
}

/* The names from cw_ctl.inode up to the root of its file system, by the first of its entries. */
SEC("syscall")
int name_inode(void *ctx)
{
	struct climb c = {};
	u64 sb = 0, number = 0, alias = 0, inode = 0;

	cw_ctl.names = 0;
	cw_ctl.rc = CW_NOT_HERE;
	read_field(sb, cw_ctl.inode, struct inode, i_sb);
	read_field(number, cw_ctl.inode, struct inode, i_ino);
	read_field(alias, cw_ctl.inode, struct inode, i_dentry.first);
	if (sb != cw_ctl.super || number != cw_ctl.number || !alias)
		return 0;
	c.dentry = alias - bpf_core_field_offset(struct dentry, d_u.d_alias);
	read_field(inode, c.dentry, struct dentry, d_inode);
	read_field(c.root, sb, struct super_block, s_root);
	if (inode != cw_ctl.inode || !c.root)
		return 0;
	bpf_loop(CW_DEPTH + 1, climb_step, &c, 0);
	return 0;
}

/* Task fields and probe reads are for GPL-compatible programs only. */
char _license[] SEC("license") = "Dual BSD/GPL";
