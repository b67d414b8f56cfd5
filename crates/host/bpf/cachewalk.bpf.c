// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause
/*
 * Reads what is in the page cache: super blocks, their inodes, and the trees of their pages. Read
 * only and without locks: everything read is checked afterwards, and discarded if it had become
 * something else. Nodes and inodes that go away can be recognised (a node no longer has an array,
 * an inode's list entry points to itself), and reads of unmapped memory fail.
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
	struct super_block *d_sb;
	struct hlist_node d_alias;
};
/* As it was while the union that contains it had a name. */
struct dentry___named { union { struct hlist_node d_alias; } d_u; };
struct kernfs_node { u64 id; };
struct cgroup { struct kernfs_node *kn; };
struct cgroup_subsys_state { struct cgroup *cgroup; };
struct mem_cgroup { struct cgroup_subsys_state css; };
struct obj_cgroup { struct mem_cgroup *memcg; unsigned char is_root; };
struct folio { unsigned long memcg_data; };
struct page { unsigned long flags; };
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
struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(map_flags, BPF_F_MMAPABLE);
	__uint(max_entries, 1);
	__type(key, u32);
	__type(value, struct cw_node);
} folios SEC(".maps");
struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, 1);
	__type(key, u32);
	__type(value, struct cw_node);
} scratch SEC(".maps");

struct cw_ctl cw_ctl SEC(".data.ctl");

#include "cachetree.h"

struct list {
	u64 head;	/* of the inode list of the super block */
	u64 at;		/* list entry of the current inode, or the head */
	u32 resume;	/* the rest of the current inode is wanted first */
};

/* Shows one inode. Returns 1 if the output is full. */
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

/* Whether the inode is still in the list, because its neighbours point to it. */
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

/* Tries the inode passed before that, until one is still in the list. 1 ends the loop. */
static long back_step(u64 i, void *ctx)
{
	struct back *b = ctx;
	struct cw_place *place = &cw_ctl.trail[(b->from - 1 - (u32)i) & (CW_TRAIL - 1)];

	if (!stands(place->inode, place->number))
		return 0;
	b->at = field(place->inode, struct inode, i_sb_list);
	return 1;
}

/* The current inode went away: continue after one passed earlier. Returns 0 if there is none. */
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

/* Advances to the next inode of the list. Returns 1 to end the loop. */
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
	/* It was shown completely: continue after it. */
	cw_ctl.page = ~0ULL;
	cw_ctl.trail[cw_ctl.passed & (CW_TRAIL - 1)].inode = inode;
	cw_ctl.trail[cw_ctl.passed & (CW_TRAIL - 1)].number = cw_ctl.number;
	cw_ctl.passed++;
	return 0;
}

/* Whether the super block is still in the list, and unchanged. */
static __always_inline int is_super(u64 sb)
{
	u64 list = field(sb, struct super_block, s_list), next = 0, back = 0;

	return !read_field(next, list, struct list_head, next) &&
	       !read_field(back, next, struct list_head, prev) && back == list;
}

/*
 * Shows the inodes of cw_ctl.super after cw_ctl.inode, or the rest of that one from cw_ctl.page on
 * (~0: it was shown to its end). Without a super block: from that inode on, wherever it is.
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
	if (!cw_ctl.super) {
		read_field(cw_ctl.super, cw_ctl.inode, struct inode, i_sb);
		read_field(cw_ctl.number, cw_ctl.inode, struct inode, i_ino);
	}
	if (!is_super(cw_ctl.super)) {
		cw_ctl.rc = CW_NOT_HERE;
		return 0;
	}
	read_field(cw_ctl.magic, cw_ctl.super, struct super_block, s_magic);
	read_field(cw_ctl.device, cw_ctl.super, struct super_block, s_dev);
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

/* Shows one super block. Returns 1 to end the loop. */
static long super_step(u64 i, void *ctx)
{
	u32 n = cw_ctl.n_supers;
	struct cw_super *out;
	u64 next = 0, type = 0, name = 0, root = 0, sb = 0;

	/* The list head is not a super block: what would be its root belongs to another one. */
	read_field(root, cw_ctl.super, struct super_block, s_root);
	read_field(sb, root, struct dentry, d_sb);
	if (sb == cw_ctl.super) {
		out = bpf_map_lookup_elem(&supers, &n);
		if (!out) {
			cw_ctl.rc = CW_FULL;
			return 1;
		}
		__builtin_memset(out, 0, sizeof(*out));
		out->address = cw_ctl.super;
		read_field(out->magic, cw_ctl.super, struct super_block, s_magic);
		read_field(out->device, cw_ctl.super, struct super_block, s_dev);
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

/* Lists super blocks all around from that of the descriptor, or from cw_ctl.super on. */
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
	if (!cw_ctl.super) {
		cw_ctl.super = first;
	} else if (!is_super(cw_ctl.super)) {
		cw_ctl.rc = CW_LOST;
		return 0;
	}
	bpf_loop(1 << 16, super_step, &first, 0);
	return 0;
}

struct climb { u64 dentry, root; };

/* Stores the name of one entry, and moves up to its directory. Returns 1 to end the loop. */
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

/* Lists names from cw_ctl.inode up to the root of its file system, by its first entry. */
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
	if (bpf_core_field_exists(struct dentry, d_alias))
		c.dentry = alias - bpf_core_field_offset(struct dentry, d_alias);
	else
		c.dentry = alias - bpf_core_field_offset(struct dentry___named, d_u.d_alias);
	read_field(inode, c.dentry, struct dentry, d_inode);
	read_field(c.root, sb, struct super_block, s_root);
	if (inode != cw_ctl.inode || !c.root)
		return 0;
	bpf_loop(CW_DEPTH + 1, climb_step, &c, 0);
	return 0;
}

/*
 * Finds the folio of the first page of the descriptor's file, the cgroup it is charged to, and the
 * size of struct page.
 */
SEC("syscall")
int folio_of(void *ctx)
{
	struct task_struct *task = (void *)bpf_get_current_task();
	struct fdtable *table = BPF_CORE_READ(task, files, fdt);
	u64 file = 0, entry = 0;

	cw_ctl.rc = CW_NOT_HERE;
	cw_ctl.page_struct_bytes = bpf_core_type_size(struct page);
	if (cw_ctl.fd >= BPF_CORE_READ(table, max_fds))
		return 0;
	read_at(file, (u64)BPF_CORE_READ(table, fd) + cw_ctl.fd * sizeof(u64));
	entry = (u64)BPF_CORE_READ((struct file *)file, f_inode, i_data.i_pages.xa_head);
	for (int level = 0; level < CW_LEVELS && is_node(entry); level++)
		read_field(entry, entry & ~3ULL, struct xa_node, slots);
	if (is_folio(entry)) {
		cw_ctl.page = entry;
		cw_ctl.memcg = 0;
		cw_ctl.cgroup = cgroup_of(entry);
		cw_ctl.rc = CW_DONE;
	}
	return 0;
}

/* Task fields and probe reads are only available to GPL-compatible programs. */
char _license[] SEC("license") = "Dual BSD/GPL";
