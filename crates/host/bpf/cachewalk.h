/* SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause */
/*
 * Data exchanged between the page-cache walker and its caller. src/pagecache/layout.rs mirrors it.
 */
#ifndef AGEWISE_CACHEWALK_H
#define AGEWISE_CACHEWALK_H

#define CW_SLOTS	64	/* entries of an xa_node (XA_CHUNK_SIZE) */
#define CW_SHIFT	6	/* log2 of that */
#define CW_LEVELS	11	/* depth of the deepest tree with 64-bit indexes */
#define CW_RETRIES	3
#define CW_STEPS	65536	/* most tree nodes and holes per call */
#define CW_TRAIL	64	/* number of passed inodes remembered, a power of two */
#define CW_NAME_BYTES	256	/* longest name of a directory entry, including the zero byte */
#define CW_DEPTH	64	/* most names in a path */

/* Why a call stopped. */
#define CW_DONE		0	/* all super blocks, inodes or names were shown */
#define CW_FULL		1	/* output full, or enough inodes visited: call again */
#define CW_LOST		2	/* the place to continue from is gone: restart at an earlier one */
#define CW_NOT_HERE	3	/* what the caller named does not exist (any more) */

/* A super block. */
struct cw_super {
	u64 address;
	u64 magic;
	u32 device;		/* s_dev in the kernel's encoding: 12 bits major, 20 bits minor */
	u32 unused;
	char type[16];
};

/* An inode with cached pages. Its leaves follow those of the previous inode. */
struct cw_file {
	u64 inode;
	u64 number;		/* i_ino */
	u64 size_bytes;
	u32 generation;
	u32 links;
	u32 n_leaves;
	u32 state;		/* CW_FILE_* */
};
#define CW_FILE_WHOLE	1	/* shown to its last page */
#define CW_FILE_VOID	2	/* it became another inode during the walk: discard its leaves */

/* Up to 64 adjacent pages or groups. A bit represents 1 << shift pages. */
struct cw_leaf {
	u64 first_page;		/* the low six bits are the shift */
	u64 present;
	u64 tail;		/* present, and not the first page of its large folio */
	u64 dirty;
	u64 writeback;
	u64 cgroup;		/* kernfs id of the cgroup the first present folio is charged to */
};

/*
 * The slots of a leaf, if requested by cw_ctl.with_folios: entries of its tree. If the leaf is part
 * of a higher node, there are only two: its folio, and twice the number of that folio's pages
 * before it, plus one.
 */
struct cw_node { u64 slots[CW_SLOTS]; };

/* The names of a path, from the file upwards. */
struct cw_path { u8 names[CW_DEPTH][CW_NAME_BYTES]; };

struct cw_place { u64 inode, number; };

struct cw_ctl {
	/* in and out: where to continue */
	u64 super;
	u64 inode;		/* 0: from the first */
	u64 number;		/* of `inode`, to detect another one there */
	u64 page;		/* page in that inode */
	/* in */
	u32 fd;			/* our own, on any file system: the entry point to the list */
	u32 visits_max;		/* most inodes visited per call */
	/* out */
	u32 rc;
	u32 n_supers, n_files, n_leaves;
	u32 visited;		/* inodes visited, with or without pages */
	u32 retries;		/* nodes skipped because they left their tree during the read */
	u32 names;		/* number of names in the path, from the file upwards */
	/* Kept between calls: where to go back to if the current inode goes away. */
	u32 passed;		/* inodes passed in this super block */
	u32 steps_back;
	u32 steps;		/* nodes and holes of trees visited in this call */
	u32 with_folios;	/* in: also show the slots of each leaf */
	u32 page_struct_bytes;	/* out, from folio_of: size of struct page */
	u64 memcg, cgroup;	/* the last memory cgroup found, and its id */
	u64 magic;		/* out, from walk_inodes: of the super block */
	u32 device, unused;
	struct cw_place trail[CW_TRAIL];
};

#endif
