/* SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause */
/*
 * What the walker of the page cache and its caller exchange. src/pagecache/layout.rs mirrors it.
 */
#ifndef AGEWISE_CACHEWALK_H
#define AGEWISE_CACHEWALK_H

#define CW_SLOTS	64	/* entries of an xa_node (XA_CHUNK_SIZE) */
#define CW_SHIFT	6	/* log2 of that */
#define CW_LEVELS	11	/* deepest tree of 64-bit indices */
#define CW_RETRIES	3
#define CW_STEPS	65536	/* nodes and holes of trees in one call, at most */
#define CW_TRAIL	64	/* inodes passed last that are remembered, a power of two */
#define CW_NAME_BYTES	256	/* longest name of a directory entry, and its end */
#define CW_DEPTH	64	/* names of a path, at most */

/* Why a call stopped. */
#define CW_DONE		0	/* all super blocks, inodes or names were shown */
#define CW_FULL		1	/* output full, or enough visited: call again */
#define CW_LOST		2	/* the place to go on from is gone: begin at an earlier one */
#define CW_NOT_HERE	3	/* what the caller named is not there (any more) */

/* A super block. */
struct cw_super {
	u64 address;
	u64 magic;
	u32 device;		/* s_dev, as the kernel writes it: 12 bits major, 20 bits minor */
	u32 unused;
	char type[16];
	char id[32];
};

/* An inode with pages in the cache. Its leaves follow those of the inode before. */
struct cw_file {
	u64 inode;
	u64 number;		/* i_ino */
	u64 size_bytes;
	u64 pages;		/* nrpages when its walk began */
	u32 generation;
	u32 links;
	u32 n_leaves;
	u32 state;		/* CW_FILE_* */
};
#define CW_FILE_WHOLE	1	/* shown to its last page */
#define CW_FILE_VOID	2	/* it became another inode while it was walked: forget its leaves */

/* Up to 64 neighbours. A bit stands for 1 << shift pages. */
struct cw_leaf {
	u64 first_page;		/* its low six bits: the shift */
	u64 present;
	u64 tail;		/* present, and part of the large folio before */
	u64 dirty;
	u64 writeback;
	u64 folio;		/* address of the first present folio */
	u64 folio_flags;
	u64 cgroup;		/* kernfs id of the cgroup that the first present folio is charged to */
};

/*
 * The slots of a leaf, where cw_ctl.with_folios asks for them: entries of its tree. Of a leaf that
 * is one slot of a higher node only two: its folio, and how many pages of that folio lie before it,
 * times two plus one.
 */
struct cw_node { u64 slots[CW_SLOTS]; };

/* The names of a path, from the file up. */
struct cw_path { u8 names[CW_DEPTH][CW_NAME_BYTES]; };

struct cw_place { u64 inode, number; };

struct cw_ctl {
	/* in and out: where to go on */
	u64 super;
	u64 inode;		/* 0: from the first */
	u64 number;		/* of `inode`: another one there now is not it */
	u64 page;		/* in that inode */
	/* in */
	u32 fd;			/* of ours, on any file system: where the list is entered */
	u32 visits_max;		/* inodes to look at in one call */
	/* out */
	u32 rc;
	u32 n_supers, n_files, n_leaves;
	u32 visited;		/* inodes looked at, with pages or without */
	u32 retries;		/* nodes given up: they left their tree as they were read */
	u32 names;		/* of a path, from the file up */
	/* Kept from call to call: where to go back to when the inode at hand goes away. */
	u32 passed;		/* inodes passed in this super block */
	u32 steps_back;
	u32 steps;		/* nodes and holes of trees met in one call */
	u32 with_folios;	/* in: show the slots of each leaf as well */
	u32 page_struct_bytes;	/* out, of folio_of: size of struct page */
	u64 memcg, cgroup;	/* the memory cgroup met last in it, and its id */
	struct cw_place trail[CW_TRAIL];
};

#endif
