/* SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause */
/*
 * Reads of files: how far they reach, and on kernels without mm_filemap_get_pages (before 6.11)
 * hooks of the functions that all system calls for reads pass. Included by a program that declares
 * the kernel's structures and defines what to do with a read: on_read(inode, first page, last
 * page).
 */
#ifndef AGEWISE_FILECALL_H
#define AGEWISE_FILECALL_H

#define PAGE_SHIFT 12

/*
 * The last page that is read from a file of this size, of pages up to `last` that were asked for.
 * Nothing is read past the end. A block device stores its size elsewhere.
 */
static __always_inline u64 last_read(long long size, u64 last)
{
	u64 behind = ((u64)size + (1 << PAGE_SHIFT) - 1) >> PAGE_SHIFT;

	return size > 0 && last >= behind ? behind - 1 : last;
}

/* A call may ask for more than exists, while the tracepoint fires for pages found. */
static __always_inline int read_bytes(struct file *file, u64 offset, u64 bytes)
{
	struct inode *inode = file->f_mapping->host;
	u64 size = inode->i_size;

	if (!bytes || offset >= size)
		return 0;
	if (bytes > size - offset)
		bytes = size - offset;
	return on_read(inode, offset >> PAGE_SHIFT, (offset + bytes - 1) >> PAGE_SHIFT);
}

SEC("fentry/filemap_read")
int BPF_PROG(read_call, struct kiocb *iocb, struct iov_iter *to)
{
	return read_bytes(iocb->ki_filp, iocb->ki_pos, to->count);
}

/* sendfile and splice, since Linux 6.5; before, they pass filemap_read. */
SEC("fentry/filemap_splice_read")
int BPF_PROG(splice_call, struct file *in, long long *offset, void *pipe, unsigned long bytes)
{
	long long at = 0;

	bpf_probe_read_kernel(&at, sizeof(at), offset);
	return read_bytes(in, at, bytes);
}

#endif
