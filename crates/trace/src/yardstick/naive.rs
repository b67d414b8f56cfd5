// SPDX-License-Identifier: Apache-2.0
//! Simple models of the policies as vectors with linear search: slow, but easy to trust.

use std::collections::VecDeque;

pub fn lru(pages: &[u64], capacity: usize) -> u64 {
    let (mut pool, mut misses) = (Vec::new(), 0);
    for &page in pages {
        match pool.iter().position(|&other| other == page) {
            Some(at) => drop(pool.remove(at)),
            None => {
                misses += 1;
                if pool.len() == capacity {
                    pool.remove(0);
                }
            }
        }
        pool.push(page);
    }
    misses
}

pub fn fifo(pages: &[u64], capacity: usize) -> u64 {
    let (mut pool, mut misses) = (VecDeque::new(), 0);
    for &page in pages {
        if !pool.contains(&page) {
            misses += 1;
            if pool.len() == capacity {
                pool.pop_front();
            }
            pool.push_back(page);
        }
    }
    misses
}

/// Implemented as a queue that moves accessed pages from the head to the end, not as a ring.
pub fn clock(pages: &[u64], capacity: usize) -> u64 {
    let (mut pool, mut misses) = (VecDeque::new(), 0);
    for &page in pages {
        if let Some(entry) = pool.iter_mut().find(|(other, _)| *other == page) {
            entry.1 = true;
            continue;
        }
        misses += 1;
        if pool.len() == capacity {
            while let Some((other, accessed)) = pool.pop_front() {
                if !accessed {
                    break;
                }
                pool.push_back((other, false));
            }
        }
        pool.push_back((page, false));
    }
    misses
}

pub fn opt(pages: &[u64], capacity: usize) -> u64 {
    let (mut pool, mut misses) = (Vec::new(), 0);
    for (now, &page) in pages.iter().enumerate() {
        if pool.contains(&page) {
            continue;
        }
        misses += 1;
        if pool.len() == capacity {
            let next = |other: &u64| {
                pages[now..]
                    .iter()
                    .position(|later| later == other)
                    .unwrap_or(usize::MAX)
            };
            let victim = (0..pool.len()).max_by_key(|&at| next(&pool[at])).unwrap();
            pool.swap_remove(victim);
        }
        pool.push(page);
    }
    misses
}

pub fn sieve(pages: &[u64], capacity: usize) -> u64 {
    // Oldest first; the hand is an index.
    let (mut pool, mut hand, mut misses): (Vec<(u64, bool)>, usize, u64) = (Vec::new(), 0, 0);
    for &page in pages {
        if let Some(entry) = pool.iter_mut().find(|(other, _)| *other == page) {
            entry.1 = true;
            continue;
        }
        misses += 1;
        if pool.len() == capacity {
            if hand >= pool.len() {
                hand = 0;
            }
            while pool[hand].1 {
                pool[hand].1 = false;
                hand = (hand + 1) % pool.len();
            }
            let was_newest = hand + 1 == pool.len();
            pool.remove(hand);
            if was_newest {
                hand = 0;
            }
        }
        pool.push((page, false));
    }
    misses
}

pub fn two_queue(pages: &[u64], capacity: usize) -> u64 {
    let (in_max, out_max) = (capacity / 4, capacity / 2);
    let (mut fifo, mut ghosts, mut main) = (VecDeque::new(), VecDeque::new(), Vec::new());
    let mut misses = 0;
    for &page in pages {
        if fifo.contains(&page) {
            continue;
        }
        if let Some(at) = main.iter().position(|&other| other == page) {
            main.remove(at);
            main.push(page);
            continue;
        }
        misses += 1;
        let remembered = ghosts.iter().position(|&other| other == page);
        if let Some(at) = remembered {
            ghosts.remove(at);
        }
        if fifo.len() + main.len() == capacity {
            if fifo.len() > in_max || main.is_empty() {
                ghosts.extend(fifo.pop_front());
                if ghosts.len() > out_max {
                    ghosts.pop_front();
                }
            } else {
                main.remove(0);
            }
        }
        if remembered.is_none() {
            fifo.push_back(page);
            continue;
        }
        if main.len() == capacity - in_max {
            main.remove(0);
        }
        main.push(page);
    }
    misses
}

pub fn lfu(pages: &[u64], capacity: usize) -> u64 {
    // Page, accesses, and when it reached that count.
    let (mut pool, mut misses): (Vec<(u64, u64, usize)>, u64) = (Vec::new(), 0);
    for (now, &page) in pages.iter().enumerate() {
        if let Some(entry) = pool.iter_mut().find(|entry| entry.0 == page) {
            *entry = (page, entry.1 + 1, now);
            continue;
        }
        misses += 1;
        if pool.len() == capacity {
            let victim = (0..pool.len())
                .min_by_key(|&at| (pool[at].1, pool[at].2))
                .unwrap();
            pool.remove(victim);
        }
        pool.push((page, 1, now));
    }
    misses
}

pub fn s3_fifo(pages: &[u64], capacity: usize) -> u64 {
    s3_fifo_filled(pages, capacity, false)
}

pub fn s3_fifo_main_first(pages: &[u64], capacity: usize) -> u64 {
    s3_fifo_filled(pages, capacity, true)
}

/// The queues have pages with their access counts, oldest first.
fn s3_fifo_filled(pages: &[u64], capacity: usize, main_first: bool) -> u64 {
    let (mut small, mut main) = (VecDeque::<(u64, u8)>::new(), VecDeque::<(u64, u8)>::new());
    let mut ghost = VecDeque::new();
    let small_max = (capacity / 10).max(1);
    let (mut misses, mut has_evicted) = (0, false);
    for &page in pages {
        let mut resident = small.iter_mut().chain(&mut main);
        if let Some((_, accesses)) = resident.find(|(other, _)| *other == page) {
            *accesses = (*accesses + 1).min(3);
            continue;
        }
        misses += 1;
        let remembered = ghost.iter().position(|&other| other == page);
        if let Some(at) = remembered {
            ghost.remove(at);
        }
        while small.len() + main.len() == capacity {
            has_evicted = true;
            if main.len() > capacity - small_max || small.is_empty() {
                if let Some((other, accesses @ 1..)) = main.pop_front() {
                    main.push_back((other, accesses - 1));
                }
                continue;
            }
            while let Some((other, accesses)) = small.pop_front() {
                if accesses < 2 {
                    ghost.push_back(other);
                    break;
                }
                main.push_back((other, 0));
            }
            if ghost.len() > capacity * 9 / 10 {
                ghost.pop_front();
            }
        }
        let fills_main = main_first && !has_evicted && small.len() >= small_max;
        if remembered.is_some() || fills_main {
            main.push_back((page, 0));
        } else {
            small.push_back((page, 0));
        }
    }
    misses
}
