// SPDX-License-Identifier: Apache-2.0
//! Doubly linked lists of page numbers with their links in one array; a page is in one list at a
//! time.

const NIL: u32 = u32::MAX;

/// The links of every page: towards the front and towards the back.
#[derive(Debug, Default)]
pub(super) struct Links(Vec<[u32; 2]>);

const FRONTWARD: usize = 0;
const BACKWARD: usize = 1;

impl Links {
    pub fn reserve(&mut self, page_count: usize) {
        if self.0.len() < page_count {
            self.0.resize(page_count, [NIL; 2]);
        }
    }
}

/// A list. It does not own the links: the caller ensures that a page is in one list at a time.
#[derive(Debug)]
pub(super) struct List {
    front: u32,
    back: u32,
    len: usize,
}

impl Default for List {
    fn default() -> Self {
        Self {
            front: NIL,
            back: NIL,
            len: 0,
        }
    }
}

impl List {
    pub fn len(&self) -> usize {
        self.len
    }

    pub fn back(&self) -> Option<u32> {
        (self.back != NIL).then_some(self.back)
    }

    /// The next page towards the front.
    pub fn frontward(links: &Links, page: u32) -> Option<u32> {
        let next = links.0[page as usize][FRONTWARD];
        (next != NIL).then_some(next)
    }

    #[inline]
    pub fn push_front(&mut self, links: &mut Links, page: u32) {
        links.0[page as usize] = [NIL, self.front];
        if self.front == NIL {
            self.back = page;
        } else {
            links.0[self.front as usize][FRONTWARD] = page;
        }
        self.front = page;
        self.len += 1;
    }

    #[inline]
    pub fn remove(&mut self, links: &mut Links, page: u32) {
        let [frontward, backward] = links.0[page as usize];
        if frontward == NIL {
            self.front = backward;
        } else {
            links.0[frontward as usize][BACKWARD] = backward;
        }
        if backward == NIL {
            self.back = frontward;
        } else {
            links.0[backward as usize][FRONTWARD] = frontward;
        }
        self.len -= 1;
    }

    #[inline]
    pub fn move_to_front(&mut self, links: &mut Links, page: u32) {
        if self.front != page {
            self.remove(links, page);
            self.push_front(links, page);
        }
    }

    #[inline]
    pub fn pop_back(&mut self, links: &mut Links) -> Option<u32> {
        let page = self.back()?;
        self.remove(links, page);
        Some(page)
    }
}
