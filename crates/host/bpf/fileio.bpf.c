// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause
/*
 * Reports which file pages chosen processes read and write through file descriptors, in order. Only
 * observes.
 *
 * Below all system calls (read, pread, readv, io_uring, sendfile, splice) reads of cached files
 * pass mm_filemap_get_pages, once per batch of folios, with the pages that the caller still wants.
 * Writes pass tracepoints of ext4 once per folio, and of xfs once per call. Those of other file
 * systems all pass generic_write_checks, whose entry and return are traced. On kernels that cannot
 * trace functions, only the first write to a clean folio is reported, with its first page.
 */
#include <linux/types.h>
#include <linux/bpf.h>
#include <bpf/bpf_helpers.h>
#include <bpf/bpf_tracing.h>
#include <bpf/bpf_core_read.h>

typedef __u64 u64;
typedef __u32 u32;

#include "watched.h"

#pragma clang attribute push(__attribute__((preserve_access_index)), apply_to = record)
struct super_block { u32 s_dev; unsigned long s_magic; };
struct inode {
	unsigned long i_ino;
	long long i_size;
	u32 i_generation;
	struct super_block *i_sb;
};
struct address_space { struct inode *host; };
struct folio { unsigned long index; };
struct file { struct address_space *f_mapping; };
struct kiocb { struct file *ki_filp; long long ki_pos; int ki_flags; };
struct iov_iter { unsigned long count; };
typedef struct { int counter; } atomic_t;
struct signal_struct { atomic_t live; };
struct kernfs_node { u64 id; };
struct cgroup { struct kernfs_node *kn; };
struct cgroup_subsys_state {
	struct cgroup *cgroup;
	struct cgroup_subsys_state *parent;
};
struct css_set { struct cgroup_subsys_state *subsys[1]; };
struct task_struct {
	int tgid;
	struct signal_struct *signal;
	struct css_set *cgroups;
};
/* The values are those of the running kernel. */
enum cgroup_subsys_id { memory_cgrp_id = 0 };
#pragma clang attribute pop

/* A cgroup deeper than this is not recognised as a descendant. */
#define DEPTH_MAX 64
#define EXT4_MAGIC 0xef53
#define XFS_MAGIC 0x58465342
/* Its pages are not reported when they are read, either. */
#define TMPFS_MAGIC 0x01021994
/* Of the files behind block devices, whose dirty pages are file system metadata. */
#define BDEV_MAGIC 0x62646576
#define IOCB_DIRECT (1 << 17)

/* Must match src/fileio.rs. */
struct fio_event {
	u64 time_ns; /* CLOCK_MONOTONIC */
	u64 inode;
	u64 first;   /* pages, inclusive */
	u64 last;
	u32 device;
	u32 tgid;
	u32 tid;
	u32 write;
	u32 generation; /* of the inode, since its number may be reused for another file */
	u32 unused;
};

/* Set on loading. Must match `Told` in src/fileio.rs. */
const volatile struct {
	u64 cgroup;	/* watch this memory cgroup and its descendants; 0: those in the map */
	u32 reader;	/* the process that drains the ring, which is not reported */
	u32 exclusive;	/* last_index is one past the last page, as in some kernels */
	u32 ext4;	/* the kernel has tracepoints for this file system */
	u32 xfs;
} told;

/* Checks the current cgroup, so that no process can enter or leave unnoticed. */
static __always_inline int is_in_cgroup(u64 wanted)
{
	struct task_struct *task = bpf_get_current_task_btf();
	struct cgroup_subsys_state *css;

	/* Plain loads, as every reader waits for this: a third of the time of BPF_CORE_READ. */
	css = task->cgroups->subsys[bpf_core_enum_value(enum cgroup_subsys_id, memory_cgrp_id)];
	for (int depth = 0; css && depth < DEPTH_MAX; depth++) {
		if (css->cgroup->kn->id == wanted)
			return 1;
		css = css->parent;
	}
	return 0;
}

static __always_inline int is_watched(void)
{
	u32 tgid = bpf_get_current_pid_tgid() >> 32;

	if (told.cgroup)
		return tgid != told.reader && is_in_cgroup(told.cgroup);
	return bpf_map_lookup_elem(&watched, &tgid) != 0;
}

static __always_inline int tell(struct inode *inode, u64 first, u64 last, u32 write)
{
	struct fio_event *event = new_event(sizeof(*event));
	u64 who = bpf_get_current_pid_tgid();

	if (!event)
		return 0;
	event->time_ns = bpf_ktime_get_ns();
	event->inode = BPF_CORE_READ(inode, i_ino);
	event->device = BPF_CORE_READ(inode, i_sb, s_dev);
	event->first = first;
	event->last = last;
	event->tgid = who >> 32;
	event->tid = who;
	event->write = write;
	event->generation = BPF_CORE_READ(inode, i_generation);
	event->unused = 0;
	/* No wakeup: the reader polls once per interval. */
	bpf_ringbuf_submit(event, BPF_RB_NO_WAKEUP);
	return 0;
}

static __always_inline int on_read(struct inode *inode, u64 first, u64 last)
{
	return is_watched() ? tell(inode, first, last, 0) : 0;
}

#include "filecall.h"

static __always_inline int tell_bytes(struct inode *inode, u64 offset, u64 length)
{
	return tell(inode, offset >> PAGE_SHIFT, (offset + length - 1) >> PAGE_SHIFT, 1);
}

static __always_inline int tell_write(struct inode *inode, long long offset, u64 length)
{
	if (offset < 0 || !length || !is_watched())
		return 0;
	return tell_bytes(inode, offset, length);
}

SEC("tp_btf/mm_filemap_get_pages")
int BPF_PROG(get_pages, struct address_space *mapping, unsigned long first, unsigned long last)
{
	struct inode *inode;

	if (!is_watched())
		return 0;
	inode = mapping->host;
	last = last_read(BPF_CORE_READ(inode, i_size), last - told.exclusive);
	return first <= last ? tell(inode, first, last, 0) : 0;
}

/* At the beginning of a folio's part its length is not known yet: all that is left is reported. */
SEC("tp_btf/ext4_write_end")
int BPF_PROG(ext4_write, struct inode *inode, long long offset, u32 length, u32 copied)
{
	return tell_write(inode, offset, copied);
}

SEC("tp_btf/ext4_da_write_end")
int BPF_PROG(ext4_da_write, struct inode *inode, long long offset, u32 length, u32 copied)
{
	return tell_write(inode, offset, copied);
}

SEC("tp_btf/ext4_journalled_write_end")
int BPF_PROG(ext4_j_write, struct inode *inode, long long offset, u32 length, u32 copied)
{
	return tell_write(inode, offset, copied);
}

SEC("tp_btf/xfs_file_buffered_write")
int BPF_PROG(xfs_write, struct kiocb *iocb, struct iov_iter *from)
{
	struct inode *inode = BPF_CORE_READ(iocb, ki_filp, f_mapping, host);

	return tell_write(inode, BPF_CORE_READ(iocb, ki_pos), BPF_CORE_READ(from, count));
}

/* Whether writes to a file are reported here: not if its file system has tracepoints of its own. */
static __always_inline int is_other(struct inode *inode)
{
	u64 magic = BPF_CORE_READ(inode, i_sb, s_magic);

	return !(magic == EXT4_MAGIC && told.ext4) && !(magic == XFS_MAGIC && told.xfs) &&
	       magic != BDEV_MAGIC && magic != TMPFS_MAGIC;
}

/* On return, the place is known also of a write that appends, and the length is what fits. */
SEC("fexit/generic_write_checks")
int BPF_PROG(checked, struct kiocb *iocb, struct iov_iter *from, long length)
{
	struct inode *inode;

	if (length <= 0 || iocb->ki_flags & IOCB_DIRECT || !is_watched())
		return 0;
	inode = BPF_CORE_READ(iocb, ki_filp, f_mapping, host);
	return is_other(inode) ? tell_bytes(inode, iocb->ki_pos, length) : 0;
}

SEC("tp_btf/writeback_dirty_folio")
int BPF_PROG(dirty, struct folio *folio, struct address_space *mapping)
{
	if (!mapping || !is_watched() || !is_other(mapping->host))
		return 0;
	return tell(mapping->host, folio->index, folio->index, 1);
}

/* Watches processes started by watched ones, from their first moment on. */
SEC("tp_btf/sched_process_fork")
int BPF_PROG(started, struct task_struct *parent, struct task_struct *child)
{
	u32 of = parent->tgid, tgid = child->tgid;
	u32 *generation = bpf_map_lookup_elem(&watched, &of);

	/* 2: without its children. */
	if (generation && *generation == 1 && of != tgid)
		bpf_map_update_elem(&watched, &tgid, generation, BPF_ANY);
	return 0;
}

/* A process ends with its last thread; its number will be reused. */
SEC("tp_btf/sched_process_exit")
int BPF_PROG(ended, struct task_struct *task)
{
	u32 tgid = task->tgid;

	if (!BPF_CORE_READ(task, signal, live.counter))
		bpf_map_delete_elem(&watched, &tgid);
	return 0;
}

/* bpf_ktime_get_ns is only available to GPL-compatible programs. */
char _license[] SEC("license") = "Dual BSD/GPL";
